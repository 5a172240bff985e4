"""The exercise of lesson 07 that mends a step from a disk with four faults."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch

from zerolab.course.exercises.given import given
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import alike, short

TEXT = '''
Find the four faults

Here is what a step from a disk is given, and below it a step in a hurry. `disk.count` records belong to this rank's
shard; record k is piece k of the shard, `shard.chunk(disk.count)[k]`, and its momentum. `buffers` are two tensors as
long as a record. `update(buffer, gradient)` changes a record in place and returns the new parameters of the piece.
The sizes divide evenly. After each step every rank has the whole new row, its own file holds its records, and
`gradient` is as it was.

`disk.read(k, buffer)` and `disk.write(k, buffer)` return a handle. The transfer may take place at any time until its
`wait()` has returned, and whoever never waits has no promise at all.

```{code-cell}
:name: disk_step

class DiskStep:
    """What a step from a disk is given."""

    def __init__(self, comm, disk, buffers, update):
        self.comm, self.disk, self.buffers, self.update = comm, disk, buffers, update
        self.notes = set()
```

```{code-cell}
:name: shown_step

class HastyStep(DiskStep):
    def step(self, row, gradient):
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        mean = self.comm.reduce_scatter(gradient, average=True)
        count, writing = self.disk.count, None
        pieces = list(zip(shard.chunk(count), mean.chunk(count), strict=True))
        reading = self.disk.read(0, self.buffers[0])
        for k, (piece, part) in enumerate(pieces):
            reading.wait()
            if k + 1 < count:
                reading = self.disk.read(k + 1, self.buffers[(k + 1) % 2])
            if writing is not None:
                writing.wait()
            piece.copy_(self.update(self.buffers[k % 2], part))
            writing = self.disk.write(k, self.buffers[k % 2])
        self.comm.all_gather(shard, out=row)
```

A disk for trying it out, which does everything as late as it may. One rank, three groups of one element, a gradient
of ones:

```{code-cell}
:name: shown_disk

class LateTransfer:
    def __init__(self, wait):
        self.wait = wait


class LateDisk:
    def __init__(self, records):
        self.records, self.count = records, len(records)

    def read(self, k, buffer):
        buffer.fill_(torch.nan)
        return LateTransfer(lambda: buffer.copy_(self.records[k]))

    def write(self, k, buffer):
        return LateTransfer(lambda: self.records[k].copy_(buffer))
```

```{code-cell}
:name: shown_update

def momentum_sgd(buffer, gradient):
    main, momentum = buffer.chunk(2)
    momentum.mul_(0.5).add_(gradient)
    return main.sub_(0.125 * momentum)
```

```{code-cell}
:name: shown_run

from zerolab.ranks import launch


def three_groups(comm, step=HastyStep):
    disk = LateDisk([torch.tensor([1.0, 0.0]) for _ in range(3)])
    step(comm, disk, [torch.empty(2), torch.empty(2)], momentum_sgd).step(torch.ones(3), torch.ones(3))
    return disk.records


launch(three_groups, ranks=1, world="lockstep", device="cpu")[0]
```

Each record should be `[0.875, 1.0]`. That shows two of the faults: which line reads into a buffer that is still to be
written from, and who waits for the last write? Two more do not show here:

- **Overflow.** If the mean gradient of *any* rank's shard has an inf or a NaN, *no* rank may step. Sums can overflow
  where no summand does. Then `step` returns `False` and changes neither row nor records. Otherwise it returns `True`.
- **A full disk.** A write whose `wait()` raises an `OSError` has changed nothing in the file; another write under way
  may succeed all the same. The error leaves `step`, for the caller to hear of it. He makes room and calls `step`
  again, on all ranks with the same gradient. When the second call has returned, row and records are as after one
  undisturbed step: what was written before the error has had its step already. In between, the row may be half new
  and is not touched by the caller.

In this exercise the disks of all ranks are full at the same moment. Lesson 07 (section 8) showed how ranks agree when
one fails alone; you need not.

Right comes first: your step may wait as often as you like. `DiskStep` has made `self.notes`, an empty set, for what
one call of `step` has to tell the next. The check draws 1 to 4 ranks and several steps with other gradients, once all
zero: an inf, a -inf or a NaN on any rank in any place, the first and the last too, sums that overflow, large numbers
that do not (though their squares or their sum would), disks that are full once or twice in a step, and disks that
transfer at once or as late as they may. About fifteen lines.
'''


DiskStep: Any = given(TEXT, "disk_step")["DiskStep"]


class MendedStep(DiskStep):
    """A step whose states lie on a disk. It may fail half-way, and is gone on with by another call."""

    def step(self, row: torch.Tensor, gradient: torch.Tensor) -> bool:
        ### BEGIN SOLUTION
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        mean = self.comm.reduce_scatter(gradient, average=True)
        if self.comm.all_reduce((~mean.isfinite()).sum().float().view(1)).item():
            return False
        pieces = zip(shard.chunk(self.disk.count), mean.chunk(self.disk.count), strict=True)
        for k, (piece, part) in enumerate(pieces):
            if k not in self.notes:
                self.disk.read(k, self.buffers[0]).wait()
                piece.copy_(self.update(self.buffers[0], part))
                self.disk.write(k, self.buffers[0]).wait()
                self.notes.add(k)
        self.notes.clear()
        self.comm.all_gather(shard, out=row)
        return True
        ### END SOLUTION


MISTAKES = r"""
Let the error through, and write each group once
    piece.copy_ => write = self.disk.write\n                piece.copy_
    self.disk.write(k, self.buffers[0]).wait() => try:\n                    write(k, self.buffers[0]).wait()
    self.notes.add(k) => except OSError:\n                    write(k, self.buffers[0]).wait()
