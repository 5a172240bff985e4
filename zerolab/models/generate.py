"""Tokens that a model goes on with, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from zerolab.errors import InputError


@torch.no_grad()
def generate(
    model: nn.Module,
    tokens: Sequence[int],
    count: int,
    *,
    context: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    known: int | None = None,
    seed: int = 0,
) -> Iterator[int]:
    """Draw `count` tokens after `tokens`, each from what the model expects after all before it.

    Args:
        model: int64 [1, seq] -> logits [1, seq, vocab]; it is as it was left, so call `model.eval()` before.
        tokens: at least one; of more than `context` the model sees the last ones.
        temperature: logits are divided by it: below 1 the likelier tokens come more often still, at 0 always the first.
        top_k: draw among so many likeliest; None: among all.
        known: draw among the tokens below this number; None: all that the model has.
        seed: of a generator of random numbers of its own.
    """
    if not 0 <= temperature < float("inf"):
        raise InputError(f"temperature is {temperature}; give a number of at least 0")
    generator, seen = torch.Generator().manual_seed(seed), list(tokens)
    for _ in range(count):
        logits: Tensor = model(torch.tensor([seen[-context:]]))[0, -1, :known].float()
        if temperature == 0:
            token = int(logits.argmax())
        else:
            # The likeliest is 0 then, and what is colder than any number of fp32 is its coldest.
            logits = (logits - logits.max()) / max(temperature, torch.finfo(logits.dtype).tiny)
            if top_k is not None and top_k < len(logits):
                logits[logits < logits.topk(top_k).values[-1]] = -float("inf")
            token = int(torch.multinomial(logits.softmax(0), 1, generator=generator))
        seen.append(token)
        yield token
