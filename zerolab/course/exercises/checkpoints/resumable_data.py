"""Exercise of lesson 08: data that go on where the run before has stopped, on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from zerolab.course.exercises.twice import snapshot
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.exercise import Claim, Exercise, Test
from zerolab.course.judge.mistakes import named
from zerolab.course.judge.same import alike, short

TEXT = '''
The batches of a run that nothing disturbed

A run died, and goes on from its last checkpoint. It should see the samples that it would have seen, each as often, on
as many ranks as there are now. A data set has `samples` samples, which are numbered. In each epoch they come in
another order:

```{code-cell}
:name: order

import random


def order(seed: int, epoch: int, samples: int) -> list[int]:
    """The numbers of all samples, in the order in which they come in this epoch."""
    return random.Random(f"{seed}/{epoch}").sample(range(samples), samples)


[order(seed=1, epoch=epoch, samples=5) for epoch in (0, 1, 2)]
```

Write a class. Each rank makes its own object: `ResumableData(samples, batch, seed, rank, ranks)`.

- `next()` returns a list with the numbers of the samples that this rank gets in the next step. Epochs follow each
  other, from number 0 on, as one endless row. A step takes the next `batch` samples of it. Where an epoch ends within
  a batch, the batch goes on with the next epoch, or with several if it is longer than they are. The batch is cut into
  `ranks` equal parts of samples that follow each other, and rank r gets part r, counted from 0. `batch` is a multiple
  of `ranks`.
- `state()` returns what a checkpoint needs to keep of this: numbers, texts, lists or dicts, since it goes through
  JSON. To ask changes nothing, and what was returned does not change later. Ranks ask at the same moment, and only
  rank 0's answer is kept.
- `ResumableData(samples, batch, seed, rank, ranks, state)`, with what came back from JSON, goes on with the step
  behind the checkpoint. `samples` and `seed` are those of before; `ranks` and `batch` may be others. The first sample
  of the new run is the one behind the last of the old.

For example the parts of batches of 4 on two ranks, of the samples above:

```{code-cell}
:name: shown_parts

row = order(seed=1, epoch=0, samples=5) + order(seed=1, epoch=1, samples=5)
{f"step {at // 4}, rank {at % 4 // 2}": row[at : at + 2] for at in range(0, 8, 2)}
```

The check runs up to three runs, one from the checkpoint of the other, on 1 to 4 ranks. It draws data sets of 1 to 40
samples, batches that divide an epoch or do not or are longer, checkpoints before the first step, at the end of an
epoch and within one. Each run goes on a little after its checkpoint before it dies. About twelve lines.
'''


class ResumableData:
    """A rank's samples of every step, from the first or from a checkpoint on."""

    def __init__(self, samples: int, batch: int, seed: int, rank: int, ranks: int, state=None):
        ### BEGIN SOLUTION
        self.samples, self.batch, self.seed = samples, batch, seed
        self.rank, self.part = rank, batch // ranks
        self.done = state or 0
        ### END SOLUTION

    def next(self) -> list[int]:
        """The samples of this rank in the next step."""
        ### BEGIN SOLUTION
        first = self.done + self.rank * self.part
        self.done += self.batch
        return [
            order(self.seed, at // self.samples, self.samples)[at % self.samples]
            for at in range(first, first + self.part)
        ]
        ### END SOLUTION

    def state(self):
        """What a checkpoint keeps."""
        ### BEGIN SOLUTION
        return self.done
        ### END SOLUTION


Steps = list[list[list[int]]]
"""For each step the samples of each rank."""


@dataclass(frozen=True)
class Run:
    """A run of `steps` steps up to its checkpoint, and of `lost` more before it died."""

    ranks: int
    batch: int
    steps: int
    lost: int = 1


def run_data(fn: Callable[..., Any], comm: Any, samples: int, seed: int, runs: list[tuple[int, ...]]) -> Any:
    """For each run what its ranks got before its checkpoint and after it. Each goes on from the one before. Ranks come
    in another order than by their numbers, since no rank knows of the others."""
    noted: list[dict[str, Steps]] = []
    state: list[Any] = []
    changed = False
    for run in (Run(*one) for one in runs):
        ranks = range(run.ranks)
        states = [deepcopy(state) for _ in ranks]
        data = [fn(samples, run.batch, seed, rank, run.ranks, *states[rank]) for rank in ranks]
        got = [in_turn(data) for _ in range(run.steps)]
        said, *_ = [one.state() for one in data]
        lost = [in_turn(data) for _ in range(run.lost)]
        changed = changed or any(one != state for one in states)
        noted.append({"got": got, "lost": lost})
        try:
            state = [json.loads(json.dumps(said))]
        except (TypeError, ValueError) as error:
            return {"runs": noted, "no json": f"{type(said).__name__} ({error})", "changed": changed}
    return {"runs": noted, "no json": "", "changed": changed}


def in_turn(data: Sequence[Any]) -> list[Any]:
    """What each rank gets in a step; the last rank asks first."""
    return [snapshot(one.next()) for one in reversed(data)][::-1]


# What is right, and what goes wrong.


@cache
def order(seed: int, epoch: int, samples: int) -> list[int]:
    return Random(f"{seed}/{epoch}").sample(range(samples), samples)


Part = Callable[[Sequence[int], int, int], Sequence[int]]


def neighbours(batch: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    part = len(batch) // ranks
    return batch[rank * part : (rank + 1) * part]


def given(
    samples: int,
    seed: int,
    run: Run,
    at: int,
    steps: int,
    *,
    part: Part = neighbours,
    sample: Callable[[int, int, int], int] = lambda seed, at, samples: order(seed, at // samples, samples)[
        at % samples
    ],
    place: Callable[[int, int, int], int] = lambda at, samples, batch: at,
) -> Steps:
    """What the ranks of a run get in so many steps, from place `at` on in the row of all samples."""
    found = []
    for _ in range(steps):
        at = place(at, samples, run.batch)
        batch = [sample(seed, one, samples) for one in range(at, at + run.batch)]
        found.append([[*part(batch, rank, run.ranks)] for rank in range(run.ranks)])
        at += run.batch
    return found


def whole_epochs(at: int, samples: int, batch: int) -> int:
    """The next place at which a batch fits into its epoch."""
    return at if at % samples + batch <= samples else (at // samples + 1) * samples


FROM_THE_START: dict[str, dict[str, Any]] = {
    "Each epoch has an order of its own": {"sample": lambda seed, at, samples: order(seed, 0, samples)[at % samples]},
    "Rank r has the r-th part of the batch, neighbours, and not every N-th sample": {
        "part": lambda batch, rank, ranks: batch[rank::ranks]
    },
    "Each rank gets the whole batch; a part is its own": {"part": lambda batch, rank, ranks: batch},
    "Ranks ask in any order, and know nothing of each other: what do your objects share?": {
        "part": lambda batch, rank, ranks: neighbours(batch, ranks - 1 - rank, ranks)
    },
    "All ranks get the same part": {"part": lambda batch, rank, ranks: neighbours(batch, 0, ranks)},
    "An epoch's last samples are dropped; a batch goes on with the next epoch": {"place": whole_epochs},
    "The samples come as they are numbered; `order` says which comes when": {
        "sample": lambda seed, at, samples: at % samples
    },
    "The first epoch is number 0": {
        "sample": lambda seed, at, samples: order(seed, at // samples + 1, samples)[at % samples]
    },
}


def place_of(runs: Sequence[Run], number: int) -> int:
    """How many samples all ranks have had before a run."""
    return sum(run.steps * run.batch for run in runs[:number])


def wrong_places(samples: int, runs: Sequence[Run], number: int) -> dict[str, int]:
    """Where a run begins that goes on wrongly."""
    at, run, before = place_of(runs, number), runs[number], runs[number - 1]
    steps = sum(one.steps for one in runs[:number])
    own = sum(one.steps * one.batch // one.ranks for one in runs[:number])
    return {
        "It begins with the first sample again: what is kept?": 0,
        "What state() has returned goes on changing as the run goes on: return a copy": at + before.lost * before.batch,
        "A step is skipped: the next one has not been given to anybody": at + before.batch,
        "A step comes twice: what was given before the checkpoint is done": at - before.batch,
        "A state that is kept as a number of steps, of another batch: count samples": steps * run.batch,
        "It goes on where one rank's own samples end: count those of all ranks": own,
        "A rank's own samples are counted, and there are other ranks now: count those of all ranks": own * run.ranks,
        "The place in the epoch is kept, and which epoch it is gets lost": at % samples,
        "The epoch is kept, and the place in it gets lost": at // samples * samples,
        "It goes on with the next epoch, and the rest of this one gets lost": -(-at // samples) * samples,
        "What the run before had itself been given as a state is forgotten": before.steps * before.batch,
    }


def run_right(number: int, which: Callable[[Sequence[Run], int], bool]) -> Test:
    """The run of this number, where it is one of those that the claim is about."""

    def test(case: Case, seen: Observation) -> str | None:
        samples, seed, plain = case.args[0]
        runs, noted = [Run(*one) for one in plain], seen.records[0].value["runs"]
        if number >= min(len(runs), len(noted)) or not which(runs, number):
            return None
        run, got = runs[number], [*noted[number]["got"], *noted[number]["lost"]]
        at, count = place_of(runs, number), len(got)
        want = given(samples, seed, run, at, count)
        if alike(got, want):
            return None
        step = next(step for step in range(count) if not alike(got[step], want[step]))
        rank = next(rank for rank in range(run.ranks) if not alike(got[step][rank], want[step][rank]))
        known = {says: given(samples, seed, run, at, count, **slip) for says, slip in FROM_THE_START.items()}
        if number:
            places = wrong_places(samples, runs, number)
            known |= {says: given(samples, seed, run, begin, count) for says, begin in places.items() if begin >= 0}
        look = "Which sample of the row of all epochs comes next?"
        if step >= run.steps and number == 0:
            look = "Asking for the state changes nothing"
        if not isinstance(got[step][rank], list):
            look = "Return a list of numbers"
        said = f"in step {step + 1} of {nth(number)} rank {rank} gets {short(got[step][rank])}, and "
        return f"{said}{short(want[step][rank])} is due. {named(known, lambda steps: alike(got, steps)) or look}"

    return test


def nth(number: int) -> str:
    return ("the first run", "the run that goes on", "the run that goes on from that")[number]


def alike_run(runs: Sequence[Run], number: int) -> bool:
    return (runs[number].ranks, runs[number].batch) == (runs[number - 1].ranks, runs[number - 1].batch)


def any_run(runs: Sequence[Run], number: int) -> bool:
    return True


def kept_as_json(case: Case, seen: Observation) -> str | None:
    if said := seen.records[0].value["no json"]:
        return f"state() returned a {said}: return what JSON can hold: numbers, texts, lists, dicts of texts"
    return None


def state_stays(case: Case, seen: Observation) -> str | None:
    if not seen.records[0].value["changed"]:
        return None
    return "it changed the state that it was given, which belongs to the caller: work on a copy"


# Cases.


def case_of(rng: Random, samples: int, *runs: Run) -> Case:
    shapes = ", then ".join(
        f"{plural(run.steps, 'step')} of {run.batch} on {plural(run.ranks, 'rank')}" for run in runs
    )
    args = samples, rng.randint(0, 999), [(run.ranks, run.batch, run.steps, run.lost) for run in runs]
    return Case([args], about=f"{samples} samples, {shapes}")


def apart(rng: Random, make: Callable[[], tuple[int, list[Run]]]) -> Case:
    """Of some draws the one in which most mistakes begin at other places."""

    def told_apart(drawn: tuple[int, list[Run]]) -> int:
        samples, runs = drawn
        return sum(len({*wrong_places(samples, runs, at).values(), place_of(runs, at)}) for at in range(1, len(runs)))

    samples, runs = max((make() for _ in range(20)), key=told_apart)
    return case_of(rng, samples, *runs)


def cases(rng: Random) -> list[Case]:
    def some(least: int, most: int) -> int:
        return rng.randint(least, most)

    def odd() -> int:
        return 2 * some(6, 10) + 1

    drawn: list[Callable[[], tuple[int, list[Run]]]] = [
        # A batch that divides an epoch, and one that does not.
        lambda: (24, [Run(1, 4, some(7, 10), 2), Run(1, 4, 7)]),
        lambda: (odd(), [Run(2, 6, some(4, 7), 3), Run(2, 6, 5)]),
        lambda: (odd(), [Run(4, 8, some(3, 6), 1), Run(4, 8, some(2, 4)), Run(4, 8, 3)]),
        # At the very end of an epoch, and before the first step.
        lambda: (24, [Run(3, 6, 4, 1), Run(3, 6, 2), Run(3, 6, 3)]),
        lambda: (odd(), [Run(2, 4, 0, 2), Run(2, 4, 2), Run(2, 4, 2)]),
        # Other ranks.
        lambda: (odd(), [Run(4, 12, some(2, 5), 2), Run(2, 12, some(1, 3)), Run(3, 12, 3)]),
        lambda: (odd(), [Run(1, 6, some(5, 8), 1), Run(3, 6, some(1, 3)), Run(2, 6, 2)]),
        # Another batch.
        lambda: (odd(), [Run(2, 8, some(3, 6), 1), Run(2, 4, some(2, 5)), Run(4, 8, 3)]),
        lambda: (40, [Run(3, 6, some(7, 10), 2), Run(4, 12, some(1, 4)), Run(1, 5, 4)]),
        # Batches that are longer than an epoch.
        lambda: (7, [Run(2, 16, some(2, 5), 1), Run(4, 16, some(1, 3)), Run(4, 20, 2)]),
        lambda: (1, [Run(2, 2, 3), Run(1, 2, 2)]),
    ]
    return [apart(rng, make) for make in drawn]


EXERCISE = Exercise(
    "ResumableData",
    cases,
    (
        Claim("ranks get the samples in their order, from the first on", run_right(0, any_run)),
        Claim("what is kept is JSON", kept_as_json),
        Claim("a run that goes on gets what an undisturbed one would have had", run_right(1, alike_run)),
        Claim("so does one with other ranks, or with another batch", run_right(1, any_run)),
        Claim("and one that goes on from a run that went on", run_right(2, any_run)),
        Claim("the state that it is given stays as it was", state_stays),
    ),
    run=run_data,
    hints=(
        "Think of one row: all samples of epoch 0 in their order, then those of epoch 1, and so on. Where are we now?",
        "Place `at` of that row is order(seed, at // samples, samples)[at % samples]. One number says where all are.",
    ),
    text=TEXT,
    answer=(ResumableData,),
    points=2,
)
