"""Claims and measures that the lessons share. A hint says what was tried, what came out and what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from zerolab.course.judge.case import Case, Observation, Other, once
from zerolab.course.judge.exercise import Test

Tensor = torch.Tensor
Calls = list[tuple[str, int]]
Tolerance = float | Callable[[torch.dtype], float]
"""How far numbers may be off, in absolute and in relative terms; `by_dtype` is one that knows the dtype."""


def by_dtype(dtype: torch.dtype) -> float:
    """A tolerance for a few additions and a division of numbers near 1, in whatever order they are done."""
    return {torch.float64: 1e-12, torch.bfloat16: 5e-2, torch.float16: 5e-3}.get(dtype, 1e-5)


def tolerated(tolerance: Tolerance, dtype: torch.dtype) -> float:
    return tolerance(dtype) if callable(tolerance) else tolerance


@dataclass(frozen=True)
class Wanted:
    """What a case should give: rank r's value, and values that give a mistake away, by what to say of them. `look`
    says where to look if the values are wrong in another way; `did` is the verb, for what is not returned."""

    values: Sequence[Any]
    mistakes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    look: str = "print it on each rank, and compare with what you expect by hand"
    did: str = "returned"


def right(wanted: Callable[[Case], Wanted], tolerance: Tolerance = 1e-5) -> Test:
    """Every rank's value is the wanted one: numbers of tensors to `tolerance`, all else exactly."""
    wanted = once(wanted)

    def test(case: Case, seen: Observation) -> str | None:
        want = wanted(case)
        got = [record.value for record in seen.records]
        wrong = [rank for rank, value in enumerate(got) if not alike(value, want.values[rank], tolerance)]
        if not wrong:
            return None
        rank = wrong[0]
        who = "each rank" if len(wrong) == case.ranks > 1 else f"rank {rank}"
        for says, mistake in want.mistakes.items():
            if all(alike(got[rank], mistake[rank], tolerance) for rank in wrong):
                return f"{case.about}: {who} {want.did} {says}"
        if wrong == [0] and case.ranks > 1:
            return f"{case.about}: only rank 0 is wrong; does a condition such as `if comm.rank:` skip it?"
        if callable(tolerance) and all(alike(got[one], want.values[one], 1e-5) for one in wrong):
            return f"{case.about}: {who} {want.did} what is right to single precision only: what goes through float32?"
        said = difference(got[rank], want.values[rank], tolerance)
        look = "keep the dtype" if re.search(r"torch\.\w+, not torch\.\w+$", said) else want.look
        return f"{case.about}: rank {rank} {want.did} {said}: {look}"

    return test


