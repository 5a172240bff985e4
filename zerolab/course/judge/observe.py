"""Runs a learner's function on ranks and notes what it does. It judges nothing."""

from __future__ import annotations

import gc
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import torch

from zerolab.collectives import Collectives, Handle, Request, Transport
from zerolab.collectives.call import Call
from zerolab.collectives.handle import Order
from zerolab.collectives.transport import WrappedTransport
from zerolab.course.judge.bounds import ANSWER_FILE, OffLimits, guarded, watch_process
from zerolab.course.judge.case import (
    Case,
    Observation,
    Record,
    Trouble,
    encode,
    legible,
    record_from_json,
    record_to_json,
)
from zerolab.course.judge.exercise import Exercise, Run, alone
from zerolab.course.judge.promise import Promised, promised
from zerolab.errors import InputError, RankError
from zerolab.memory import Tracker
from zerolab.ranks import RankFailure, launch
from zerolab.ranks.pickling import dumps, loads
from zerolab.ranks.printing import format_ranked

CASE_SECONDS = 4.0
"""How long one call may take. The reference needs a hundredth of a second."""
STARTED_SECONDS = 30.0
"""How long real processes may take, which may have to be started first: from the fork server, or each by itself."""


class Notes(WrappedTransport):
    """A transport that notes the receiver and the bytes of each message."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.sent: list[tuple[int, int]] = []
        self.dtypes: set[str] = set()

    def clear(self) -> None:
        self.sent.clear()
        self.dtypes.clear()

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        self.sent.append((dst, tensor.nbytes))
        self.dtypes.add(str(tensor.dtype).removeprefix("torch."))
        return super().isend(tensor, dst, tag)

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        self.sent.append((dst, outgoing.nbytes))
        super().exchange(outgoing, dst, incoming, src, tag)


class Issued:
    """An order of calls that notes them in `calls` as they are issued, whether they run at once or later."""

    def __init__(self, inner: Order, calls: list[Call]) -> None:
        self.inner, self.calls = inner, calls

    def issue(self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool) -> Handle:
        self.calls.append(call)
        return self.inner.issue(call, run, tensors, result, now)

    def close(self) -> None:
        self.inner.close()


def noted(comm: Collectives, calls: list[Call]) -> Collectives:
    """`comm` as an answer gets it: its calls are noted, and those of the groups that the answer makes of it."""
    comm._issuer = Issued(comm._issuer, calls)
    comm = guarded(comm)
    make = comm._in_group
    comm._in_group = lambda group: noted(make(group), calls)  # type: ignore[method-assign]
    return comm


def on_rank(
    comm: Collectives,
    fn: Callable[..., Any],
    calls: Sequence[list[tuple[Any, ...]]],
    run: Callable[..., Any],
    memory: bool,
    ours: bool,
    promise: Any,
    progress: str,
) -> list[dict[str, Any]]:
    """One rank's part in calls that come one after the other, with so many ranks' arguments: `run` calls `fn`, and what
    it does is noted."""
    if not ours:
        watch_process()
    issued: list[Call] = []
    comm.transport = notes = Notes(comm.transport)
    comm = noted(comm, issued)
    records: list[dict[str, Any]] = []
    values = []
    for args in calls:
        PROGRESS[progress] = len(records)
        mine = args[comm.rank]
        asked = fn if promise is None else Promised(fn, promise)
        value, peak, left, late = measured(run, asked, comm, mine) if memory else (run(asked, comm, *mine), 0, 0, 0)
        record = Record(
            value,
            list(mine),
            list(notes.sent),
            [(call.name, call.numel) for call in issued],
            peak,
            left,
            late,
            sorted({call.dtype for call in issued if call.dtype} | notes.dtypes),
            asked.unlike if isinstance(asked, Promised) else "",
        )
        records.append(record_to_json(record))
        values.append(value)
        notes.clear()
        issued.clear()
    for noted_one, value in zip(records[:-1], values, strict=False):
        noted_one["spoilt"] = json.dumps(encode(value)) != json.dumps(noted_one["value"])
    return records


PROGRESS: dict[str, int] = {}
"""How many calls of a series in lockstep have come to their end, by its name."""


def measured(run: Run, fn: Callable[..., Any], comm: Collectives, mine: tuple[Any, ...]) -> tuple[Any, int, int, int]:
    """What a call gives, and the bytes that it held at the worst moment, left behind, and left to the collector."""
    given = list(tensors_in(mine))
    with Tracker(lambda: {GIVEN: given}) as tracker:
        value = run(fn, comm, *mine)
    peak = max((sample.total - sample.bytes.get(GIVEN, 0) for sample in tracker.samples), default=0)
    returned = returned_bytes(tensors_in(value))
    left, late = made(tracker) - returned, 0
    if left > 0:
        # A graph may hold itself until it is collected, which takes long: only if something is there.
        gc.collect()
        late, left = left, made(tracker) - returned
        late -= left
    return value, peak, left, late


GIVEN = "given"


def made(tracker: Tracker) -> int:
    """Bytes alive that the caller did not give."""
    now = tracker.now()
    return sum(now.values()) - now.get(GIVEN, 0)


def returned_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """What an answer may leave alive. Views of one storage count no more than that storage: they may not make up for
    something that is kept."""
    sizes: dict[int, int] = {}
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        place = tensor.untyped_storage()._cdata
        sizes[place] = min(sizes.get(place, 0) + tensor.nbytes, storages[place])
    return sum(sizes.values())


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors that a rank was given: they are the caller's, and do not count as its own."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in tensors_in(part)]
    return []


def observe(exercise: Exercise, fn: Callable[..., Any], case: Case, ours: bool = False) -> Observation:
    """Run `fn` as the case says; every error of the learner's code becomes the observation's trouble. A program of
    `ours` is not watched."""
    warm_up()
    return patiently(case, lambda seconds: observe_once(exercise, fn, case, seconds, ours))


Seen = TypeVar("Seen", Observation, list[Observation] | tuple[int, Observation])


def patiently(case: Case, look: Callable[[float], Seen], least: float = CASE_SECONDS) -> Seen:
    """What `look` sees in so many seconds, or in four times as many where the clock ran out while others had the
    processor: that says nothing of an answer."""
    begin = time.process_time()
    seen = look(least)
    last = seen if isinstance(seen, Observation) else seen[-1]
    idle = time.process_time() - begin < 0.75 * least
    late = isinstance(last, Observation) and last.trouble and last.trouble.kind == "TimeOut"
    return look(4 * least) if late and idle and case.world == "lockstep" else seen


@cache
def warm_up() -> None:
    """What torch imports at its first use must not count as a learner's time: optimizers, and modes. And what was there
    before is nobody's garbage here: it is not searched when memory is judged."""
    import torch._dynamo

    with Tracker():
        torch.optim.AdamW([torch.zeros(2, requires_grad=True)], fused=True).step()
    gc.freeze()


