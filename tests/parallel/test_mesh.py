"""A mesh puts each rank at its coordinates, in both factorings, with a group along each axis, in every world."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from collective_cases import every_world, run
from cover import covering, pairs

from zerolab.collectives import Collectives
from zerolab.errors import InputError, RankError
from zerolab.parallel import Grid, Mesh
from zerolab.parallel.mesh import AXES, DENSE, SPARSE
from zerolab.ranks import launch

GRIDS = covering(
    [
        Grid(pp, outer, inner, tp, ep)
        for pp, outer, inner, tp, ep in product((1, 2, 4), repeat=5)
        if pp * outer * inner * tp <= 16 and inner % ep == 0
    ],
    shows=lambda grid: pairs(*grid.sizes.values()),
)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_ranks_of_a_group_differ_along_its_axis_alone_and_each_is_in_one(grid: Grid) -> None:
    for axis, axes in [*((axis, SPARSE if axis in SPARSE else DENSE) for axis in AXES if axis not in ("dp", "edp"))]:
        groups = {grid.group(rank, axis) for rank in range(grid.world)}
        assert sorted(rank for group in groups for rank in group) == [*range(grid.world)]
        for group in groups:
            places = [grid.at(rank) for rank in group]
            assert [place[axis] for place in places] == [*range(grid.sizes[axis])]
            assert all(len({place[other] for place in places}) == 1 for other in axes if other != axis)
    for axis, (outer, inner) in {"dp": ("dp_replicate", "dp_shard"), "edp": ("dp_replicate", "efsdp")}.items():
        for rank in range(grid.world):
            group = grid.group(rank, axis)
            assert len(group) == grid.sizes[outer] * grid.sizes[inner]
            assert {*group} >= {*grid.group(rank, outer), *grid.group(rank, inner)}
            assert [grid.at(other)[axis] for other in group] == [*range(len(group))]


def test_tensor_parallel_ranks_are_neighbours_and_experts_lie_inside_data_parallelism() -> None:
    """Megatron-LM's default order: PP=2 and EP=2 on 4 ranks are dp 2 and edp 1, on 8 dp 4 and edp 2 (row 7)."""
    four, eight = Grid(pp=2, dp_shard=2, ep=2), Grid(pp=2, dp_shard=4, ep=2)
    assert (four.sizes["dp"], four.sizes["edp"]) == (2, 1) and (eight.sizes["dp"], eight.sizes["edp"]) == (4, 2)
    assert four.group(0, "dp") == (0, 1) == four.group(0, "ep") and four.group(0, "edp") == (0,)
    assert eight.group(5, "ep") == (4, 5) and eight.group(5, "edp") == (5, 7) and eight.group(5, "pp") == (1, 5)
    with_tp = Grid(dp_shard=2, tp=2)
    assert with_tp.group(2, "tp") == (2, 3) and with_tp.group(2, "dp") == (0, 2)
    assert str(eight) == "pp 2 x dp_shard 4 (ep 2, efsdp 2)" and str(Grid()) == "1 rank"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Grid(tp=0), "tp is 0; give a whole number of at least 1"),
        (lambda: Grid(dp_shard=4, ep=3), "ep 3 does not divide dp_shard 4"),
        (lambda: Grid(tp=2, cp=2), "cp is 2, and context parallelism is not built"),
        (lambda: Grid(tp=2).at(2), "there is no rank 2 on tp 2; name one from 0 to 1"),
        (lambda: Grid(tp=2).group(0, "cp"), "there is no axis 'cp'; name one of pp, dp_replicate, dp_shard, tp,"),
    ],
)
def test_sizes_ranks_and_axes_that_cannot_be_are_refused_in_a_sentence(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


def sums(comm: Collectives, grid: Grid) -> tuple[dict[str, list[int]], str]:
    mesh = Mesh(comm, grid)
    found = {}
    for axis, group in mesh.comms.items():
        numbers = group.all_gather(torch.tensor([comm.rank]))
        assert group.rank == mesh.at[axis] and group.size == grid.sizes[axis]
        found[axis] = numbers.tolist()
    return found, str(mesh)


@pytest.mark.ranks
@every_world
def test_a_group_of_each_axis_carries_values_in_every_world(world: tuple[str, str]) -> None:
    grid = Grid(pp=2, dp_shard=2, ep=2)
    for rank, (found, said) in enumerate(run(sums, grid, ranks=4, world=world)):
        assert found == {axis: [*grid.group(rank, axis)] for axis in AXES}
        assert said == f"pp {rank // 2}, dp_shard {rank % 2}, ep {rank % 2}"


def test_axes_of_the_same_ranks_share_their_collectives() -> None:
    def made(comm: Collectives) -> list[bool]:
        comms = Mesh(comm, Grid(dp_shard=2, tp=2)).comms
        return [
            comms["dp"] is comms["dp_shard"] is comms["efsdp"],
            comms["pp"] is comms["ep"],
            comms["tp"] is comms["dp"],
        ]

    assert launch(made, ranks=4, world="lockstep")[3] == [True, True, False]


def test_a_mesh_of_a_thousand_virtual_ranks_is_made_and_one_that_does_not_fit_is_refused() -> None:
    def made(comm: Collectives, grid: Grid) -> int:
        return Mesh(comm, grid).comms["dp"].size

    assert launch(made, Grid(pp=8, dp_replicate=4, dp_shard=8, tp=4), ranks=1024, world="virtual")[0] == 32
    with pytest.raises(RankError, match="pp 2 x tp 2 is 4 ranks, and there are 3; change one of the sizes"):
        launch(made, Grid(pp=2, tp=2), ranks=3, world="virtual")


def test_every_rank_stands_at_its_own_place() -> None:
    grid = Grid(2, 2, 2, 2, 2)
    dense = [tuple(grid.at(rank)[axis] for axis in DENSE) for rank in range(grid.world)]
    assert dense == [*product(range(2), repeat=4)] and grid.world == prod([2] * 4)