def alike(value: object, want: object, tolerance: Tolerance) -> bool:
    """Whether a value is the wanted one. A list stands for a tuple, too, since JSON knows only lists."""
    if isinstance(want, Tensor):
        if not isinstance(value, Tensor) or value.dtype != want.dtype or value.shape != want.shape:
            return False
        most = tolerated(tolerance, want.dtype)
        return torch.allclose(value, want, rtol=most, atol=most, equal_nan=True)
    if isinstance(want, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(want):
            return False
        return all(alike(value[index], want[index], tolerance) for index in range(len(want)))
    if isinstance(want, dict):
        if not isinstance(value, dict) or value.keys() != want.keys():
            return False
        return all(alike(value[key], want[key], tolerance) for key in want)
    return type(value) is type(want) and value == want


def difference(value: Any, want: Any, tolerance: Tolerance) -> str:
    """How a value differs, such as "12 of 40 wrong values"."""
    if isinstance(want, Tensor) and isinstance(value, Tensor):
        if value.dtype != want.dtype:
            return f"{value.dtype}, not {want.dtype}"
        if value.shape != want.shape:
            return f"a tensor of shape {tuple(value.shape)}, not {tuple(want.shape)}"
        most = tolerated(tolerance, want.dtype)
        places = int((~torch.isclose(value, want, rtol=most, atol=most, equal_nan=True)).sum())
        return f"a tensor with {places} of {value.numel()} values wrong"
    if isinstance(want, list | tuple) and isinstance(value, list | tuple):
        if len(value) != len(want):
            return f"{len(value)} things, not {len(want)}"
        at = next(i for i, (a, b) in enumerate(zip(value, want, strict=True)) if not alike(a, b, tolerance))
        if value[at] is None:
            return f"None as item {at}, not {short(want[at])}"
        return f"a wrong item {at}, {difference(value[at], want[at], tolerance)}"
    if isinstance(want, dict) and isinstance(value, dict) and value.keys() == want.keys():
        key = next(key for key in want if not alike(value[key], want[key], tolerance))
        return f"for {key!r} {difference(value[key], want[key], tolerance)}"
    return f"{short(value)}, not {short(want)}"


def short(value: Any) -> str:
    """A value in few words."""
    if isinstance(value, Other):
        return value.type_name
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = "nothing (None): end with return" if value is None else " ".join(str(listed(value)).split())
    return text if len(text) <= 80 else text[:77] + "..."


def listed(value: Any) -> Any:
    """Tuples as lists: an answer's came back as such, and both should look alike in a hint."""
    return [listed(item) for item in value] if isinstance(value, list | tuple) else value


def untouched(*places: int) -> Test:
    """The arguments at these places (after `comm`), or all if none is named, are as they were."""

    def test(case: Case, seen: Observation) -> str | None:
        for rank, record in enumerate(seen.records):
            for place in places or range(len(record.after)):
                if not alike(record.after[place], plain(case.args[rank][place]), 0.0):
                    return (
                        f"{case.about}: it overwrote rank {rank}'s input, which belongs to the caller: work on a copy"
                    )
        return None

    return test


def leaves_nothing(case: Case, seen: Observation) -> str | None:
    """Beside what an answer returned, no tensor of its making is alive; the exercise measures memory."""
    for rank, record in enumerate(seen.records):
        if record.left > 0:
            left = f"when it has returned, {record.left:,} bytes on rank {rank} are alive that it did not return"
            return f"{case.about}: {left}: what keeps them, a view of something larger, a global, an attribute?"
    return None


def leaves_at_once(case: Case, seen: Observation) -> str | None:
    """Nor was there such a tensor until Python's garbage collector came."""
    for rank, record in enumerate(seen.records):
        if record.late > 0:
            late = f"when it has returned, {record.late:,} bytes on rank {rank} wait for Python's garbage collector"
            look = "a reference cycle holds them, such as a function inside yours that calls itself: take a loop"
            return f"{case.about}: {late}: {look}"
    return None


def shared_by(fn: Any) -> str:
    """What to say of a list that belongs to an answer's class; '' if there is none."""
    shared = [name for name, value in vars(fn).items() if isinstance(value, list | dict | set)]
    return f"`{shared[0]}` belongs to the class, and all share it; set it in __init__" if shared else ""


def plain(value: Any) -> Any:
    """An argument in the shape in which `Record.after` has it."""
    if isinstance(value, torch.nn.Module):
        return [parameter.detach() for parameter in value.parameters()]
    return value


def calls_are(wanted: Callable[[Case, int], Calls], look: str) -> Test:
    """The library's collectives that each rank calls, in order, are those of `wanted(case, rank)`."""

    def test(case: Case, seen: Observation) -> str | None:
        for rank, record in enumerate(seen.records):
            want = wanted(case, rank)
            if record.calls == want:
                continue
            made, due = len(record.calls), len(want)
            at = next((i for i in range(min(made, due)) if record.calls[i] != want[i]), None)
            if at is not None:
                said = f"call {at + 1} of rank {rank} is {call(record.calls[at])}, and {call(want[at])} is due"
            else:
                odd = f"{call(want[made])} is missing" if made < due else f"{call(record.calls[due])} is too many"
                said = f"rank {rank} makes {made} calls where {due} are due, {odd}"
            return f"{case.about}: {said}: {look}"
        return None

    return test


def call(of: tuple[str, int]) -> str:
    return f"{of[0]} of {of[1]:,} elements"


# What a scoreboard measures.


def most_sent(case: Case, seen: Observation) -> int:
    """Bytes on the wire, of the rank that sends most."""
    return max(record.nbytes for record in seen.records)


def most_messages(case: Case, seen: Observation) -> int:
    """Messages of the rank that sends most of them."""
    return max(len(record.sent) for record in seen.records)


def most_held(case: Case, seen: Observation) -> int:
    """The most bytes that a rank had made and still held, at its worst moment; the exercise measures memory."""
    return max(record.peak for record in seen.records)


def number_of_calls(case: Case, seen: Observation) -> int:
    """Collectives that a rank calls."""
    return max(len(record.calls) for record in seen.records)


def microseconds(case: Case, seen: Observation) -> int:
    """The virtual clock at the end, rounded."""
    return round(1e6 * seen.seconds)
