"""The exercise of lesson 07 on the overlapped walk: a disk and a virtual clock, and buffers that are watched."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import most, never
from zerolab.course.judge.exercise import Claim, Exercise, Score

TEXT = """
Overlapped

Sub-groups 0 to `groups - 1` lie on a disk. Each is read into a buffer, computed on there, and written back from it.
There are `buffers` buffers, numbered from 0.

- `read(k, b)` begins to read group k into buffer b, and returns a handle at once. `write(k, b)` begins to write it
  back, likewise.
- `compute(k, b)` returns when group k, in buffer b, is computed. Compute in order, each group once.
- `handle.wait()` returns when that transfer has ended. `handle.then(function)` calls `function()` at the moment when
  it ends, on the disk's own thread, or now if it has ended. Functions given to `then` have run before `wait()`
  returns. That thread may begin transfers; it must not wait and must not compute.

The disk does one read and one write at a time, each in the order in which they were begun. A buffer may be read into
once the write from it has ended, and that is only known from `wait` or `then`. Return when all is written.

Times are virtual: time passes in `compute` and in `handle.wait()` only, and whoever waits for anything else, such as
a queue, waits for ever. The check draws 1 to 12 groups, 1 to 4 buffers (sometimes more than groups), and other times
for each transfer and computation. On the scoreboard: with 2 buffers and with 3, nobody stands still who could do
something. In lesson 07 a walk waited for a write before it computed. With 2 buffers that is too slow. About fifteen
lines.
"""


def overlapped_walk(groups: int, buffers: int, read, compute, write) -> None:
    """Read, compute and write all groups through so many buffers, each beside the other two."""
    ### BEGIN SOLUTION
    reads, writes = {}, {}

    def begin(k):
        reads[k] = read(k, k % buffers)

    for k in range(min(groups, buffers)):
        begin(k)
    for k in range(groups):
        if k >= buffers:
            writes[k - buffers].wait()  # its end has begun read k
        reads[k].wait()
        compute(k, k % buffers)
        writes[k] = write(k, k % buffers)
        if k + buffers < groups:
            writes[k].then(lambda k=k: begin(k + buffers))
    for writing in writes.values():
        writing.wait()
    ### END SOLUTION


WASTES = r"""
nothing goes on at once: begin to read the next group before you compute
    def overlapped_walk(groups, buffers, read, compute, write):
        for k in range(groups):
            read(k, 0).wait()
            compute(k, 0)
            write(k, 0).wait()
you wait for a write before you begin the next: the disk takes writes in turn, so go on to compute
    writes[k] = => _ = k and writes[k - 1].wait()\n        writes[k] =
also with 3 buffers somebody stands still: read as far ahead as there are buffers, wait as late as you can
    writes[k] = write(k, k % buffers) => writes[k] = write(k, k % buffers)\n        writes[k].wait()
"""
Times = list[tuple[int, int, int]]
"""Microseconds of a group's read, computation and write."""
BOARD: Times = [
    *[(300, 900, 100), (100, 100, 100), (900, 200, 300), (100, 900, 100), (100, 100, 100), (900, 200, 100)],
    *[(300, 200, 300), (300, 250, 300), (300, 600, 100), (900, 600, 300), (200, 200, 200), (100, 900, 300)],
]
"""With 3 buffers the third read is long, and begins before the first group is computed; the sixth is long, too, and has
to begin with the end of a write, during a long computation and not after it; and at the end the computation is what
everybody waits for, so that it may not wait for a write."""


def walk_cases(rng: Random) -> list[Case]:
    def case(groups: int, buffers: int, slowest: int | None = None) -> Case:
        units = [[rng.randint(1, 9 if slowest is None else 3) * 100 for _ in range(3)] for _ in range(groups)]
        times = [tuple(10 * unit if at == slowest else unit for at, unit in enumerate(each)) for each in units]
        return Case([(times, [buffers])])

    shapes = [(5, 2), (6, 3), (4, 1), (7, 4), (2, 3), (1, 1), (1, 2), (9, 2), (3, 3), (8, 3)]
    return [
        Case([(list(BOARD), [2, 3])], about="12 groups, through 2 and then 3 buffers", board=True),
        *(case(*shape) for shape in shapes),
        # Reads, computations or writes that all others wait for: whoever trusts that a transfer has ended by then is
        # wrong in one of them.
        *(case(2 * n + rng.randint(1, 2), n, slowest) for n in range(1, 5) for slowest in range(3)),
    ]


class Transfer:
    """A transfer under way, as an answer sees it."""

    def __init__(self, desk: Desk, kind: str, group: int, end: int) -> None:
        self._desk, self._kind, self._group, self._end = desk, kind, group, end
        self._ended = self._known = False
        self._following: list[Callable[[], Any]] = []

    def wait(self) -> None:
        self._desk.forbid_thread("wait", self._group)
        self._desk.run_until(self._end)
        self._desk.know(self)

    def then(self, function: Callable[[], Any]) -> None:
        if self._ended:
            self._desk.call(self, function)
        else:
            self._following.append(function)


