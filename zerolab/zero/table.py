"""ZeRO as a table: for each state of a bucket how deep it is cut, in which dtype it is stored, and on which tier.

A bucket of n elements is cut along one data-parallel axis after the other, the one with the highest stage first (of
equals the innermost). A state is then sharded along the first few axes, and one number says along which, its depth:

    depth 0   |------------------ n ------------------|      whole on every rank
    depth 1   |---- rank 0 ----|---- rank 1 ----|            sharded along the first axis
    depth 2   | 0, 0 |  0, 1   | 1, 0 |  1, 1   |            sharded along both

So all that ZeRO moves is a move between depths: up by an all-gather along one axis, down by a reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch

from zerolab.flat.layout import ALIGN

WHOLE, SHARD = 0, 1
STAGES = {
    # parameters, gradients, main parameters and moments
    0: (WHOLE, WHOLE, WHOLE),
    1: (WHOLE, WHOLE, SHARD),
    2: (WHOLE, SHARD, SHARD),
    3: (SHARD, SHARD, SHARD),
}
"""What each stage shards along an axis (ZeRO paper, arXiv 1910.02054, section 5)."""


@dataclass(frozen=True)
class Dtypes:
    """The dtypes of a bucket's states.

    params      parameters as the model computes with them
    main        main parameters (master weights): parameters as the optimizer updates them
    grads       gradients of this rank alone, as backward brings them
    reduce      gradients as they travel and are added up over the ranks
    main_grads  averaged gradients, until the step
    shard       the shard of the parameters that stage 3 stores
    """

    params: torch.dtype
    main: torch.dtype
    grads: torch.dtype
    reduce: torch.dtype
    main_grads: torch.dtype
    shard: torch.dtype


@dataclass(frozen=True)
class Row:
    """How one state is stored between uses."""

    depth: int
    dtype: torch.dtype
    tier: str = "device"


@dataclass(frozen=True)
class StateTable:
    """The table of one bucket.

    sizes       ranks along each axis, in the order of the cuts
    parameters  as they are stored; the model computes with them in `dtypes.params`
    gradients   between micro-batches; None where nothing trains
    optimizer   main parameters and moments; None where nothing trains
    owned       the depth of what this rank updates, and saves
    all_reduce  gradients are added up whole even where the optimizer needs a shard of them
    """

    sizes: tuple[int, ...]
    dtypes: Dtypes
    parameters: Row
    gradients: Row | None
    optimizer: Row | None
    owned: int
    all_reduce: bool = False

    @cached_property
    def reduced(self) -> int:
        """The depth at which gradients are complete after a reduction along the first axis."""
        if self.gradients is None or self.all_reduce:
            return WHOLE
        return max(self.gradients.depth, self.owned)

    @cached_property
    def keeps_main(self) -> bool:
        """Whether main parameters are stored beside the parameters, since dtype or tier differ, or on a disk. Else they
        are a view of them, since what a rank owns is a part of what it stores."""
        stored, own = self.parameters, self.optimizer
        return own is not None and not (own.tier == stored.tier != "disk" and own.dtype == stored.dtype)

    @cached_property
    def publishes(self) -> bool:
        """Whether ranks hand updated parameters to each other, since they are stored less deep than they are owned."""
        return self.optimizer is not None and self.owned > self.parameters.depth

    def numel(self, row: Row, whole: int) -> int:
        """Elements that a rank stores of a state with `whole` elements."""
        return whole // prod(self.sizes[: row.depth])

    def nbytes(self, whole: int, states: Callable[[int], int], updated: int | None = None) -> dict[str, int]:
        """Bytes that a rank stores between two steps, by state: "host:gradients" where the tier is not the device.

        whole    elements of the bucket
        states   bytes of main parameters (where they are stored apart) and moments of so many elements
        updated  elements that this rank's optimizer has, where padding is left out; default: all it owns
        """
        named = {"parameters": self.parameters, "gradients": self.gradients, "optimizer_states": self.optimizer}
        found = {}
        for name, row in named.items():
            if row is not None:
                numel = self.numel(row, whole)
                own = states(numel if updated is None else updated)
                nbytes = own if name == "optimizer_states" else numel * row.dtype.itemsize
                found[name if row.tier == "device" else f"{row.tier}:{name}"] = nbytes
        return found

    def sent(self, whole: int, uses: int = 1, micro_batches: int = 1) -> list[int]:
        """Bytes that a rank sends in a step, along each axis. `uses`: how often each micro-batch gathers the bucket.

        A move between depth d and d + 1 along an axis of k ranks sends (k - 1) / k of what the rank has at depth d.
        """
        sent = [0] * len(self.sizes)

        def move(start: int, stop: int, dtype: torch.dtype, times: int = 1) -> None:
            for depth in range(min(start, stop), max(start, stop)):
                part = whole // prod(self.sizes[: depth + 1])
                sent[depth] += times * (self.sizes[depth] - 1) * part * dtype.itemsize

        move(self.parameters.depth, WHOLE, self.dtypes.params, uses * micro_batches)
        if self.gradients is not None:
            end = len(self.sizes)
            move(WHOLE, end, self.dtypes.reduce, micro_batches)
            move(end, self.reduced, self.dtypes.reduce, micro_batches)
        if self.publishes:
            move(self.owned, self.parameters.depth, self.parameters.dtype)
        return sent

    def explain(self, axes: Sequence[str]) -> str:
        """The table as text, a line a state; `axes` are the names of the axes in the order of the cuts."""
        lines = [f"{'':15}" + "".join(f"{name:11}" for name in axes) + f"{'dtype':10}tier"]
        named = {"parameters": self.parameters, "gradients": self.gradients, "main, moments": self.optimizer}
        for name, row in named.items():
            if row is not None:
                cells = "".join(f"{'shard' if cut < row.depth else 'whole':11}" for cut in range(len(axes)))
                lines.append(f"{name:15}{cells}{str(row.dtype).removeprefix('torch.'):10}{row.tier}")
        return "\n".join(lines)


def order_of_cuts(stages: Sequence[int]) -> list[int]:
    """The axes in the order in which they are cut; `stages` are given from the outermost axis to the innermost."""
    return sorted(range(len(stages)), key=lambda axis: (-stages[axis], -axis))


def make_rows(
    stages: Sequence[int],
    sizes: Sequence[int],
    dtypes: Dtypes,
    trains: bool = True,
    tiers: tuple[str, str] = ("device", "device"),
    all_reduce: bool = False,
) -> StateTable:
    """The table of a bucket, from one stage and one number of ranks for each axis, the outermost first. `tiers` are
    those of sharded parameters, and of the optimizer's states with the sharded gradients that it uses there."""
    order = order_of_cuts(stages)
    cuts = [STAGES[stages[axis]] for axis in order]
    parameters, gradients, owned = (sum(column) for column in zip(*cuts, strict=True))
    stored, used = tiers
    summed_on = "host" if gradients and used != "device" else "device"
    return StateTable(
        tuple(sizes[axis] for axis in order),
        dtypes,
        Row(parameters, dtypes.shard if parameters else dtypes.params, stored if parameters else "device"),
        Row(gradients, dtypes.main_grads, summed_on) if trains else None,
        Row(owned, dtypes.main, used) if trains else None,
        owned,
        all_reduce,
    )


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


UNSHARDED = Sharding()
"""Nothing is sharded."""
