"""The exercise of lesson 07 that mends a step from a disk with four faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.exercises.offloading.disk import KINDS, MOMENTUM, RATE, Disk, File, full_at, update
from zerolab.course.exercises.offloading.given import DiskStep
from zerolab.course.judge.case import Case, Observation, Record, once, plural
from zerolab.course.judge.claims import each_rank, each_time, only
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.mistakes import Wanted, compared
from zerolab.course.judge.same import alike

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


Tensor = torch.Tensor
HUGE = 3e38
"""Finite in fp32, and twice of it is not."""
LARGE = 2.0**126
"""Two of it are finite, four are not, nor is its square."""


def run_step(
    fn: Callable[..., Any], comm: Collectives, row: Tensor, steps: list[Any], groups: int, at_once: bool
) -> Any:
    """One call for each gradient, and another each time a disk failed. steps: (gradient, which write fails in the first
    call, in the second, ...)."""
    shard = row.tensor_split(comm.size)[comm.rank]
    records = [torch.cat([piece, torch.zeros_like(piece)]) for piece in shard.chunk(groups)]
    file = File(records)
    step = fn(comm, Disk(file, at_once), [torch.empty_like(records[0]) for _ in range(2)], update)
    said, heard, rows = [], [], []
    for gradient, fails in steps:
        heard.append(0)
        # Another call also where it raises of itself.
        for last, fails_at in enumerate([*fails, None, None], -1 - len(fails)):
            file.prepare(fails_at)
            try:
                said.append(step.step(row, gradient))
                break
            except OSError:
                if not last:
                    raise
                heard[-1] += 1
        rows.append(row.clone())
    return {"rows": rows, "records": torch.cat(records), "said": said, "heard": heard, "late": file.late}


def case_of(
    rng: Random, ranks: int, groups: int, kinds: Sequence[str], world: str = "lockstep", at_once: bool = False
) -> Case:
    """A step for each of `kinds`, which `KINDS` explains."""
    numel = ranks * groups * rng.randint(2, 4)
    row = signed(rng, numel)
    steps: list[list[Any]] = [[] for _ in range(ranks)]
    for kind in kinds:
        where, who = {"first nan": 0, "last nan": numel - 1}.get(kind, rng.randrange(numel)), rng.randrange(ranks)
        fails = full_at(rng, kind, groups)
        for rank in range(ranks):
            gradient = signed(rng, numel)
            if kind == "huge":
                gradient[where] = HUGE if ranks > 1 else torch.inf
            if kind.endswith(("inf", "nan")) and rank == who:
                gradient[where] = float(kind.split()[-1])
            if kind == "large":
                gradient.fill_(LARGE)
            if kind == "zero":
                gradient.zero_()
            steps[rank].append((gradient, fails))
    steps_are = ", ".join(KINDS[kind] for kind in kinds)
    said = f"on {plural(ranks, 'rank')}, {plural(groups, 'group')} a rank, steps: {steps_are}"
    said += ", the disk does everything at once" if at_once else ""
    return Case([(row.clone(), steps[rank], groups, at_once) for rank in range(ranks)], world, said)


def step_cases(rng: Random) -> list[Case]:
    plain = ("plain", "plain", "plain")
    shapes = [
        (2, 3, plain),
        (3, 4, ("plain", "zero", "plain")),
        (1, 1, plain),
        (3, 3, ("plain", "inf", "plain")),
        (2, 2, ("huge", "nan", "plain")),
        (3, 2, ("last nan", "first nan", "plain")),
        (2, 3, ("plain", "early full", "plain")),
        (2, 3, ("plain", "late full", "plain")),
        (4, 3, ("full", "inf", "full", "plain")),
        (1, 3, ("plain", "huge", "full")),
        (2, 3, ("plain", "twice", "plain")),
        (2, 2, ("plain", "large")),
    ]
    cases = [case_of(rng, ranks, groups, kinds) for ranks, groups, kinds in shapes]
    cases += [case_of(rng, 2, 4, kinds, at_once=True) for kinds in (plain, ("plain", "early full", "plain"))]
    # Two writes may be under way wherever one of them fails, and the second failure may come behind the first.
    fuller = ("first full", "nearly late full", "late full", "twice on")
    cases += [case_of(rng, 2, 4, ("plain", kind, "plain"), at_once=True) for kind in fuller]
    cases += [case_of(rng, 2, 4, ("plain", kind, "plain")) for kind in ("first full", "twice on")]
    cases.append(case_of(rng, 2, 2, ("plain", "inf", "full"), "processes"))
    return [*cases, case_of(rng, 2, 3, ("plain", "-inf", "plain"))]


def bad(case: Case, number: int) -> bool:
    total = torch.stack([args[1][number][0] for args in case.args]).sum(0)
    return not bool(total.isfinite().all())


def trained(
    case: Case,
    *,
    by: float = 0.0,
    twice: int = 0,
    passed_over: bool = False,
    steps: int | None = None,
    group: Callable[[int, int], bool] | None = None,
    still: bool = False,
    stays: bool = False,
    alone: bool = False,
    dropped: bool = False,
    between: bool = False,
) -> list[Tensor]:
    """[Row, main parameters and momentum in the file] after all or some steps, gradients divided by N or by `by`. Where
    a disk failed at write number `twice` or later, the groups before the failure are done again, and with `passed_over`
    the one that failed is not. `group(k, groups)` says whether a group's states come back to the file.
    With `still`, gradients that are zero change nothing; with `stays`, neither do those of groups that were written
    before an earlier failure. With `alone`, ranks whose own shard of the mean is finite step where others do not; with
    `dropped`, the group after the one that failed is done again, and with `between` those that were written between
    two failures."""
    row, momentum = case.args[0][0].clone(), torch.zeros_like(case.args[0][0])
    groups, ranks = case.args[0][2], case.ranks
    each = row.numel() // ranks // groups
    kept = row.clone()
    number_of = (torch.arange(row.numel()) // each) % groups
    back = torch.tensor([group is None or group(int(k), groups) for k in number_of])
    shard_of, behind = torch.arange(row.numel()) // (each * groups), torch.zeros_like(back)
    for number, (_, fails) in enumerate(case.args[0][1][:steps]):
        if (bad(case, number) and not alone) or (still and not any(args[1][number][0].any() for args in case.args)):
            continue
        fails_at = fails[0] if fails else None
        mean = torch.stack([args[1][number][0] for args in case.args]).sum(0) / (by or ranks)
        there = back & (number_of != fails_at - 1) if passed_over and fails_at else back
        again = number_of < (fails_at - 1 if fails_at and 0 < twice <= fails_at else 0)
        again = again | (number_of == fails_at) if dropped and fails_at else again
        if between and len(fails) == 2:
            again = (number_of >= fails[0] - 1) & (number_of < sum(fails) - 2)
        whole = torch.stack([part.isfinite().all() for part in mean.tensor_split(ranks)])
        moves = whole[shard_of] & ~behind
        if stays and fails_at:
            behind = behind | (number_of < fails_at - 1)
        for mask in (moves, again & moves):
            new = torch.where(mask, MOMENTUM * momentum + mean, momentum)
            row = torch.where(mask, kept - RATE * new, row)
            momentum = torch.where(there, new, momentum)
            kept = torch.where(there & mask, row, kept)
    return [row, kept, momentum]


def by_rank(case: Case, main: Tensor, momentum: Tensor) -> list[Tensor]:
    """Each rank's records, end to end."""
    groups = case.args[0][2]
    values = []
    for rank in range(case.ranks):
        pieces = [part.tensor_split(case.ranks)[rank].chunk(groups) for part in (main, momentum)]
        values.append(torch.cat([torch.cat(pair) for pair in zip(*pieces, strict=True)]))
    return values