Those are records as they began: which write has ever been waited for?
    self.disk.write(k, self.buffers[0]).wait() => self.disk.write(k, self.buffers[0])
The last never came back to the file: who waits for its write?
    self.disk.write(k, self.buffers[0]).wait() => last = self.disk.write(k, self.buffers[0])
    self.notes.add(k) => _ = k + 1 == self.disk.count or last.wait()
Those are the records of the first step: what is remembered of a step that is whole?
    self.notes.clear() =>
That is what the sum of the gradients gives: take their mean
    , average=True =>
That is what ranks do that find nothing in their own shard: all agree before any state is touched
    if self.comm => bad = self.comm
    .item():\n            return False => .item()
    if k not in self.notes => if k not in self.notes and mean.isfinite().all()
    self.notes.clear() => self.notes.clear()\n        if bad:\n            return False
Some groups were updated twice: after a full disk, step() comes again, and what has been written is done
    self.notes.add(k) => pass
Some groups were updated twice: what is noted of one group must not replace what is noted of another
    self.notes.add(k) => self.notes = {k}
The group that failed is not in it: it is written when its wait() has returned
    self.disk.read => self.notes.add(k)\n                self.disk.read
a row in which its own shard alone is new: hand the shards around
    self.comm.all_gather(shard, out=row) => pass
the row as it began: new parameters go into it
    piece.copy_(self.update(self.buffers[0], part)) => self.update(self.buffers[0], part)
