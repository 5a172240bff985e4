"""The exercise of lesson 09 on gathers that hide behind computing, within a room that is given."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from zerolab.collectives import Link
from zerolab.course.exercises.zero_3.prefetched import Filling
from zerolab.course.judge.case import Case, Observation, Record
from zerolab.course.judge.claims import calls_are, each_rank, never
from zerolab.course.judge.draw import fine
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import does, read_mistakes
from zerolab.flat.layout import chunk_sizes
from zerolab.ranks import spend

TEXT = """
Hidden behind computing

In exercises 05 every layer took as long as any other, and one ahead was enough. Here units differ: while a long one
computes, several short ones could come; but memory has room for some of them only.

Write `hidden(comm, shards, numels, compute, room)`. `shards[k]` is this rank's shard of unit k, which has `numels[k]`
elements in all; shards are those of `torch.tensor_split`. Gather each unit once, in order, and call
`compute(k, whole)` on it once, in order. `comm.all_gather_async(shards[k], numels[k])` returns a handle at once;
`handle.wait()` blocks until the whole unit is here, and returns it. The wire carries one gather at a time, in the
order in which they were begun.

- At any moment at most `room` elements may be gathered or on their way. A unit counts from the moment when its gather
  begins until nothing of yours refers to it any more: no variable, no list, and no handle, which holds its result. No
  unit is larger than the room.
- All is computed as early as it can be: a gather begins as soon as there is room for it (and for those before it).

Time passes in `compute` and in `wait` only, and is virtual. By hand: three units of 4, 2 and 2 elements, whose
gathers take 2, 1 and 1 s; computing takes 3, 0.5 and 1 s; room for 8 elements. All three gathers begin at once
(digits are units):

    second      0       2   3   4   5 5.5 6.5
    gathers     0000000011112222
    computes            000000000000112222

One ahead would begin gather 2 when unit 0 is computed, at 5 s, and end at 7 s. So would the best with room for 6
elements, where gather 2 has to wait for unit 0 to go.

The check draws 1 to 12 units, room for one unit, for some or for all, 1 to 4 ranks, which do not always divide a
unit. It measures the memory that you hold, and the clock. About nine lines.
"""


def hidden(comm, shards: list[torch.Tensor], numels: list[int], compute, room: int) -> None:
    """Gather each unit, as early as the room allows, and compute on it; then let it go."""
    ### BEGIN SOLUTION
    coming, following = [], 0
    for index, numel in enumerate(numels):
        while following < len(numels) and numels[following] <= room:
            coming.append(comm.all_gather_async(shards[following], numels[following]))
            room -= numels[following]
            following += 1
        compute(index, coming.pop(0).wait())
        room += numel
    ### END SOLUTION


SLOW = r"""
nothing goes on at once: begin gathers before you compute
    numels[following] <= room => numels[following] <= room and following <= index
one unit ahead is not always enough: begin the next gathers, too, while there is room
    numels[following] <= room => numels[following] <= room and following <= index + 1
two units ahead are not always enough: begin as many gathers as there is room for
    numels[following] <= room => numels[following] <= room and following <= index + 2
