"""Runs a learner's function on ranks and notes what it does. It judges nothing."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

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
from zerolab.course.judge.same import alike
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

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        self.sent.append((dst, tensor.nbytes))
        return super().isend(tensor, dst, tag)

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        self.sent.append((dst, outgoing.nbytes))
        super().exchange(outgoing, dst, incoming, src, tag)


class Issued:
    """An order of calls that notes them in `calls` as they are issued, whether they run at once or later."""

    def __init__(self, inner: Order, calls: list[tuple[str, int]]) -> None:
        self.inner, self.calls = inner, calls

    def issue(self, call: Call, run: Callable[[], None], tensors: list[torch.Tensor], result: Any, now: bool) -> Handle:
        self.calls.append((call.name, call.numel))
        return self.inner.issue(call, run, tensors, result, now)

    def close(self) -> None:
        self.inner.close()


def noted(comm: Collectives, calls: list[tuple[str, int]]) -> Collectives:
    """`comm` as an answer gets it: its calls are noted, and those of the groups that the answer makes of it."""
    comm._issuer = Issued(comm._issuer, calls)
    comm = guarded(comm)
    make = comm._in_group
    comm._in_group = lambda group: noted(make(group), calls)  # type: ignore[method-assign]
    return comm


def on_rank(
    comm: Collectives,
    fn: Callable[..., Any],
    args: list[tuple[Any, ...]],
    run: Callable[..., Any],
    memory: bool,
    before: list[tuple[Any, ...]] | None,
) -> dict[str, Any]:
    """One rank's part: `run` calls `fn`; what it does is noted, but for a first call with the arguments `before`."""
    watch_process()
    calls: list[tuple[str, int]] = []
    comm.transport = notes = Notes(comm.transport)
    comm, mine = noted(comm, calls), args[comm.rank]
    if before:
        run(fn, comm, *before[comm.rank])
        notes.sent.clear()
        calls.clear()
    if not memory:
        value, peak, left, late = run(fn, comm, *mine), 0, 0, 0
    else:
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
    return record_to_json(Record(value, list(mine), notes.sent, calls, peak, left, late))


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


def observe(exercise: Exercise, fn: Callable[..., Any], case: Case) -> Observation:
    """Run `fn` as the case says; every error of the learner's code becomes the observation's trouble."""
    warm_up()
    begin = time.process_time()
    seen = observe_once(exercise, fn, case, CASE_SECONDS)
    idle = time.process_time() - begin < 0.75 * CASE_SECONDS
    if seen.trouble and seen.trouble.kind == "TimeOut" and idle and case.world == "lockstep":
        # The clock ran out while others had the processor: that says nothing of the answer.
        return observe_once(exercise, fn, case, 4 * CASE_SECONDS)
    return seen


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


def observe_once(exercise: Exercise, fn: Callable[..., Any], case: Case, seconds: float) -> Observation:
    """Run `fn` on a case, in lockstep for so many seconds at most."""
    try:
        records = launch(
            on_rank,
            fn,
            case.args,
            exercise.run,
            exercise.memory and case.world == "lockstep",
            case.before.args if case.before else None,
            ranks=case.ranks,
            world=case.world,
            timeout=seconds if case.world == "lockstep" else STARTED_SECONDS,
            device="cpu",
            collectives="ring",
            link=case.link,
            prints="quiet",
        )
    except (RankError, InputError) as error:
        return Observation(trouble=trouble_of(error), printed=shown(getattr(error, "printed", [])))
    found = [record_from_json(record) for record in records]
    return Observation(found, seconds=records.seconds, printed=shown(records.printed))


def shown(printed: Sequence[str]) -> str:
    """What ranks printed, with the rank before each line if several did."""
    return legible(format_ranked([legible(text) for text in printed]))


def observe_all(exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case]) -> Iterator[Observation]:
    """What came of the cases, in order, up to the first that ends in trouble. A plain function is called once more in
    each, by a rank that has just called it for the case before, and as this one's other ranks: it must say the same."""
    fn = packed_once(fn)
    before: Case | None = None
    for case in cases:
        seen = observe(exercise, fn, case)
        if exercise.run is alone and not seen.trouble:
            if before and (kept := kept_from(before, exercise, fn, case, seen)):
                seen = Observation(trouble=kept)
            before = case
        yield seen
        if seen.trouble:
            return


NEARLY = 1e-9
"""How near floats of two calls with the same arguments are."""


def kept_from(
    before: Case, exercise: Exercise, fn: Callable[..., Any], case: Case, seen: Observation
) -> Trouble | None:
    """The trouble with a function that answers otherwise after another call than by itself."""
    mine, *others = case.args
    again = observe(replace(exercise, run=after([*before.args, *others])), fn, replace(case, args=[mine]))
    if again.trouble and "raised" not in again.trouble.message:
        return again.trouble
    if again.trouble:
        at = f" ({again.trouble.where})" if again.trouble.where else ""
        said = f"called with other arguments before, {again.trouble.message}{at}: what stays from call to call?"
        return Trouble("Kept", f"{case.about}: {said}")
    first, second = (record.value for record in (seen.records[0], again.records[0]))
    # What torch solves may differ in its last bits with the place in memory; what was kept differs in more.
    if json.dumps(encode(first)) == json.dumps(encode(second)) or alike(second, first, NEARLY):
        return None
    said = "it returns something else when it was called with other arguments before: what stays from call to call?"
    return Trouble("Kept", f"{case.about}: {said}")


def after(others: Sequence[tuple[Any, ...]]) -> Run:
    """A way to call a plain function that calls it with other arguments first."""

    def run(fn: Callable[..., Any], comm: Collectives, *args: Any) -> Any:
        for other in others:
            fn(*other)
        return fn(*args)

    return run


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
