"""Claims about collectives, each with a hint for every way in which people get it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from zerolab.course.judge.case import Case, Observation, Other
from zerolab.course.judge.exercise import Test
from zerolab.flat.layout import chunk_bounds

Tensor = torch.Tensor


@dataclass(frozen=True)
class Expected:
    """What a call should give: rank r's value, and values that give a mistake away, by what to say of them. `whole` is
    the whole tensor's size in bytes, and `wire` are the bytes that each rank sends. `look` is what to look at where the
    values are wrong in another way, and `chunks` says so by how far around the ring, from rank r, the wrong chunk of
    rank r's value lies."""

    values: list[Tensor]
    mistakes: dict[str, list[Tensor]]
    whole: int
    wire: list[int]
    look: str
    chunks: tuple[str, ...] = ()

    @property
    def itemsize(self) -> int:
        return self.values[0].element_size()


Expecting = Callable[[Case, int], Expected]
"""What is expected of the first call of a case, and of the second."""


def no_library_collective(case: Case, seen: Observation) -> str | None:
    for record in seen.records:
        for name, _ in record.calls:
            return f"it calls comm.{name}, which is the library's own: build it from comm.isend and comm.irecv"
    return None


def right_values(expected: Expecting) -> Test:
    def test(case: Case, seen: Observation) -> str | None:
        want = expected(case, 0)
        got = [record.value["value"] for record in seen.records]
        wrong = [rank for rank, value in enumerate(got) if not same(value, want.values[rank])]
        if not wrong:
            return None
        rank, value = wrong[0], got[wrong[0]]
        if not isinstance(value, Tensor):
            kind = value.type_name if isinstance(value, Other) else type(value).__name__
            return f"{case.about}: rank {rank} returned {kind}, not a tensor: end with return"
        if lost := why_lost([(got[rank], want.values[rank]) for rank in wrong]):
            return f"{case.about}: rank {rank} has not what others sent: {lost}"
        if any(spoilt_by_own(case.args[rank][0], got[rank], want.values[rank]) for rank in wrong):
            said = f"rank {wrong[0]} has NaN where its own tensor had NaN or inf and a number came"
            return f"{case.about}: {said}: overwrite what was there; 0 times NaN is NaN"
        if wrong == [0] and case.ranks > 1:
            skipped = "does a condition such as `if comm.rank:` skip it? 0 counts as False"
            return f"{case.about}: only rank 0 is wrong; {skipped}"
        for says, mistake in want.mistakes.items():
            if all(same(got[rank], mistake[rank]) for rank in wrong):
                return f"{case.about}: {'each rank' if len(wrong) > 1 else f'rank {rank}'} returned {says}"
        if value.dtype != want.values[rank].dtype:
            dtypes = f"{value.dtype}, not {want.values[rank].dtype}"
            return f"{case.about}: rank {rank} returned {dtypes}: new tensors take the input's dtype"
        if value.shape != want.values[rank].shape:
            return f"{case.about}: rank {rank} returned {tuple(value.shape)}, not {tuple(want.values[rank].shape)}"
        places = int((~equal(value, want.values[rank])).sum())
        said = f"{case.about}: rank {rank} has {places} of {value.numel()} values wrong"
        return f"{said}: {why_values(want, got, wrong, seen)}"

    return test


def why_values(want: Expected, got: list[Tensor], wrong: list[int], seen: Observation) -> str:
    """What may have made values wrong that have the right dtype and shape."""
    pairs = [(got[rank], want.values[rank]) for rank in wrong]
    if all(bool(nearly(value, right).all()) for value, right in pairs):
        if other := wider_or_narrower(first_sent(seen), want.wire, want.itemsize):
            return travels(other, want.itemsize)
        return "nearly right is not right: what rounds them? Numbers stay in the input's dtype, from end to end"
    if want.chunks and len({value.shape for value in got}) == 1:
        ranks = len(got)
        bounds = chunk_bounds(want.values[0].numel(), ranks)
        lie = {
            (index - rank) % ranks
            for rank in wrong
            for index, (start, stop) in enumerate(bounds)
            if not same(got[rank][start:stop], want.values[rank][start:stop])
        }
        if len(lie) == 1 and (at := lie.pop()) < len(want.chunks):
            return want.chunks[at]
    return want.look