"""
Tensor = torch.Tensor
LINK = Link(gbit_per_s=1, latency_us=20)
SLACK = 512
"""Bytes that an answer may hold besides, such as a small tensor that it counts with."""
BOARD = (
    (800, 200, 200, 200, 200, 1200, 400, 2000, 400),
    (300, 5, 5, 5, 5, 150, 60, 150, 30),
    2400,
)
"""Elements of each unit, microseconds of computing on it, room. After the first unit small ones come that compute for
less time than a gather takes, so that one ahead is too few; the long one fits only when others have gone."""


def run_hidden(fn, comm, own, numels, room, row, times):
    """The first fault in what the answer computes, and the seconds that it takes. `own` has this rank's shards end to
    end, `row` all units."""
    shards = list(own.split([chunk_sizes(numel, comm.size)[comm.rank] for numel in numels]))
    wholes = row.split(numels)
    gathers, faults, done = Filling(comm), [], []

    def compute(index, whole):
        if type(index) is not int or not 0 <= index < len(numels):
            raise ValueError(f"compute({index!r}, ...): units are 0 to {len(numels) - 1}")
        if index != len(done):
            faults.append(f"unit {index} when unit {len(done)} is due: each once, in order")
        elif gathers.fills(whole):
            filling = "in memory that a gather under way writes to: wait() for the former, and give the latter its own"
            faults.append(f"unit {index} {filling}")
        elif whole.dtype != wholes[index].dtype or not torch.equal(whole.reshape(-1), wholes[index]):
            faults.append(f"unit {index}, and what it hands over is not the whole unit: is there a wait() before?")
        done.append(index)
        spend(1e-6 * times[index])

    begin = comm.transport.now()
    fn(gathers, shards, numels, compute, room)
    if len(done) < len(numels):
        faults.append(f"{len(done)} of {len(numels)} units")
    return {"fault": next(iter(faults), ""), "seconds": comm.transport.now() - begin}


@each_rank
def within_room(case: Case, rank: int, record: Record) -> str | None:
    own, _, room, *_ = case.args[rank]
    size = own.element_size()
    if record.peak <= size * room + SLACK:
        return None
    said = f"rank {rank} holds {record.peak // size:,} elements at once, and the room is {room:,}"
    return f"{said}: let each unit go before the next gather begins (is it in a variable, a list, or its handle?)"


def taken(case: Case, seen: Observation) -> int:
    """Microseconds."""
    return round(max(1e6 * float(record.value["seconds"]) for record in seen.records))


def soon(case: Case, seen: Observation) -> str | None:
    """Of cases on a link; that of the scoreboard has its own line."""
    due, got = taken(case, does(EXERCISE, case)), taken(case, seen)
    if case.link is None or case.board or got <= due:
        return None
    return f"all is computed after {got:,} microseconds, and {due:,} are enough: {stands_still(case, seen)}"


def stands_still(case: Case, seen: Observation) -> str:
    for says, change in read_mistakes(SLOW).items():
        if taken(case, does(EXERCISE, case, change)) == taken(case, seen):
            return says
    return "when a unit goes, begin at once all gathers for which there is room, before you wait for another"


def hidden_cases(rng: Random) -> list[Case]:
    drawn: list[Any] = [(4, *BOARD)]
    for ranks, count in [(2, 6), (4, 9), (4, 6), (2, 12)]:
        # Which 4 divides, so that the clock's end is known to the microsecond.
        numels = [4 * rng.choice((50, 60, 100, 150, 300, 500)) for _ in range(count)]
        times = [rng.choice((5, 10, 30, 100, 200)) for _ in range(count)]
        room = rng.choice((max(numels) + rng.randint(0, 400), 2 * max(numels), max(numels) + min(numels)))
        drawn.append((ranks, numels, times, room))
    odd = [rng.randint(70, 900) for _ in range(5)]
    drawn += [(ranks, odd, [rng.randint(5, 90) for _ in odd], max(odd) + 300) for ranks in (3, 1)]
    # Room for one alone, for two, for all, exactly; a single unit; shards without elements.
    alike = [4 * rng.randint(50, 200)] * 4
    drawn += [(2, alike, [40] * 4, alike[0]), (4, alike, [40] * 4, 2 * alike[0]), (2, odd, [40] * 5, sum(odd))]
    drawn += [(4, [rng.randint(300, 500)], [40], 500), (4, [2, 401, 3, 1, 400], [20] * 5, 805)]
    # A shard times the ranks is no unit: by it the last rank, whose shards are empty, has room for all of these.
    drawn.append((4, [3] * 60, [1] * 60, 12))
    cases = [units_case(rng, *one, board=at == 0) for at, one in enumerate(drawn)]
    return [*cases, units_case(rng, 3, odd, [10] * 5, max(odd) + 100, link=None, world="processes")]


def units_case(rng, ranks, numels, times, room, link=LINK, **where):
    row = fine(rng, sum(numels))
    cut = [whole.tensor_split(ranks) for whole in row.split(list(numels))]
    own = [torch.cat([shards[rank] for shards in cut]) for rank in range(ranks)]
    args = [(mine, list(numels), room, row, list(times)) for mine in own]
    return Case(args, link=link, **where)


EXERCISE = Exercise(
    "hidden",
    hidden_cases,
    (
        Claim("it computes on each whole unit once, in order", never("fault", "rank {rank} computes on {it}")),
        Claim(
            "it gathers each unit once, in order",
            calls_are(
                lambda case, rank: [("all_gather", numel) for numel in case.args[0][1]],
                "one all_gather a unit, in the order of use",
            ),
        ),
        Claim("it never holds more than the room", within_room),
        Claim("no gather begins later than there is room for it", soon),
    ),
    run=run_hidden,
    scores=(Score("microseconds on the virtual clock", taken, None, stands_still, slack=1),),
    hints=(
        "Count what you hold: add a unit's elements when its gather begins, take them off when it is computed.",
        "Before each unit: as long as the next one fits into the room, begin its gather. Then wait, compute, let go.",
        "A handle that waits holds its result: take it out of your list (popleft, pop) when you wait for it.",
    ),
    memory=True,
    without=frozenset({"late"}),
    text=TEXT,
    answer=(hidden,),
    points=3,
)
