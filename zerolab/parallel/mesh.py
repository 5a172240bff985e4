"""A mesh: where each rank of a world stands along the axes of parallelism,
and a group of ranks for each axis.

    dense     world = pp x dp_replicate x dp_shard x tp
    experts   world = pp x dp_replicate x efsdp x ep x tp        with efsdp = dp_shard / ep

One world is factored twice, the last axis fastest: neighbours share a
tensor-parallel group. Expert parallelism lies inside data parallelism, as in
Megatron-LM: an expert's parameters are on every ep-th of the ranks of
`dp_shard`, and those are `efsdp`. Two axes are made of others: dp =
dp_replicate x dp_shard, and edp = dp_replicate x efsdp.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod
from typing import Any, TypeVar

from zerolab.collectives.contract import Collectives
from zerolab.errors import InputError
from zerolab.flat.layout import check_count

Model = TypeVar("Model")
DENSE = ("pp", "dp_replicate", "dp_shard", "tp")
SPARSE = ("pp", "dp_replicate", "efsdp", "ep", "tp")
JOINED = {"dp": ("dp_replicate", "dp_shard"), "edp": ("dp_replicate", "efsdp")}
AXES = (*dict.fromkeys((*DENSE, *SPARSE)), *JOINED)


@dataclass(frozen=True)
class Grid:
    """The sizes of a mesh, and who stands where: plain integers, without a
    process.

    pp            stages of the pipeline
    dp_replicate  data-parallel ranks that hold the same shards (the outer axis: between nodes, say)
    dp_shard      data-parallel ranks that shard with each other (the inner axis: within a node)
    tp            ranks that share each matrix
    ep            ranks that share the experts of a layer; a divisor of `dp_shard`
    cp            1: ranks do not share sequences yet
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    ep: int = 1
    cp: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            check_count(field.name, getattr(self, field.name))
        if self.cp > 1:
            raise InputError(f"cp is {self.cp}, and context parallelism is not built; leave it out")
        if self.dp_shard % self.ep:
            raise InputError(
                f"ep {self.ep} does not divide dp_shard {self.dp_shard}: experts are shared out inside data "
                "parallelism; choose a divisor"
            )

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Ranks along each axis."""
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        sizes["efsdp"] = self.dp_shard // self.ep
        return sizes | {name: prod(sizes[axis] for axis in axes) for name, axes in JOINED.items()}

    @property
    def world(self) -> int:
        return prod(self.sizes[axis] for axis in DENSE)

    def at(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank along every axis."""
        if rank not in range(self.world):
            raise InputError(f"there is no rank {rank!r} on {self}; name one from 0 to {self.world - 1}")
        found = {}
        for axes in (DENSE, SPARSE):
            rest = rank
            for axis in reversed(axes):
                rest, found[axis] = divmod(rest, self.sizes[axis])
        for name, (outer, inner) in JOINED.items():
            found[name] = found[outer] * self.sizes[inner] + found[inner]
        return found

    def groups(self, axis: str) -> tuple[int, ...]:
        """For each rank the first of its group along an axis."""
        if axis not in AXES:
            raise InputError(f"there is no axis {axis!r}; name one of {', '.join(AXES)}")
        whole = SPARSE if axis in ("efsdp", "ep", "edp") else DENSE
        others = [other for other in whole if other not in JOINED.get(axis, (axis,))]
        first: dict[tuple[int, ...], int] = {}
        places = (tuple(at[other] for other in others) for at in map(self.at, range(self.world)))
        return tuple(first.setdefault(place, rank) for rank, place in enumerate(places))

    def group(self, rank: int, axis: str) -> tuple[int, ...]:
        """The ranks of `rank`'s group along an axis, itself among them, in
        the order of that axis."""
        self.at(rank)
        groups = self.groups(axis)
        return tuple(other for other in range(self.world) if groups[other] == groups[rank])

    def __str__(self) -> str:
        """Its axes that have more than one rank, such as "pp 2 x dp_shard 2";
        efsdp beside ep."""
        named = [f"{axis} {self.sizes[axis]}" for axis in DENSE if self.sizes[axis] > 1] or ["1 rank"]
        return " x ".join(named) + (f" (ep {self.ep}, efsdp {self.sizes['efsdp']})" if self.ep > 1 else "")


class Mesh:
    """This rank's place on a grid: `comms[axis]` are the collectives of its
    group along each axis, `at[axis]` its number there. Every rank of `comm`
    makes it, with the same grid. Axes of the same ranks share their
    collectives."""

    def __init__(self, comm: Collectives, grid: Grid) -> None:
        if grid.world != comm.size:
            raise InputError(f"{grid} is {grid.world} ranks, and there are {comm.size}; change one of the sizes")
        self.world, self.grid = comm, grid
        self.at, self.sizes = grid.at(comm.rank), grid.sizes
        self.comms: dict[str, Collectives] = {}
        made: dict[tuple[int, ...], Collectives] = {}
        for axis in AXES:
            groups = grid.groups(axis)
            if groups not in made:
                found = comm.split(groups.__getitem__, name=axis)
                assert found is not None
                made[groups] = found
            self.comms[axis] = made[groups]

    # What a checker hears (`check.py`); without one these do nothing.

    recorder: Any = None

    def watch(self, model: Model) -> Model:
        """Let a checker see a model's parameters, gradients and the outputs of
        its modules; returns the model."""
        if self.recorder is not None:
            self.recorder.watch(model)
        return model

    def end_step(self, **notes: Any) -> None:
        """Say that a step is done, and what the program reports of it, such as
        loss and norm."""
        if self.recorder is not None:
            self.recorder.end_step(notes)

    def __str__(self) -> str:
        """The coordinates of this rank, such as "pp 1, dp_shard 0"."""
        axes = [axis for axis in (*DENSE, *(["efsdp", "ep"] if self.grid.ep > 1 else [])) if self.sizes[axis] > 1]
        return ", ".join(f"{axis} {self.at[axis]}" for axis in axes) or "alone"