def why_lost(pairs: list[tuple[object, Tensor]]) -> str:
    """Whether values, of the right dtype and shape, are wrong only where a special one was due, and which."""
    alike = [(value, right) for value, right in pairs if isinstance(value, Tensor)]
    if len(alike) < len(pairs) or any((a.dtype, a.shape) != (b.dtype, b.shape) for a, b in alike):
        return ""
    if not any(bool(right.any()) for _, right in alike):
        return "zeros are numbers like others: does a test such as `if tensor.any():` skip them?"
    if all(bool((equal(value, right) | ~right.isfinite()).all()) for value, right in alike):
        return "NaN and inf are not to be lost, where one goes in, it comes out"
    return ""


def in_place_or_not(expected: Expecting, in_place: bool) -> Test:
    """The first argument ends as the result if `in_place`, else as it was."""

    def test(case: Case, seen: Observation) -> str | None:
        for rank, record in enumerate(seen.records):
            if in_place and not same(record.value["tensor"], expected(case, 0).values[rank]):
                lost = f"rank {rank}'s own tensor does not hold the result"
                return f"{case.about}: {lost}: receive into it and do not replace it"
            for before, after in zip(case.args[rank][:2], record.after, strict=False):
                if not in_place and before is not None and not same(after, before):
                    overwrote = f"it overwrote rank {rank}'s input, which belongs to the caller"
                    return f"{case.about}: {overwrote}: work on input.clone()"
        for rank, record in enumerate(seen.records):
            if in_place and not record.value["one"]:
                copy = f"what rank {rank} returned is a copy of its tensor, so that who changes one keeps the other"
                return f"{case.about}: {copy}: return the tensor itself"
        return None

    return test


def begins_anew(expected: Expecting) -> Test:
    """A second call, with other data, gives what they make, and leaves the first one's result alone."""

    def test(case: Case, seen: Observation) -> str | None:
        if case.args[0][1] is None:
            return None
        for rank, record in enumerate(seen.records):
            said = record.value
            if not same(said["kept"], said["value"]):
                changed = f"a second call changed what the first had returned to rank {rank}"
                return f"{case.about}: {changed}: make a new tensor in each call"
            if same(said["again"], said["value"]) and not same(said["value"], expected(case, 1).values[rank]):
                return f"{case.about}: called again with other data, rank {rank} says the same: what stays behind?"
            if not same(said["again"], expected(case, 1).values[rank]):
                wrong = f"called again with other data, rank {rank} is wrong"
                return f"{case.about}: {wrong}: what does the first call leave behind?"
        return None

    return test


def new_tensor(case: Case, seen: Observation) -> str | None:
    """What comes back shares no memory with the input; seen where memory is measured."""
    for rank, record in enumerate(seen.records):
        if record.left < 0:
            gave = f"rank {rank} returned the memory of its input"
            return f"{case.about}: {gave}, so that who changes one changes both: return a new tensor"
    return None


def messages(case: Case, seen: Observation) -> str | None:
    for rank, record in enumerate(seen.records):
        right = (rank + 1) % case.ranks
        for receiver, _ in record.sent:
            if receiver != right:
                sent = f"{case.about}: rank {rank} sent to rank {receiver}"
                return f"{sent}: in this ring it sends to rank {right} only"
    return None


def first_sent(seen: Observation) -> list[list[int]]:
    """The bytes of each message that a rank sent in its first call."""
    return [[nbytes for _, nbytes in record.sent[: record.value["messages"]]] for record in seen.records]


