"""The norm of all gradients, from shards, and clipping by it.

Each rank sums over the elements that it owns, padding left out; the N partial sums are gathered and added in rank
order, so every rank finds the same norm to the bit, at every stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from zerolab.collectives.call import phase
from zerolab.collectives.contract import Collectives
from zerolab.errors import InputError
from zerolab.flat.views import numbers, values_here
from zerolab.zero.bucket import Bucket


@dataclass(frozen=True)
class StepResult:
    """What a step did. `norm` is the gradients' norm before clipping, or None if clipping is off; `loss_scale` is that
    of the step, 1.0 if losses are not scaled."""

    norm: float | None = None
    skipped: bool = False
    loss_scale: float = 1.0


def check_norm(max_norm: float, norm_type: float) -> None:
    if not (isinstance(max_norm, int | float) and max_norm > 0):
        raise InputError(f"the clipping norm is {max_norm!r}; give a number above 0, or None for no clipping")
    if not (isinstance(norm_type, int | float) and norm_type >= 1):
        raise InputError(f"norm_type is {norm_type!r}; give 1, 2, another p of at least 1, or inf")


@torch.no_grad()
def gradient_norm(comm: Collectives, buckets: list[Bucket], norm_type: float = 2.0) -> float:
    """The p-norm of the gradients of all buckets over all ranks; NaN where they have no values. Moves 8 bytes a
    rank."""
    own = _partial(comm, buckets, norm_type)
    with phase("norm"):
        # The one value of a step that the host waits for on a GPU.
        partials = numbers(comm.all_gather(own), instead=[math.nan] * comm.size)
    if math.isinf(norm_type):
        # max() would drop a NaN that is not its first argument.
        return math.nan if any(map(math.isnan, partials)) else max(partials)
    return float(sum(partials) ** (1.0 / norm_type))


def clip_factor(norm: float | None, max_norm: float | None) -> float:
    """What brings gradients of the given norm down to `max_norm`, as torch.nn.utils.clip_grad_norm_ does; else 1. NaN
    stays NaN."""
    return 1.0 if norm is None or max_norm is None else min(max_norm / (norm + 1e-6), 1.0)


def measure(
    comm: Collectives, buckets: list[Bucket], clip_norm: float | None, norm_type: float, scale: float | None = None
) -> tuple[StepResult, float]:
    """Whether to step, which all ranks see alike, and the factor that unscales and clips the gradients. `scale`: what
    the loss was multiplied by; None: by nothing, so that no gradient can overflow because of it."""
    if clip_norm is None and scale is None:
        return StepResult(), 1.0
    scale = 1.0 if scale is None else scale
    # Without clipping the largest gradient is enough to see an overflow.
    norm = gradient_norm(comm, buckets, float("inf") if clip_norm is None else norm_type) / scale
    clipped = None if clip_norm is None else norm
    # Gradients without values are taken to be finite, and to be clipped.
    if not norm < float("inf") and values_here():
        return StepResult(clipped, True, scale), 0.0
    return StepResult(clipped, False, scale), clip_factor(clipped, clip_norm) / scale


def _partial(comm: Collectives, buckets: list[Bucket], norm_type: float) -> torch.Tensor:
    """This rank's maximum, or its sum of |g|^p, in double precision from piece to piece; [1] on the rank's device."""
    norms = []
    for bucket in buckets:
        start, _ = bucket.layout.shard(comm.rank)
        shard = bucket.reduced_shard()
        pieces = [shard[piece.start - start : piece.stop - start] for piece in bucket.layout.pieces(comm.rank)]
        norms += [piece.abs() if piece.is_complex() else piece for piece in pieces]
    if not norms:
        return torch.zeros(1, dtype=torch.float64, device=comm.device)
    # 16-bit sums would overflow where the gradients do not.
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    each = torch.stack(torch._foreach_norm(norms, norm_type, dtype=wide)).double()
    whole = each.max() if math.isinf(norm_type) else each.pow(norm_type).sum()
    return whole.view(1).to(comm.device)
