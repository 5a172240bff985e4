"""The exercise of lesson 07 on the overlapped walk: a disk and a virtual clock, and buffers that are watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.same import short

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


Times = list[tuple[int, int, int]]
"""Microseconds of a group's read, computation and write."""
BOARD: Times = [
    (300, 900, 100),
    (100, 100, 100),
    (900, 200, 300),
    *[(100, 900, 100), (100, 100, 100), (900, 200, 100)],
    *[(300, 200, 300), (300, 250, 300)],
    *[(300, 600, 100), (900, 600, 300), (200, 200, 200), (100, 900, 300)],
]
"""With 3 buffers the third read is long, and begins before the first group is computed; the sixth is long, too, and has
to begin with the end of a write, during a long computation and not after it; and at the end the computation is what
everybody waits for, so that it may not wait for a write."""
BOARD_BUFFERS = (2, 3)


def walk_cases(rng: Random) -> list[Case]:
    cases = [
        Case(
            [(list(BOARD), list(BOARD_BUFFERS))], about=f"{len(BOARD)} groups, through 2 and then 3 buffers", board=True
        )
    ]
    for groups, buffers in [(5, 2), (6, 3), (4, 1), (7, 4), (2, 3), (1, 1), (1, 2), (9, 2), (3, 3), (8, 3)]:
        times = [tuple(rng.randint(1, 9) * 100 for _ in range(3)) for _ in range(groups)]
        what = f"{plural(groups, 'group')}, {plural(buffers, 'buffer')}, times in microseconds {times}"
        if groups > 4:
            what = f"{plural(groups, 'group')}, {plural(buffers, 'buffer')}, times of each drawn anew"
        cases.append(Case([(times, [buffers])], about=what))
    return [*cases, *slow_cases(rng)]


def slow_cases(rng: Random) -> list[Case]:
    """With any number of buffers, reads, computations or writes that all others wait for: whoever trusts that a
    transfer has ended by then is wrong in one of them."""
    cases = []
    for buffers in range(1, 5):
        for slow, name in enumerate(("reads", "computations", "writes")):
            groups = 2 * buffers + rng.randint(1, 2)
            times = [[rng.randint(1, 3) * 100 for _ in range(3)] for _ in range(groups)]
            for each in times:
                each[slow] *= 10
            what = f"{groups} groups, {plural(buffers, 'buffer')}, {name} are by far the slowest"
            cases.append(Case([([tuple(each) for each in times], [buffers])], about=what))
    return cases


class Ticket:
    """A transfer under way, as an answer sees it."""

    def __init__(self, wait: Callable[[], None], then: Callable[[Callable[[], Any]], None]) -> None:
        self.wait, self.then = wait, then


class Transfer:
    def __init__(self, kind: str, group: int, end: int) -> None:
        self.kind, self.group, self.end = kind, group, end
        self.ended = self.known = False
        self.callbacks: list[Callable[[], Any]] = []


