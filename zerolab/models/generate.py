"""Tokens that a model goes on with, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from zerolab.errors import InputError


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

    Raises:
        InputError: no tokens, a temperature below 0, or a count or top_k below 1.
    """
    if not tokens:
        raise InputError("there are no tokens to begin with; give at least one")
    if not 0 <= temperature < float("inf"):
        raise InputError(f"temperature is {temperature}; give a number of at least 0")
    for name, number in (("tokens", count), ("top_k", top_k)):
        if number is not None and number < 1:
            raise InputError(f"{name} is {number}; give a whole number of at least 1")
    return _drawn(model, list(tokens), count, context, temperature, top_k, known, seed)


@torch.no_grad()
def _drawn(
    model: nn.Module,
    seen: list[int],
    count: int,
    context: int,
    temperature: float,
    top_k: int | None,
    known: int | None,
    seed: int,
) -> Iterator[int]:
    generator = torch.Generator().manual_seed(seed)
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
