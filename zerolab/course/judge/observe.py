"""Runs a learner's function on ranks and notes what it does. It judges nothing."""

from __future__ import annotations

import gc
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle, Request, Transport
from zerolab.collectives.call import Call
from zerolab.collectives.handle import Order
from zerolab.collectives.transport import WrappedTransport
from zerolab.course.judge.bounds import ANSWER_FILE, OffLimits, guarded, watch_process
from zerolab.course.judge.case import Case, Observation, Record, Trouble, encode, legible
from zerolab.course.judge.case import record_from_json as from_json
from zerolab.course.judge.case import record_to_json as to_json
from zerolab.course.judge.exercise import Exercise, Run, alone
from zerolab.course.judge.promise import held_to, promised
from zerolab.errors import InputError, RankError
from zerolab.memory import Tracker
from zerolab.ranks import RankFailure, launch
from zerolab.ranks.pickling import loads, pack_function
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
    """`comm` as an answer gets it: its calls are noted, and those of groups that the answer makes of it."""
    comm._issuer = Issued(comm._issuer, calls)
    comm = guarded(comm)
    make = comm._in_group
    comm._in_group = lambda group: noted(make(group), calls)  # type: ignore[method-assign]
    return comm


def on_rank(
    comm: Collectives,
    packed: bytes,
    calls: Sequence[list[tuple[Any, ...]]],
    run: Run,
    memory: bool,
    ours: bool,
    promise: Any,
) -> list[dict[str, Any]]:
    """One rank's part in calls, each with all ranks' arguments, that come one after the other, and what is noted."""
    if not ours:
        watch_process()
    fn, _, _ = loads(packed)
    issued: list[Call] = []
    comm.transport = notes = Notes(comm.transport)
    comm = noted(comm, issued)
    records: list[dict[str, Any]] = []
    values = []
    for args in calls:
        mine, unlike = args[comm.rank], list[str]()
        asked = held_to(promise, fn, unlike)
        value, peak, left, late = measured(run, asked, comm, mine) if memory else (run(asked, comm, *mine), 0, 0, 0)
        called = [(call.name, call.numel) for call in issued]
        dtypes = sorted({call.dtype for call in issued if call.dtype} | notes.dtypes)
        said = "".join(unlike[:1])
        record = Record(value, list(mine), list(notes.sent), called, peak, left, late, dtypes, said)
        records.append(to_json(record))
        values.append(value)
        for past in (notes.sent, notes.dtypes, issued):
            past.clear()
    for value, before, after in zip(values, records, records[1:], strict=False):
        after["spoilt"] = json.dumps(encode(value)) != json.dumps(before["value"])
    return records


def measured(run: Run, fn: Callable[..., Any], comm: Collectives, mine: tuple[Any, ...]) -> tuple[Any, int, int, int]:
    """What a call gives, and the bytes that it held at the worst moment, left behind, and left to the collector."""
    given = tensors_in(mine)
    with Tracker(lambda: {"given": given}) as tracker:
        value = run(fn, comm, *mine)

    def left() -> int:
        return sum(nbytes for label, nbytes in tracker.now().items() if label != "given") - returned

    peak = max((sample.total - sample.bytes.get("given", 0) for sample in tracker.samples), default=0)
    returned = returned_bytes(tensors_in(value))
    if (at_once := left()) <= 0:
        return value, peak, at_once, 0
    # A graph may hold itself until it is collected, which takes long: only if something is there.
    gc.collect()
    in_the_end = left()
    return value, peak, in_the_end, at_once - in_the_end


def returned_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """What an answer may leave alive. Views of one storage do not make up for something else that is kept."""
    sizes: Counter[int] = Counter()
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = min(sizes[storage._cdata] + tensor.nbytes, storage.nbytes())
    return sizes.total()


def tensors_in(value: Any) -> list[torch.Tensor]:
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
    """What came of one case. A program of `ours` is not watched."""
    return next(observe_all(exercise, fn, [case], ours))