class Desk:
    """A disk that does a read and a write at a time, each in order of issue, and the computation beside it. It notes
    the first fault, and goes on."""

    def __init__(self, times: Times, buffers: int) -> None:
        self.times, self.buffers = times, buffers
        self.now = self.issued = 0
        self.free = {"read": 0, "write": 0}
        self.under_way: list[tuple[int, int, Transfer]] = []
        self.calling = 0
        # What each buffer has gone through last: ("read", transfer), ("compute", group) or ("write", transfer).
        self.last: dict[int, tuple[str, Any]] = {}
        self.done: dict[str, list[int]] = {"read": [], "compute": [], "write": []}
        self.fault: list[Any] = []
        self.begun: dict[str, list[Transfer]] = {"read": [], "write": []}

    def read(self, group: int, buffer: int) -> Ticket:
        self.check("read", group, buffer)
        kind, what = self.last.get(buffer, ("", None))
        if group in self.done["read"]:
            self.say("again", "read", group, buffer)
        elif kind == "write" and not what.ended:
            self.say("early", group, buffer, what.group)
        elif kind == "write" and not what.known:
            self.say("luck", group, buffer, what.group)
        elif kind == "read":
            self.say("full", group, buffer, what.group)
        elif kind == "compute":
            self.say("unwritten", group, buffer, what)
        transfer = self.begin("read", group, 0)
        self.last[buffer] = ("read", transfer)
        return self.ticket(transfer)

    def compute(self, group: int, buffer: int) -> None:
        self.check("compute", group, buffer)
        kind, what = self.last.get(buffer, ("", None))
        if self.calling:
            self.say("thread", "compute", group, buffer)
        elif group in self.done["compute"]:
            self.say("again", "computed", group, buffer)
        elif kind != "read" or what.group != group:
            self.say("absent", group, buffer)
        elif not what.ended or not what.known:
            self.say("unread", group, buffer)
        elif group != len(self.done["compute"]):
            self.say("order", group, len(self.done["compute"]))
        self.done["compute"].append(group)
        self.last[buffer] = ("compute", group)
        self.run_until(self.now + self.times[group][1])

    def write(self, group: int, buffer: int) -> Ticket:
        self.check("write", group, buffer)
        if group in self.done["write"]:
            self.say("again", "written", group, buffer)
        elif self.last.get(buffer) != ("compute", group):
            self.say("raw", group, buffer)
        transfer = self.begin("write", group, 2)
        self.last[buffer] = ("write", transfer)
        return self.ticket(transfer)

    def close(self) -> None:
        """After the answer has returned."""
        count = len(self.times)
        for kind in ("read", "compute", "write"):
            missing = sorted(set(range(count)) - set(self.done[kind]))
            if missing:
                self.say("missing", kind, missing[0])
        lost = [transfer.group for transfer in self.begun["write"] if not transfer.ended]
        if lost:
            self.say("lost", lost[0], len(lost))

    # Inside.

    def handed_out(self) -> tuple[Callable[..., Any], ...]:
        """Read, compute and write as plain functions: a bound method would lead to the desk."""
        return tuple(plain_function(method) for method in (self.read, self.compute, self.write))

    def check(self, verb: str, group: int, buffer: int) -> None:
        if type(group) is not int or not 0 <= group < len(self.times):
            raise ValueError(f"{verb}({group!r}, {buffer!r}): groups are 0 to {len(self.times) - 1}")
        if type(buffer) is not int or not 0 <= buffer < self.buffers:
            raise ValueError(f"{verb}({group}, {buffer!r}): buffers are 0 to {self.buffers - 1}")

    def say(self, *fault: Any) -> None:
        self.fault = self.fault or list(fault)

    def begin(self, kind: str, group: int, which: int) -> Transfer:
        self.done[kind].append(group)
        self.issued += 1
        self.free[kind] = max(self.now, self.free[kind]) + self.times[group][which]
        transfer = Transfer(kind, group, self.free[kind])
        self.begun[kind].append(transfer)
        heappush(self.under_way, (transfer.end, self.issued, transfer))
        return transfer

    def know(self, transfer: Transfer) -> None:
        """That a transfer has ended; so those of its kind that were begun before it have ended, too."""
        begun = self.begun[transfer.kind]
        for earlier in begun[: begun.index(transfer) + 1]:
            earlier.known = True

    def ticket(self, transfer: Transfer) -> Ticket:
        def wait() -> None:
            if self.calling:
                self.say("thread", "wait", transfer.group, -1)
            self.run_until(max(self.now, transfer.end))
            self.know(transfer)

        def then(callback: Callable[[], Any]) -> None:
            if transfer.ended:
                self.call(transfer, callback)
            else:
                transfer.callbacks.append(callback)

        return Ticket(wait, then)

    def run_until(self, time: int) -> None:
        """Let time pass: transfers end, and what is to follow follows at that moment."""
        while self.under_way and self.under_way[0][0] <= time:
            end, _, transfer = heappop(self.under_way)
            self.now = max(self.now, end)
            transfer.ended = True
            for callback in transfer.callbacks:
                self.call(transfer, callback)
        self.now = max(self.now, time)

    def call(self, transfer: Transfer, callback: Callable[[], Any]) -> None:
        self.know(transfer)
        self.calling += 1
        try:
            callback()
        finally:
            self.calling -= 1