class Packed:
    """A function that is packed for ranks once: an exercise's cases are many. A rank unpacks the function itself."""

    def __init__(self, fn: Any) -> None:
        self.packed = dumps(fn)

    def __reduce__(self) -> tuple[Any, ...]:
        return loads, (self.packed,)


def packed_once(fn: Callable[..., Any]) -> Any:
    """The function packed, or itself where it cannot be: `launch` says why."""
    try:
        return Packed(fn)
    except Exception:
        return fn


def observe_once(
    exercise: Exercise, fn: Callable[..., Any], case: Case, seconds: float, ours: bool = False
) -> Observation:
    """Run `fn` on a case, in lockstep for so many seconds at most."""
    seen = observe_calls(exercise, fn, case, [case.args], seconds, ours)
    return seen[0] if isinstance(seen, list) else seen[1]


def observe_calls(
    exercise: Exercise,
    fn: Callable[..., Any],
    case: Case,
    calls: Sequence[list[tuple[Any, ...]]],
    seconds: float,
    ours: bool = False,
) -> list[Observation] | tuple[int, Observation]:
    """What came of calls one after the other in the world of `case`; or the first that met trouble, and the trouble."""
    progress = secrets.token_hex(8)
    try:
        records = launch(
            on_rank,
            fn,
            calls,
            exercise.run,
            exercise.memory and case.world == "lockstep" and len(calls) == 1,
            ours,
            promised(exercise.answer),
            progress,
            ranks=len(calls[0]),
            world=case.world,
            timeout=seconds if case.world == "lockstep" else STARTED_SECONDS,
            device="cpu",
            collectives="ring",
            link=case.link,
            prints="quiet",
        )
    except (RankError, InputError) as error:
        trouble = Observation(trouble=trouble_of(error), printed=shown(getattr(error, "printed", [])))
        return PROGRESS.pop(progress, 0), trouble
    PROGRESS.pop(progress, None)
    printed = shown(records.printed)
    return [
        Observation([record_from_json(record) for record in of_ranks], seconds=records.seconds, printed=printed)
        for of_ranks in zip(*records, strict=True)
    ]


