"""Exercise of lesson 08: data that go on where the run before has stopped, on any number of ranks."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

from zerolab.course.exercises.checkpoints.shared import Single
from zerolab.course.exercises.given import given
from zerolab.course.judge.case import Case, decode, encode, plural
from zerolab.course.judge.claims import never
from zerolab.course.judge.exercise import Claim, Exercise
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


order = given(TEXT, "order")["order"]
MISTAKES = r"""
Each epoch has an order of its own
    order(self.seed, at // self.samples, => order(self.seed, 0,
Rank r has the r-th part of the batch, neighbours, and not every N-th sample
    self.rank * self.part => self.rank
    range(first, first + self.part) => range(first, first + self.batch - self.rank, self.batch // self.part)
Each rank gets the whole batch; a part is its own
    batch // ranks => batch
    self.rank * self.part => 0
All ranks get the same part
    self.rank * self.part => 0
An epoch's last samples are dropped; a batch goes on with the next epoch
    first = => rest = -self.done % self.samples\n        self.done += rest * (rest < self.batch)\n        first =
Asking for the state changes nothing
    return self.done => self.done += self.batch\n        return self.done - self.batch
It begins with the first sample again: what is kept?
    state or 0 => 0
What state() has returned goes on changing as the run goes on: return a copy
    self.done = state or 0 => self.kept = list(state or [0])
    first = self.done => first = self.kept[0]
    self.done += self.batch => self.kept[0] += self.batch
    return self.done => return self.kept
A step is skipped: the next one has not been given to anybody
    return self.done => return self.done + self.batch
A state that is kept as a number of steps, of another batch: count samples
    state or 0 => (state or 0) * batch
    return self.done => return self.done // self.batch
It goes on where one rank's own samples end: count those of all ranks
    return self.done => return self.done // self.batch * self.part
The place in the epoch is kept, and which epoch it is gets lost
    return self.done => return self.done % self.samples
"""
LOOK = "Which sample of the row of all epochs comes next?"
NTH = ("the first run", "the run that goes on", "the run that goes on from that")


def run_data(fn: Any, comm: Any, samples: int, seed: int, runs: list[tuple[int, ...]]) -> dict[str, Any]:
    """What each rank gets in each step of runs of so many (ranks, batch, steps, steps more before it died), each of
    which goes on from the checkpoint of the one before. Ranks come in another order than by their numbers, since no
    rank knows of the others."""
    noted: dict[str, Any] = {**{run: {} for run in NTH}, "no json": "", "changed": False}
    state: list[Any] = []
    for number, (ranks, batch, steps, lost) in enumerate(runs):
        states = [deepcopy(state) for _ in range(ranks)]
        data = [fn(samples, batch, seed, rank, ranks, *states[rank]) for rank in range(ranks)]
        kept = None
        for step in range(steps + lost):
            if step == steps:
                kept, *_ = [one.state() for one in data]
            got = [decode(encode(one.next())) for one in reversed(data)][::-1]
            called = f"in step {step + 1} of {NTH[number]} rank"
            noted[NTH[number]] |= {f"{called} {rank}": part for rank, part in enumerate(got)}
        noted["changed"] |= any(one != state for one in states)
        try:
            state = [json.loads(json.dumps(kept))]
        except (TypeError, ValueError) as error:
            return {**noted, "no json": f"{type(kept).__name__} ({error})"}
    return noted


def gets(args: tuple[Any, ...], got: Any, want: Any) -> str:
    where = next(where for where in want if not alike(got[where], want[where]))
    look = "" if isinstance(got[where], list) else ". Return a list of numbers"
    return f"{where} gets {short(got[where])}, and {short(want[where])} is due{look}"


def cases(rng: Random) -> list[Case]:
    def odd() -> int:
        return 2 * rng.randint(6, 10) + 1

    some = rng.randint
    kinds: list[Any] = [
        # A batch that divides an epoch, and one that does not.
        (24, (1, 4, some(7, 10), 2), (1, 4, 7, 1)),
        (odd(), (2, 6, some(4, 7), 3), (2, 6, 5, 1)),
        (odd(), (4, 8, some(3, 6), 1), (4, 8, some(2, 4), 1), (4, 8, 3, 1)),
        # At the very end of an epoch, and before the first step. Another case has as many samples, in other orders.
        (24, (3, 6, 4, 1), (3, 6, 2, 1), (3, 6, 3, 1)),
        (odd(), (2, 4, 0, 2), (2, 4, 2, 1), (2, 4, 2, 1)),
        # Other ranks.
        (odd(), (4, 12, some(2, 5), 2), (2, 12, some(1, 3), 1), (3, 12, 3, 1)),
        (odd(), (1, 6, some(5, 8), 1), (3, 6, some(1, 3), 1), (2, 6, 2, 1)),
        # Another batch.
        (odd(), (2, 8, some(3, 6), 1), (2, 4, some(2, 5), 1), (4, 8, 3, 1)),
        (40, (3, 6, some(7, 10), 2), (4, 12, some(1, 4), 1), (1, 5, 4, 1)),
        # Batches that are longer than an epoch.
        (7, (2, 16, some(2, 5), 1), (4, 16, some(1, 3), 1), (4, 20, 2, 1)),
        (1, (2, 2, 3, 1), (1, 2, 2, 1)),
    ]
    found = []
    for (samples, *runs), seed in zip(kinds, rng.sample(range(1000), len(kinds)), strict=True):
        of = [f"{steps} of {batch} on {plural(ranks, 'rank')}" for ranks, batch, steps, _ in runs]
        found.append(Case([(samples, seed, runs)], about=f"{samples} samples, steps: {', then '.join(of)}"))
    return found


EXERCISE = Exercise(
    "ResumableData",
    cases,
    (
        Claim("ranks get the samples in their order, from the first on", Single(NTH[0], LOOK, say=gets)),
        Claim("what is kept is JSON", never("no json", "state() returned a {it}: return what JSON can hold")),
        Claim("a run that goes on gets what an undisturbed one would have had", Single(NTH[1], LOOK, say=gets)),
        Claim("and one that goes on from a run that went on", Single(NTH[2], LOOK, say=gets)),
        Claim("the state that it is given stays as it was", never("changed", "it changed that state: work on a copy")),
    ),
    run=run_data,
    hints=(
        "Think of one row: all samples of epoch 0 in their order, then those of epoch 1, and so on. Where are we now?",
        "Place `at` of that row is order(seed, at // samples, samples)[at % samples]. One number says where all are.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(ResumableData,),
    points=2,
)