@each_rank
def skipped_alike(case: Case, rank: int, record: Record) -> str | None:
    said = record.value["said"]
    if not all(isinstance(one, bool) for one in said):
        text = f"step() of rank {rank} returned {said}"
        return f"{text}: True where it has stepped, False where it has skipped"
    for number, one in enumerate(said):
        want = not bad(case, number)
        if one and not want:
            text = f"rank {rank} steps with gradients that are not finite (step {number + 1})"
            return f"{text}: {overlooked(case, number)}"
        if want and not one and case.args[0][1][number][1]:
            text = f"in step {number + 1} the disk is full, and rank {rank} returns False, which means an overflow"
            return f"{text}: let the error through"
        if want and not one:
            large = case.args[rank][1][number][0].abs().max() >= LARGE
            look = ": a sum or a norm of large numbers overflows by itself: look at each element" if large else ""
            return f"rank {rank} skips step {number + 1}, whose gradients are finite{look}"
    return None


def overlooked(case: Case, number: int) -> str:
    """What to look for in gradients of a step that must not be taken."""
    each = torch.stack([args[1][number][0] for args in case.args])
    if each.isnan().any():
        return (
            "a NaN is not equal to inf, and no maximum is sure to keep it: look at the mean with isfinite(), and agree"
        )
    if each.isneginf().any():
        return "-inf is no maximum, and an overflow all the same: look at the mean with isfinite(), and agree"
    if each.isfinite().all():
        return "each of them is finite, and their sum is not: look at the mean, and agree"
    return "look at the mean before any state is touched, and agree"


@each_rank
def heard_of(case: Case, rank: int, record: Record) -> str | None:
    due = [0 if bad(case, at) else len(fails) for at, (_, fails) in enumerate(case.args[0][1])]
    for number, (heard, want) in enumerate(zip(record.value["heard"], due, strict=True), 1):
        if heard > want:
            return f"step {number} of rank {rank} raises an OSError though all is well"
        # Whether a second error of one step is lost shows in the states.
        if want > heard == 0:
            said = f"in step {number} the disk is full, and rank {rank}'s caller does not hear of it"
            if any(record.value["heard"][: number - 1]):
                return f"{said}: is a group passed over? What is noted of a step is forgotten when the step is whole"
            return f"{said}: let the error through, and write each group once"
    return None