def wider_or_narrower(sent: list[list[int]], bound: list[int], itemsize: int) -> int | None:
    """The bytes of an element if each rank sent as many elements as a ring sends, in a dtype of another size."""
    for other in {1, 2, 4, 8} - {itemsize}:
        if any(bound) and [sum(each) * itemsize for each in sent] == [nbytes * other for nbytes in bound]:
            return other
    return None


def spoilt_by_own(own: object, got: object, want: Tensor) -> bool:
    """Whether NaN stands where a number is due and the rank's own tensor had NaN or inf."""
    if not (isinstance(own, Tensor) and isinstance(got, Tensor) and own.shape == got.shape == want.shape):
        return False
    return bool((~own.isfinite() & got.isnan() & want.isfinite()).any())


def travels(other: int, itemsize: int) -> str:
    said = f"its elements travel in {other} bytes each, and the input's take {itemsize}"
    return f"{said}: work and send in the input's dtype"


def traffic(expected: Expecting) -> Test:
    def test(case: Case, seen: Observation) -> str | None:
        want = expected(case, 0)
        sent = [sum(each) for each in first_sent(seen)]
        if sent == want.wire:
            return None
        rank = next(rank for rank in range(case.ranks) if sent[rank] != want.wire[rank])
        size = f"{case.about}: rank {rank} sent {sent[rank]} bytes, a ring {want.wire[rank]}"
        if other := wider_or_narrower(first_sent(seen), want.wire, want.itemsize):
            return f"{size}: {travels(other, want.itemsize)}"
        messages = first_sent(seen)[rank]
        if sent[rank] >= (case.ranks - 1) * want.whole and max(messages) >= want.whole:
            return f"{size}: your messages are whole tensors, send one chunk in each step"
        if sent[rank] < want.wire[rank]:
            return f"{size}: which elements of a chunk does it not send?"
        longest = max(max(each, default=0) for each in first_sent(seen))
        halves = round(sum(want.wire) / ((case.ranks - 1) * want.whole)) if case.ranks > 1 else 0
        if len(messages) <= halves * (case.ranks - 1) and all(set(each) <= {longest} for each in first_sent(seen)):
            return f"{size}: all its messages are of one length: send a chunk as long as it is, without padding"
        return f"{size}: N-1 steps are enough for each half, and each sends one chunk"

    return test


def one_message(expected: Expecting) -> Test:
    """A broadcast goes around once: each rank sends the whole tensor, in one message, if anybody is left to tell."""

    def test(case: Case, seen: Observation) -> str | None:
        want, sent = expected(case, 0), first_sent(seen)
        if other := wider_or_narrower(sent, want.wire, want.itemsize):
            return f"{case.about}: {travels(other, want.itemsize)}"
        for rank, each in enumerate(sent):
            if len(each) > 1 and sum(each) == want.wire[rank]:
                many = f"rank {rank} sent the tensor in {len(each)} messages"
                return f"{case.about}: {many}: at most one is asked for, with the whole tensor"
        together = [sum(map(sum, sent)), sum(want.wire)]
        if together[0] != together[1]:
            said = f"together they sent {together[0]} bytes, and N-1 messages make {together[1]}"
            return f"{case.about}: {said}: ask which rank has nobody left to tell"
        return None

    return test


def equal(value: Tensor, want: Tensor) -> Tensor:
    """Where two tensors are equal; NaN is equal to itself."""
    return (value == want) | (value.isnan() & want.isnan())


def nearly(value: Tensor, want: Tensor) -> Tensor:
    """Where two tensors are as close as a narrower dtype would bring them."""
    return torch.isclose(value.double(), want.double(), rtol=1e-2, atol=0.0, equal_nan=True)


def same(value: object, want: Tensor) -> bool:
    if not isinstance(value, Tensor):
        return False
    return value.dtype == want.dtype and value.shape == want.shape and bool(equal(value, want).all())