def plain_function(method: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
    return lambda group, buffer: method(group, buffer)


def run_walk(fn: Callable[..., Any], comm: Any, times: Times, buffers: list[int]) -> Any:
    """The walk through each number of buffers. [The first fault, microseconds of each]."""
    seconds = []
    for count in buffers:
        desk = Desk(times, count)
        value = fn(len(times), count, *desk.handed_out())
        if type(value).__name__ == "generator":
            raise TypeError("the walk is a generator, whose code runs when somebody asks: call compute, yield nothing")
        desk.close()
        seconds.append(desk.now)
        if desk.fault:
            return {"fault": desk.fault, "seconds": seconds}
    return {"fault": [], "seconds": seconds}


def walked(case: Case, seen: Observation) -> str | None:
    fault = seen.records[0].value["fault"]
    return f"{words(*fault)}" if fault else None


def words(kind: str, *about: Any) -> str:
    """A fault in a sentence."""
    texts: dict[str, Callable[..., str]] = {
        "again": lambda verb, k, b: f"group {k} is {verb} twice: which group does a delayed call mean when it runs?",
        "early": lambda k, b, j: (
            f"read({k}, {b}) begins while buffer {b} is still being written with group {j}: its bytes would be mixed"
        ),
        "luck": lambda k, b, j: (
            f"read({k}, {b}) begins when the write of group {j} has ended, but nobody had asked: "
            "wait() or then() makes sure of it"
        ),
        "full": lambda k, b, j: (
            f"read({k}, {b}) overwrites group {j}, which was read into buffer {b} and not computed on"
        ),
        "unwritten": lambda k, b, j: f"read({k}, {b}) overwrites group {j} in buffer {b} before it is written",
        "thread": lambda verb, k, b: (
            f"{verb} for group {k} runs in what a then() calls: that is the disk's thread, which must only begin "
            "transfers"
        ),
        "absent": lambda k, b: f"compute({k}, {b}): group {k} was not read into buffer {b}",
        "unread": lambda k, b: f"compute({k}, {b}) begins before anybody has waited for the read of group {k}",
        "order": lambda k, due: f"group {k} is computed when group {due} is due: keep the order",
        "raw": lambda k, b: f"write({k}, {b}): group {k} was not computed in buffer {b}",
        "missing": lambda kind, k: {
            "read": f"group {k} is never read",
            "compute": f"group {k} is never computed",
            "write": f"group {k} is never written, so its new states are lost",
        }[kind],
        "lost": lambda k, count: (
            f"it returns while {plural(count, 'write')} are under way, of group {k} to begin with: the file is not "
            "whole yet"
        ),
    }
    return texts[kind](*about) if kind in texts else short(about)


def walk_microseconds(case: Case, seen: Observation) -> int:
    return int(sum(seen.records[0].value["seconds"]))


def walk_target(case: Case) -> int:
    times, buffers = case.args[0]
    return sum(least(times, count) for count in buffers)


def least(times: Sequence[tuple[int, int, int]], buffers: int, waits: bool = False, in_turn: bool = False) -> int:
    """Reads, computations and writes one at a time each, a read as soon as its buffer is written; a walk that `waits`
    begins a write, and what comes after it, once the write before has ended, and one that reads `in_turn` begins a read
    only when the computation has ended beside which its buffer was written."""
    read = computed = 0
    written: list[int] = []
    ends: list[int] = []
    for k, (reading, computing, writing) in enumerate(times):
        if k >= buffers:
            read = max(read, written[k - buffers], ends[k - buffers + 1] if in_turn and buffers > 1 else 0)
        read += reading
        computed = max(read, computed) + computing
        ends.append(computed)
        if waits and written:
            computed = max(computed, written[-1])
        written.append(max(computed, written[-1] if written else 0) + writing)
    return written[-1]


def stands_still(case: Case, seen: Observation) -> str:
    times, buffers = case.args[0]
    first, second = seen.records[0].value["seconds"]
    alone = sum(map(sum, times))
    if first >= alone and second >= alone:
        return "nothing goes on at once: begin to read the next group before you compute"
    if second == least(times, buffers[1], waits=True):
        return "you wait for a write before you begin the next: the disk takes writes in turn, so go on to compute"
    if second not in (least(times, buffers[1]), least(times, buffers[1], in_turn=True)):
        return (
            "also with 3 buffers somebody stands still: read as far ahead as there are buffers, wait as late as you can"
        )
    if first == least(times, buffers[0]):
        return (
            "with 3 buffers a read begins only when a group is computed, and its buffer was free before: tell then() "
            "what shall follow as soon as the write has begun"
        )
    with_3 = "nobody stands still" if second == least(times, buffers[1]) else "somebody stands still at times"
    return (
        f"with 3 buffers {with_3}, with 2 somebody does: you wait for a write where the disk itself could begin the "
        "next read"
    )


EXERCISE = Exercise(
    "overlapped_walk",
    walk_cases,
    (Claim("each group is read, computed and written, and no buffer is used too early", walked),),
    scores=(
        Score(
            "microseconds on the virtual clock, of both walks",
            walk_microseconds,
            walk_target,
            stands_still,
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
