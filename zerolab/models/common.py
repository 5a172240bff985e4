"""What the two language models share: the checks of their input, the loss, and activation checkpointing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from zerolab.errors import InputError


def require_positive(**values: int) -> None:
    """Refuse a size that is not a whole number of at least 1.

    Raises:
        InputError: the first such value, by name.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}, but must be a whole number of at least 1; change it.")


def check_batch(tokens: Tensor, targets: Tensor | None, vocab_size: int, max_seq_len: int) -> None:
    """Refuse a batch that the model cannot read, before it turns into an index error deep in a kernel.

    Args:
        tokens: int64 [batch, seq].
        targets: None, or int64 of the same shape.

    Raises:
        InputError: wrong dtype or shape, a sequence longer than `max_seq_len`, or (see `check_vocabulary`)
            a token outside the vocabulary.
    """
    for name, tensor in (("tokens", tokens), ("targets", targets)):
        if tensor is None:
            continue
        if tensor.dtype != torch.int64 or tensor.dim() != 2 or tensor.numel() == 0:
            raise InputError(
                f"{name} are {tensor.dtype} of shape {list(tensor.shape)}, but the model reads "
                "torch.int64 of shape [batch, seq] with at least one token; convert or reshape them."
            )
        if tensor.shape != tokens.shape:
            raise InputError(
                f"targets have shape {list(tensor.shape)} and tokens {list(tokens.shape)}; "
                "give one target for each token."
            )
        check_vocabulary(tensor, vocab_size, name)
    if tokens.shape[1] > max_seq_len:
        raise InputError(
            f"a sequence of {tokens.shape[1]} tokens is longer than the model's max_seq_len of {max_seq_len}; "
            "cut it or build the model with a larger max_seq_len."
        )


def check_vocabulary(tokens: Tensor, vocab_size: int, name: str = "tokens") -> None:
    """Refuse a token id outside [0, vocab_size).

    One pass over the ids, next to nothing beside a forward pass. On an accelerator the answer would cost a
    wait for the device in every step, so ids are looked at only where they are plain CPU tensors: a caller
    that feeds a GPU checks its corpus once, on the CPU.

    Raises:
        InputError: the offending id and the range.
    """
    if type(tokens) is not Tensor or tokens.device.type != "cpu" or torch.compiler.is_compiling():
        return
    low, high = (int(bound) for bound in torch.aminmax(tokens))
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"{name} hold the id {low if low < 0 else high}, outside the vocabulary [0, {vocab_size}); "
            "build the model with the tokenizer's vocab_size."
        )


def run_block(block: nn.Module, hidden: Tensor, *context: Any, checkpoint: bool, draws: bool = False) -> Tensor:
    """Call one block; with `checkpoint`, keep only its input and compute its activations anew in backward.

    The block is called as a module either way, so hooks on it fire, also in the second forward. (That one
    stops as soon as it has what backward asked for, so a hook *after* forward may not fire there.) Where a block
    `draws` random numbers, as dropout does, the second forward has the same ones.
    """
    if not (checkpoint and torch.is_grad_enabled()):
        return block(hidden, *context)
    return recompute_in_backward(block, hidden, *context, use_reentrant=False, preserve_rng_state=draws)


def logits_or_loss(logits: Tensor, targets: Tensor | None) -> Tensor:
    """Return logits [batch, seq, vocab] as they are, or with targets the mean cross-entropy, an fp32 scalar."""
    if targets is None:
        return logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def initialize(model: nn.Module, layers: int, residual: tuple[str, ...]) -> None:
    """Draw every matrix from N(0, 0.02²), from torch's global generator and in the order of the parameters.

    Matrices that write into the residual stream (names ending in one of `residual`) are drawn narrower by
    sqrt(2 · layers), so that the stream's variance does not grow with depth (GPT-2, section 2.3). Vectors
    keep what their layer gave them: norm weights 1, biases are set to 0. A tied matrix is drawn once.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            narrower = (2 * layers) ** -0.5 if name.endswith(residual) else 1.0
            nn.init.normal_(parameter, std=0.02 * narrower)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