class Desk:
    """A disk that does a read and a write at a time, each in order of issue, and the computation beside it. It notes
    the first fault, and goes on."""

    def __init__(self, times: Times, buffers: int) -> None:
        self.times, self.buffers = times, buffers
        self.now = self.calling = 0
        self.fault = ""
        self.begun: dict[str, list[Transfer]] = {"read": [], "write": []}
        self.done: dict[str, list[int]] = {"read": [], "compute": [], "write": []}
        # What each buffer has gone through last, of which group, and in which transfer.
        self.last: dict[int, tuple[str, int, Any]] = {}

    def say(self, fault: str) -> None:
        self.fault = self.fault or fault

    def read(self, k: int, b: int) -> Transfer:
        last, j, transfer = self.checked("read", k, b)
        if last in ("read", "compute"):
            self.say(f"read({k}, {b}) overwrites group {j} in buffer {b} before it is written")
        elif last and not transfer._known:
            unknown = f"read({k}, {b}) begins when nobody knows whether the write of group {j} from there has ended"
            self.say(f"{unknown}: wait() or then() makes sure of it")
        return self.begin("read", k, b, self.times[k][0])

    def compute(self, k: int, b: int) -> None:
        self.forbid_thread("compute", k)
        due = len(self.done["compute"])
        last, j, transfer = self.checked("compute", k, b)
        if (last, j) != ("read", k):
            self.say(f"compute({k}, {b}): group {k} was not read into buffer {b}")
        elif not transfer._known:
            self.say(f"compute({k}, {b}) begins before anybody has waited for the read of group {k}")
        elif k != due:
            self.say(f"group {k} is computed when group {due} is due: keep the order")
        self.last[b] = "compute", k, None
        self.run_until(self.now + self.times[k][1])

    def write(self, k: int, b: int) -> Transfer:
        last, j, _ = self.checked("write", k, b)
        if (last, j) != ("compute", k):
            self.say(f"write({k}, {b}): group {k} was not computed in buffer {b}")
        return self.begin("write", k, b, self.times[k][2])

    def close(self) -> None:
        """After the answer has returned."""
        for verb, done in self.done.items():
            if missing := sorted(set(range(len(self.times))) - set(done)):
                self.say(f"nobody calls {verb} for group {missing[0]}")
        if left := [one._group for one in self.begun["write"] if not one._ended]:
            self.say(f"it returns while the write of group {left[0]} is under way: the file is not whole yet")

    # Inside.

    def checked(self, verb: str, k: int, b: int) -> tuple[str, int, Any]:
        """What the buffer has gone through last."""
        if not (type(k) is type(b) is int and 0 <= k < len(self.times) and 0 <= b < self.buffers):
            there = f"groups are 0 to {len(self.times) - 1}, and buffers are 0 to {self.buffers - 1}"
            raise ValueError(f"{verb}({k!r}, {b!r}): {there}")
        if k in self.done[verb]:
            self.say(f"{verb} for group {k} is called twice: which group does a delayed call mean when it runs?")
        self.done[verb].append(k)
        return self.last.get(b, ("", k, None))

    def forbid_thread(self, verb: str, k: int) -> None:
        if self.calling:
            said = f"{verb} for group {k} runs in what a then() calls: that is the disk's thread"
            self.say(f"{said}, which must only begin transfers")

    def begin(self, kind: str, k: int, b: int, time: int) -> Transfer:
        before = max([self.now, *(one._end for one in self.begun[kind])])
        transfer = Transfer(self, kind, k, before + time)
        self.begun[kind].append(transfer)
        self.last[b] = kind, k, transfer
        return transfer

    def know(self, transfer: Transfer) -> None:
        """That a transfer has ended; so those of its kind that were begun before it have ended, too."""
        for earlier in self.begun[transfer._kind]:
            earlier._known = earlier._known or earlier._end <= transfer._end

    def run_until(self, time: int) -> None:
        """Let time pass: transfers end, and what is to follow follows at that moment."""
        begun = self.begun.values()
        while ending := [one for those in begun for one in those if not one._ended and one._end <= time]:
            transfer = min(ending, key=lambda one: one._end)
            self.now = max(self.now, transfer._end)
            transfer._ended = True
            for function in transfer._following:
                self.call(transfer, function)
        self.now = max(self.now, time)

    def call(self, transfer: Transfer, function: Callable[[], Any]) -> None:
        self.know(transfer)
        self.calling += 1
        function()
        self.calling -= 1


def run_walk(fn, comm, times, buffers):
    """The walk through each number of buffers: the first fault, and microseconds."""
    total = 0
    for count in buffers:
        desk = Desk(times, count)
        # Plain functions: a bound method would lead to the desk.
        fn(len(times), count, *(lambda k, b, do=do: do(k, b) for do in (desk.read, desk.compute, desk.write)))
        desk.close()
        total += desk.now
        if desk.fault:
            break
    return {"fault": desk.fault, "microseconds": total}


EXERCISE = Exercise(
    "overlapped_walk",
    walk_cases,
    (Claim("each group is read, computed and written, and no buffer is used too early", never("fault", "{it}")),),
    scores=(
        Score(
            "microseconds on the virtual clock, of both walks",
            most("microseconds"),
            None,
            "somebody stands still: read as far ahead as there are buffers, wait as late as you can, and do not wait "
            "for a write where the disk itself could begin the next read",
            wastes=WASTES,
        ),
    ),
    hints=(
        "Group k uses buffer k % buffers. At the start all buffers are free: as many reads can begin.",
        "writes[k].then(function) calls function when that write has ended. What may begin at that moment?",
        "The read of group k + buffers. Before you wait for a read, wait for the write that begins it; functions made "
        "in a loop see the loop's last k, unless a default (`lambda k=k: ...`) keeps theirs.",
    ),
    run=run_walk,
    text=TEXT,
    answer=(overlapped_walk,),
    points=2,
)