def observe_calls(
    exercise: Exercise, packed: bytes, case: Case, calls: Sequence[list[tuple[Any, ...]]], ours: bool
) -> list[Observation]:
    """What came of calls one after the other in the world of `case`, or the trouble that they met, alone. In lockstep
    each has so many seconds, or four times as many where the clock ran out while others had the processor: that says
    nothing of an answer."""
    lockstep = case.world == "lockstep"
    memory = exercise.memory and lockstep and len(calls) == 1
    least = CASE_SECONDS * len(calls)
    given = (on_rank, packed, calls, exercise.run, memory, ours, promised(exercise.answer))
    on: dict[str, Any] = {"world": case.world, "link": case.link, "device": "cpu", "collectives": "ring"}
    for seconds in (least, 4 * least) if lockstep else (STARTED_SECONDS,):
        begin = time.process_time()
        try:
            records = launch(*given, ranks=len(calls[0]), timeout=seconds, prints="quiet", **on)
        except (RankError, InputError) as error:
            seen = [Observation(trouble=trouble_of(error), printed=shown(getattr(error, "printed", [])))]
            late = "did not finish within" in str(error) and time.process_time() - begin < 0.75 * seconds
        else:
            one = Observation(seconds=records.seconds, printed=shown(records.printed))
            seen = [replace(one, records=[*map(from_json, of_ranks)]) for of_ranks in zip(*records, strict=True)]
            late = False
        if not late:
            break
    return seen


@cache
def warm_up() -> None:
    """What torch imports at its first use must not count as a learner's time: optimizers, and modes."""
    import torch._dynamo

    with Tracker():
        torch.optim.AdamW([torch.zeros(2, requires_grad=True)], fused=True).step()


def shown(printed: Sequence[str]) -> str:
    return legible(format_ranked([legible(text) for text in printed]))


def observe_all(
    exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case], ours: bool = False
) -> Iterator[Observation]:
    """What came of the cases, in order, up to the first that ends in trouble."""
    warm_up()
    try:
        # Once: an exercise's cases are many.
        packed = pack_function(fn, (), {})
    except InputError as error:
        yield Observation(trouble=trouble_of(error))
        return
    for series in in_series(cases):
        for seen in observe_series(exercise, packed, series, ours):
            yield seen
            if seen.trouble:
                return


def in_series(cases: Sequence[Case]) -> Iterator[list[Case]]:
    series: list[Case] = []
    for case in cases:
        if series and (case.before is None or case.before is not series[-1].itself):
            yield series
            series = []
        series.append(case)
    if series:
        yield series


def observe_series(
    exercise: Exercise, packed: bytes, series: Sequence[Case], ours: bool = False
) -> Iterator[Observation]:
    """What came of cases one after the other, in one process, after that before the first, if there is one. Where they
    meet trouble, each comes after the one before it alone, so that it shows whose it is."""
    together = [case for case in (series[0].before, *series) if case]
    # Ranks of a plain function know nothing of each other, so that one may make the calls of all.
    plain = exercise.run is alone and len(together) > 1
    calls = [[args] for case in together for args in case.args] if plain else [case.args for case in together]
    seen = observe_calls(exercise, packed, series[0], calls, ours)
    if (met := seen[-1].trouble) and len(series) > 1:
        for case in series[:-1]:
            yield from observe_series(exercise, packed, [case], ours)
        (last,) = observe_series(exercise, packed, series[-1:], ours)
        of_all = replace(met, message=f"in one of {len(calls)} calls, one after the other: {met.message}")
        yield last if last.trouble else replace(seen[-1], trouble=of_all)
    elif met:
        yield seen[-1]
    else:
        records = (record for one in seen for record in one.records)
        came = [replace(seen[-1], records=[*islice(records, case.ranks)]) for case in together]
        yield from came[-len(series) :]


def trouble_of(error: BaseException) -> Trouble:
    """What a learner should read of an error."""
    kind, said = type(error).__name__, str(error)
    if isinstance(error, RankFailure):
        if error.error.endswith(f".{OffLimits.__name__}"):
            return Trouble(OffLimits.__name__, said.partition(": ")[2], where(error.traceback))
        return Trouble(error.error or "died", said, where(error.traceback))
    if isinstance(error, RankError) and "did not finish within" in said:
        return Trouble("TimeOut", said)
    return Trouble(kind, said or f"it raises {kind}")


def where(text: str) -> str:
    """The innermost line of the learner's own code in a traceback's text, as "line 3, in ring_all_gather"."""
    frames = re.findall(r'File "([^"]*)", line (\d+), in (\S+)', text)
    own = [(line, function) for file, line, function in frames if ANSWER_FILE.search(file)]
    return f"line {own[-1][0]}, in {own[-1][1]}" if own else ""