"""
Tensor = torch.Tensor
CALM = {"plain", "zero"}
SAID = {
    "inf": "look at the mean before any state is touched, and agree",
    "-inf": "-inf is no maximum, and an overflow all the same: look at the mean with isfinite(), and agree",
    "nan": "a NaN is not equal to inf, and no maximum is sure to keep it: look at the mean with isfinite(), and agree",
    "huge": "each of them is finite, and their sum is not: look at the mean, and agree",
    "full": "False means an overflow, so let the error through",
    "large": "a sum or a norm of large numbers overflows by itself: look at each element",
}
HUGE = 3e38
"""Finite in fp32, and twice of it is not."""
LARGE = 2.0**126
"""Two of it are finite, four are not, nor is its square."""


update = given(TEXT, "shown_update")["momentum_sgd"]


class Transfer:
    """It takes place when it is first waited for, or `at_once`; only `wait` tells of a failure."""

    def __init__(self, run: Callable[[], Any], at_once: bool) -> None:
        self._run: Callable[[], Any] | None = run
        if at_once:
            try:
                self.wait()
            except OSError as error:
                self._run = partial(complain, error)

    def wait(self) -> None:
        run, self._run = self._run, None
        if run:
            run()


def complain(error: OSError) -> None:
    raise error


class Disk:
    """Records of a rank. It does everything at the last moment that its contract allows, or at the first. A read that
    nobody waits for has no last moment: it comes when it does most harm. So one that was begun before a write from the
    same buffer, and not waited for till then, comes just before that write. A write that fails has changed nothing."""

    def __init__(self, records: list[Tensor], at_once: bool) -> None:
        self.count, self._records, self._at_once = len(records), records, at_once
        self._reads: list[tuple[int, Transfer]] = []
        self._prepare(None)

    def _prepare(self, fails_at: int | None) -> None:
        """Which write is to fail, counted from here."""
        self._writes, self._fails_at, self._failed = 0, fails_at, False

    def read(self, k: int, buffer: Tensor) -> Transfer:
        # Until it has ended a buffer holds no numbers.
        buffer.fill_(torch.nan)
        reading = Transfer(lambda: buffer.copy_(self._records[k]), self._at_once)
        self._reads.append((buffer.data_ptr(), reading))
        return reading

    def write(self, k: int, buffer: Tensor) -> Transfer:
        forgotten = [reading for place, reading in self._reads if place == buffer.data_ptr()]

        def put():
            for reading in forgotten:
                reading.wait()
            self._writes += 1
            if self._writes == self._fails_at:
                self._failed = True
                raise OSError(errno.ENOSPC, "the disk is full")
            self._records[k].copy_(buffer)

        return Transfer(put, self._at_once)


def run_step(fn, comm, row, groups, steps, full_at_write, at_once, gradients):
    """One call for each gradient, and another each time a disk failed; it does at the first of these writes in the
    first call, at the second in the second, ..."""
    row = row.clone()
    pieces = row.tensor_split(comm.size)[comm.rank].chunk(groups)
    records = [torch.cat([piece, torch.zeros_like(piece)]) for piece in pieces]
    disk = Disk(records, at_once)
    step = fn(comm, disk, [torch.empty_like(records[0]) for _ in range(2)], update)
    said, heard, files, rows = [], [], [], []
    for gradient, fails in zip(gradients, full_at_write, strict=True):
        heard.append(False)
        for fails_at in [*fails, None]:
            disk._prepare(fails_at)
            try:
                said.append(step.step(row, gradient))
                break
            except OSError:
                if not disk._failed:
                    raise
                # Whether a second error of one step is lost shows in the states.
                heard[-1] = True
        files.append(torch.cat(records))
        rows.append(row.clone())
    ill = next((at for at, step in enumerate(steps) if step not in CALM), len(steps))
    calm = {"said": said[:ill], "files": torch.stack(files)[:ill]}
    return {"calm": calm, "said": said, "heard": heard, "file": files[-1], "rows": rows}


def step_case(rng, ranks, groups, *steps, at_once=False, **where):
    """A step for each word; for numbers one in which the disk is full at this write, then at that."""
    numel = ranks * groups * rng.randint(2, 4)
    row, each = signed(rng, numel), [[signed(rng, numel) for _ in steps] for _ in range(ranks)]
    for number, step in enumerate(steps):
        *edge, kind = step.split() if isinstance(step, str) else ["full"]
        place = {"first": 0, "last": numel - 1}[edge[0]] if edge else rng.randrange(numel)
        struck = rng.randrange(ranks)
        for rank, gradients in enumerate(each):
            if kind == "huge":
                gradients[number][place] = HUGE
            elif kind in ("inf", "-inf", "nan") and rank == struck:
                gradients[number][place] = float(kind)
            elif kind in ("large", "zero"):
                gradients[number].fill_(LARGE if kind == "large" else 0)
    words = [step if isinstance(step, str) else "full" for step in steps]
    fails = [[] if isinstance(step, str) else step for step in steps]
    return Case([(row, groups, words, fails, at_once, gradients) for gradients in each], **where)


def step_cases(rng: Random) -> list[Case]:
    case, some = partial(step_case, rng), rng.randint(2, 3)
    return [
        case(2, 3, "plain", "plain", "plain"),
        case(3, 4, "plain", "zero", "plain"),
        case(1, 1, "plain", "plain", "plain"),
        case(3, 3, "plain", "inf", "plain"),
        case(2, 2, "huge", "nan", "plain"),
        case(3, 2, "last nan", "first nan", "plain"),
        case(2, 3, "plain", [2], "plain"),
        case(2, 3, "plain", [3], "plain"),
        case(4, 3, [some], "inf", [rng.randint(2, 3)], "plain"),
        case(1, 3, "plain", "inf", [some]),
        case(2, 3, "plain", [some, 1], "plain"),
        case(2, 2, "plain", "large"),
        case(2, 4, "plain", "plain", "plain", at_once=True),
        # Two writes may be under way wherever one of them fails, and the second failure may come behind the first.
        *(case(2, 4, "plain", writes, "plain", at_once=True) for writes in ([2], [1], [3], [4], [2, 2])),
        *(case(2, 4, "plain", writes, "plain") for writes in ([1], [2, 2])),
        case(2, 2, "plain", "inf", [2], world="processes"),
        case(2, 3, "plain", "-inf", "plain"),
    ]


def say_said(args, got, want):
    at = next(at for at, due in enumerate(want) if got[at] is not due)
    kind = args[2][at].split()[-1]
    look = SAID.get(kind, "True where it has stepped, False where it has skipped")
    return f"returns {short(got[at])} from step {at + 1} ({kind}), and {want[at]} is due: {look}"


def say_file(args, got, want):
    if got.isfinite().all():
        return f"ends with a file in which {int((~torch.isclose(got, want)).sum())} of {want.numel()} numbers are wrong"
    return "ends with NaNs in its file: an overflow has got into it, or a buffer before the read into it had ended"


def say_calm(args, got, want):
    if not alike(got["said"], want["said"]):
        return say_said(args, got["said"], want["said"])
    return say_file(args, got["files"], want["files"])


AFTER = (
    "After an overflow all is as before; after a full disk what has been written is done, nothing else, and no read "
    "is still under way"
)
GROUPS = "Follow one record by hand, its gradient, its update and its write"
UNHEARD = "does not let its caller hear of a full disk"
HEARD = "Is a group passed over? What is noted of a step is forgotten when the step is whole"
FIRST = "First be right: one group after the other, with a wait() behind every read and every write."
OVERFLOW = (
    "An overflow shows in the reduced mean, and only on the rank whose shard it is in. A flag that all ranks add up "
    "tells everybody.",
)
FULL = (
    "A step that fails half-way comes again, with the same gradients. Remember which groups are written, until the "
    "step is whole.",
)
EXERCISE = Exercise(
    "MendedStep",
    step_cases,
    (
        Claim(
            "without trouble, each rank's file ends with the states that the steps give",
            Gives("calm", GROUPS, say=say_calm),
        ),
        Claim("gradients stay as they were", untouched(5)),
        Claim(
            "no rank steps with gradients that are not finite, and all others step",
            Gives("said", say=say_said),
            OVERFLOW,
        ),
        Claim(
            "whoever calls hears of a full disk",
            Gives("heard", HEARD, say=lambda *_: UNHEARD),
            FULL,
        ),
        Claim("after trouble, it does so, too", Gives("file", AFTER, say=say_file), (*FULL, *OVERFLOW)),
        Claim(
            "after each step every rank has the whole row",
            Gives(
                "rows",
                "does each group's piece of the shard get what update() returns? Also of a group that was written "
                "before the disk was full, and is not updated again?",
                did="ends with",
            ),
        ),
    ),
    run=run_step,
    hints=(FIRST, *OVERFLOW, *FULL),
    mistakes=MISTAKES,
    without=frozenset({"dtype"}),
    text=TEXT,
    answer=(MendedStep,),
    points=3,
)
