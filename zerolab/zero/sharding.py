"""What is sharded, and how: all that an engine is told beside a model, ranks and an optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from zerolab.flat.layout import ALIGN
from zerolab.zero.table import Dtypes

REDUCTIONS = ("reduce_scatter", "all_reduce")
"""How stage 1 may reduce gradients."""


@dataclass(frozen=True)
class Sharding:
    """A stage of ZeRO and what goes with it.

    stage         0 nothing sharded · 1 optimizer states · 2 and gradients · 3 and parameters
    reduction     stage 1 only: "reduce_scatter" (2Ψ on the wire) or "all_reduce" (3Ψ, as most texts have it)
    dtypes        of the states of floating-point parameters; None: as the model has them
    tiers         where sharded parameters are stored, and where the optimizer's states are
    clip_norm     scale gradients down to this global norm, of type `norm_type`
    overlap       reduce gradients while backward runs on
    overlap_gather  let a step return before all new parameters have come
    prefetch      gather the next unit while this one computes
    persistence_numel  parameters of at most so many elements stay whole at stage 3, as at stage 2
    bucket_numel  cut units into buckets of at most so many elements
    align         slots and shards start at multiples of so many fp32 elements, or as many bytes of a narrower dtype
    """

    stage: int = 0
    reduction: str = "reduce_scatter"
    dtypes: Dtypes | None = None
    tiers: tuple[str, str] = ("device", "device")
    clip_norm: float | None = None
    norm_type: float = 2.0
    overlap: bool = True
    overlap_gather: bool = False
    prefetch: bool = True
    persistence_numel: int = 0
    bucket_numel: int | None = None
    align: int = ALIGN

    @property
    def all_reduce(self) -> bool:
        """Whether gradients are added up whole though the optimizer needs a shard of them."""
        return self.stage == 1 and self.reduction == "all_reduce"