@once
def states_wanted(case: Case) -> Wanted:
    row, began = case.args[0][0], torch.zeros_like(case.args[0][0])

    def states(**slips: Any) -> list[Tensor]:
        _, kept, momentum = trained(case, **slips)
        return by_rank(case, kept, momentum)

    mistakes: dict[str, Sequence[Any]] = {
        "records as they began: which write has ever been waited for?": by_rank(case, row, began),
        "records of which the last never came back to the file": states(group=lambda k, groups: k < groups - 1),
        "records of which only the first came back to the file": states(group=lambda k, groups: k == 0),
        # Who notes nothing is caught at the second write already.
        "records in which some groups were updated twice: what is noted of one group must not replace what is noted of "
        "another": states(twice=3),
        "records in which some groups were updated twice: after a full disk, step() comes again, and what has been "
        "written is done": states(twice=2),
        "records in which groups were updated twice that were written between two failures: go on from where the last "
        "call stopped, not the first": states(between=True),
        "records without the group that failed: it is written when its wait() has returned": states(passed_over=True),
        "records in which a group was updated twice whose write was under way when another failed: wait for each "
        "write, and note those that have ended well": states(dropped=True),
        "records in which some groups stand still: what is noted of a step is forgotten when the step is whole": states(
            stays=True
        ),
        "what ranks do that find nothing in their own shard: all agree before any state is touched": states(alone=True),
        "the states of before where gradients are zero: the momentum moves on all the same": states(still=True),
        "the records of the first step: what is remembered of a step that is whole?": states(steps=1),
        "what the sum of the gradients gives: take their mean": states(by=1),
        "what gradients give that are divided by N twice": states(by=case.ranks**2),
    }
    look = "which group's states are in which record? A buffer may be read into when its last write has been waited for"
    return Wanted(states(), mistakes, look, did="ends with")


def plain_right(case: Case, seen: Observation) -> str | None:
    """States where neither an overflow nor a full disk comes in between."""
    calm = all(not bad(case, at) and not fails for at, (_, fails) in enumerate(case.args[0][1]))
    skipped = any(False in record.value["said"] for record in seen.records)
    return states_right(case, seen) if calm and not skipped else None


def states_right(case: Case, seen: Observation) -> str | None:
    hint = numbers_are_finite(case, seen)
    if hint or not (hint := compared(states_wanted(case), only(seen, "records"))):
        return hint
    late = [rank for rank, record in enumerate(seen.records) if record.value["late"]]
    full = any(fails for _, fails in case.args[0][1])
    look = "when a write fails, what is still under way?" if full else "whose handle is dropped?"
    return f"rank {late[0]} {FORGOTTEN}: {look}" if late else hint


@each_rank
def numbers_are_finite(case: Case, rank: int, record: Record) -> str | None:
    if bool(record.value["records"].isfinite().all()):
        return None
    said = f"rank {rank}'s file has numbers that are none"
    if any(bad(case, number) for number in range(len(case.args[0][1]))):
        return f"{said}, an overflow has got into it: look before you touch any state"
    return f"{said}: a record was written from a buffer that was being read into, or updated before its read had ended"


def row_right(case: Case, seen: Observation, index: int) -> str | None:
    """After each step: a later one would hide what an earlier has done."""
    return compared(row_wanted(case, index + 1), seen)


@once
def row_wanted(case: Case, steps: int) -> Wanted:
    good, began = trained(case, steps=steps)[0], case.args[0][0]

    def everywhere(row: Tensor) -> list[Tensor]:
        return [row] * case.ranks

    mine = []
    for rank in range(case.ranks):
        row = began.clone()
        row.tensor_split(case.ranks)[rank].copy_(good.tensor_split(case.ranks)[rank])
        mine.append(row)
    mistakes: dict[str, Sequence[Any]] = {
        "the row as it began: new parameters go into it": everywhere(began),
        "a row in which its own shard alone is new: hand the shards around": mine,
    }
    look = "does each group's piece of the shard get what update() returns?"
    if case.args[0][1][steps - 1][1]:
        look += " Also of a group that was written before the disk was full, and is not updated again?"
    return Wanted(everywhere(good), mistakes, look, "ends with")


@each_rank
def gradients_stay(case: Case, rank: int, record: Record) -> str | None:
    pairs = zip(record.after[1], case.args[rank][1], strict=True)
    stay = all(alike(after, before) for (after, _), (before, _) in pairs)
    return None if stay else f"it overwrote rank {rank}'s gradient, which belongs to the caller: work on a copy"


FORGOTTEN = "has begun a read that nobody waits for, and it ends when the buffer holds something newer"
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
        Claim("without trouble, each rank's file ends with the states that the steps give", plain_right),
        Claim("gradients stay as they were", gradients_stay),
        Claim("no rank steps with gradients that are not finite, and all others step", skipped_alike, OVERFLOW),
        Claim("whoever calls hears of a full disk", heard_of, FULL),
        Claim("after trouble, it does so, too", states_right, (*FULL, *OVERFLOW)),
        Claim("after each step every rank has the whole row", each_time("rows", row_right, "after step {}")),
    ),
    run=run_step,
    hints=(FIRST, *OVERFLOW, *FULL),
    text=TEXT,
    answer=(MendedStep,),
    points=3,
)
