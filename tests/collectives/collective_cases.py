"""What the tests of collectives share: worlds to run in, and random programs with what torch says about them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from zerolab.collectives import Collectives
from zerolab.flat import chunk_bounds
from zerolab.ranks import launch

WORLDS = [("lockstep", "ring"), ("processes", "ring"), ("processes", "shared"), ("processes", "torch")]
SIZES = [0, 1, 2, 3, 5, 12, 1000, 4099]
SUMMABLE = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64]
DTYPES = [*SUMMABLE, torch.bool, torch.int16, torch.float8_e4m3fn]


def run(fn: Callable[..., Any], *args: Any, ranks: int, world: tuple[str, str] = WORLDS[0], **options: Any) -> Any:
    return launch(fn, *args, ranks=ranks, world=world[0], collectives=world[1], timeout=40, **options)


PLACES = ["the world", "a group of some", "groups side by side", "two groups at once", "a group in a group"]


def groups_at(place: str, comm: Collectives) -> list[Collectives]:
    """The groups in which this rank takes part; all ranks of `comm` call it."""
    if place == "the world":
        return [comm]
    if place == "a group of some":
        found = [comm.subgroup(range(min(1, comm.size - 1), comm.size), name="some")]
    elif place == "groups side by side":
        found = [comm.split(comm.rank % 2, key=-comm.rank)]
    elif place == "two groups at once":
        # Rows and columns: two ranks share one group at most, but where all are in one row.
        found = [comm.split(comm.rank // 2, name="row"), comm.split(comm.rank % 2, name="column")]
    else:
        outer = comm.split(0 if comm.rank or comm.size == 1 else None, key=-comm.rank, name="outer")
        found = [] if outer is None else [outer, outer.split(outer.rank % 2, name="inner")]
    return [group for group in found if group is not None]


every_world = pytest.mark.parametrize("world", WORLDS, ids="-".join)
# One rank, and a number that is no power of two, in every world; all others where ranks cost nothing.
PAIRS = [*((WORLDS[0], ranks) for ranks in (1, 2, 3, 4)), *((world, ranks) for world in WORLDS[1:] for ranks in (1, 3))]
every_size_somewhere = pytest.mark.parametrize(("world", "ranks"), PAIRS, ids=str)


@dataclass(frozen=True)
class Step:
    """One collective of a random program."""

    name: str
    numel: int
    dtype: torch.dtype
    average: bool = False
    asynchronous: bool = False
    given_out: str = "none"  # or "apart", or "in place"
    src: int = 0


def data_of(rank: int, at: int, step: Step) -> torch.Tensor:
    numbers = torch.randint(0, 16, (step.numel,), generator=torch.Generator().manual_seed(1000 * at + rank))
    return numbers.to(step.dtype)


def expected_of(step: Step, at: int, rank: int, size: int) -> torch.Tensor:
    """What torch says about all ranks' data, which every rank can make up."""
    every = [data_of(other, at, step) for other in range(size)]
    if step.name == "broadcast":
        return every[step.src % size]
    if step.name == "all_gather":
        return torch.cat([one.tensor_split(size)[other] for other, one in enumerate(every)])
    total = torch.stack(every).sum(0, dtype=step.dtype)
    total = total / size if step.average else total
    return total if step.name == "all_reduce" else total.tensor_split(size)[rank]


def issue(comm: Collectives, at: int, step: Step) -> Any:
    """Issue one step; the result is a handle or a tensor. `at` says which numbers the ranks draw."""
    own = data_of(comm.rank, at, step)
    start, stop = chunk_bounds(step.numel, comm.size)[comm.rank]
    if step.name == "broadcast":
        return comm.broadcast(own, step.src % comm.size)
    if step.name == "all_reduce":
        return (comm.all_reduce_async if step.asynchronous else comm.all_reduce)(own, step.average)
    if step.name == "reduce_scatter":
        out = {"none": None, "apart": own.new_full((stop - start,), 1), "in place": own[start:stop]}[step.given_out]
        return (comm.reduce_scatter_async if step.asynchronous else comm.reduce_scatter)(own, step.average, out)
    whole = own.new_full((step.numel,), 1)
    whole[start:stop] = own[start:stop]
    shard = whole[start:stop] if step.given_out == "in place" else own[start:stop]
    out = None if step.given_out == "none" else whole
    return (comm.all_gather_async if step.asynchronous else comm.all_gather)(shard, step.numel, out)


def run_program(comm: Collectives, program: list[Step]) -> list[str]:
    """Issue all steps before any is waited for; what went wrong, in words."""
    return run_in_groups([comm], program)


def run_in_groups(comms: list[Collectives], program: list[Step]) -> list[str]:
    """Issue each step in all of them, with other numbers in each, before any is waited for; what went wrong."""
    results = []
    for at, step in enumerate(program):
        # Where nobody waits, ranks may come to their groups in different orders.
        turned = step.asynchronous and step.name != "broadcast" and comms[0].ranks[comms[0].rank] % 2
        for which, comm in sorted(enumerate(comms), reverse=bool(turned), key=lambda pair: pair[0]):
            results.append((comm, at + 100 * which, step, issue(comm, at + 100 * which, step)))
    for comm in comms:
        comm.barrier()
    wrong = []
    for comm, at, step, result in results:
        value = result.wait() if step.asynchronous and step.name != "broadcast" else result
        expected = expected_of(step, at, comm.rank, comm.size)
        if value.dtype != expected.dtype or not torch.equal(value, expected):
            wrong.append(f"rank {comm.rank} of {comm.ranks}, step {at} {step}: {value} is not {expected}")
    return wrong


def run_at(comm: Collectives, place: str, program: list[Step]) -> list[str]:
    """`run_program` in the groups of a place."""
    groups = groups_at(place, comm)
    return run_in_groups(groups, program) if groups else []


def every_case(dtypes: list[torch.dtype]) -> list[Step]:
    """Each collective with each dtype at a size that divides for no N, and at all sizes with float32."""
    cases = [(dtype, 7) for dtype in dtypes] + [(torch.float32, numel) for numel in SIZES]
    names = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
    return [
        Step(name, numel, dtype, asynchronous=at % 2 == 1, src=at)
        for at, (dtype, numel) in enumerate(cases)
        for name in names
        if dtype in SUMMABLE or name in ("all_gather", "broadcast")
    ]