def shown(printed: Sequence[str]) -> str:
    """What ranks printed, with the rank before each line if several did."""
    return legible(format_ranked([legible(text) for text in printed]))


def observe_all(exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case]) -> Iterator[Observation]:
    """What came of the cases, in order, up to the first that ends in trouble."""
    fn = packed_once(fn)
    for series in in_series(cases):
        found = observe_series(exercise, fn, series) if series[0].before else [observe(exercise, fn, series[0])]
        yield from found
        if found[-1].trouble:
            return


def in_series(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases by themselves, and those that come one after the other together."""
    series: list[Case] = []
    for case in cases:
        if series and (case.before is None or case.before is not series[-1].itself):
            yield series
            series = []
        series.append(case)
    if series:
        yield series


def observe_series(exercise: Exercise, fn: Callable[..., Any], series: Sequence[Case]) -> list[Observation]:
    """What came of cases one after the other, in one process, after that before the first; a plain function makes all
    ranks' calls there."""
    plain = exercise.run is alone
    all_cases = [case for case in (series[0].before, *series) if case]
    calls = [[args] for case in all_cases for args in case.args] if plain else [case.args for case in all_cases]
    lengths = [case.ranks if plain else 1 for case in all_cases]
    seen = patiently(
        series[0],
        lambda seconds: observe_calls(exercise, fn, series[0], calls, seconds),
        CASE_SECONDS + 0.5 * len(calls),
    )
    if isinstance(seen, tuple):
        at = next(place for place in range(len(lengths)) if sum(lengths[: place + 1]) > seen[0])
        at = max(at, 1)
        return [*(observe_series(exercise, fn, series[: at - 1]) if at > 1 else []), seen[1]]
    found = iter(seen)
    together = [[next(found) for _ in range(length)] for length in lengths]
    came = [replace(those[0], records=[record for one in those for record in one.records]) for those in together]
    # What becomes of the first call's result is seen with the second.
    if any(record.spoilt for record in came[0].records):
        came[1] = replace(came[1], records=[replace(record, spoilt=True) for record in came[1].records])
    return came[1:]


def trouble_of(error: BaseException) -> Trouble:
    """What a learner should read of an error."""
    if isinstance(error, RankFailure) and error.error.endswith(f".{OffLimits.__name__}"):
        return Trouble(OffLimits.__name__, str(error).partition(": ")[2], where(error.traceback))
    if isinstance(error, RankFailure):
        return Trouble(error.error or "died", str(error), where(error.traceback))
    if isinstance(error, RankError):
        kind = "TimeOut" if "did not finish within" in str(error) else type(error).__name__
        return Trouble(kind, str(error))
    return Trouble(type(error).__name__, str(error) or f"it raises {type(error).__name__}")


def where(text: str) -> str:
    """The innermost line of the learner's own code in a traceback's text, as "line 3 of ring_all_gather"."""
    frames = re.findall(r'File "([^"]*)", line (\d+), in (\S+)', text)
    own = [(line, function) for file, line, function in frames if ANSWER_FILE.search(file)]
    return f"line {own[-1][0]}, in {own[-1][1]}" if own else ""
