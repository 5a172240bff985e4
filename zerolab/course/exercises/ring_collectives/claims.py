"""Claims about collectives, each with a hint for every way in which people get it wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from zerolab.course.judge.case import Case, Observation, Other, Record
from zerolab.course.judge.claims import each_rank, only
from zerolab.course.judge.exercise import Test
from zerolab.course.judge.mistakes import Wanted, compared
from zerolab.course.judge.same import alike
from zerolab.flat.layout import chunk_bounds

Tensor = torch.Tensor


@dataclass(frozen=True)
class Expected(Wanted):
    """What a call should give. `whole` is the whole tensor's size in bytes, and `wire` are the bytes that each rank
    sends. Where the values are wrong in another way, `chunks` says what to look at by how far around the ring, from
    rank r, the wrong chunk of rank r's value lies."""

    whole: int = 0
    wire: Sequence[int] = ()
    chunks: tuple[str, ...] = ()

    @property
    def itemsize(self) -> int:
        return int(self.values[0].element_size())


Expecting = Callable[[Case, int], Expected]
"""What is expected of the first call of a case, and of the second."""


@each_rank
def no_library_collective(case: Case, rank: int, record: Record) -> str | None:
    for name, _ in record.calls:
        return f"it calls comm.{name}, which is the library's own: build it from comm.isend and comm.irecv"
    return None


def right_values(expected: Expecting) -> Test:
    def test(case: Case, seen: Observation) -> str | None:
        want, seen_first = expected(case, 0), only(seen, "value")
        got = [record.value for record in seen_first.records]
        wrong = [rank for rank, value in enumerate(got) if not alike(value, want.values[rank])]
        if not wrong:
            return None
        rank, pairs = wrong[0], [(got[rank], want.values[rank]) for rank in wrong]
        if not isinstance(got[rank], Tensor):
            kind = got[rank].type_name if isinstance(got[rank], Other) else type(got[rank]).__name__
            return f"rank {rank} returned {kind}, not a tensor: end with return"
        formed = all(isinstance(one, Tensor) and (one.dtype, one.shape) == (due.dtype, due.shape) for one, due in pairs)
        if formed and (lost := why_lost(pairs)):
            return f"rank {rank} has not what others sent: {lost}"
        if any(spoilt_by_own(case.args[rank][0], got[rank], want.values[rank]) for rank in wrong):
            said = f"rank {rank} has NaN where its own tensor had NaN or inf and a number came"
            return f"{said}: overwrite what was there; 0 times NaN is NaN"
        if wrong == [0] and case.ranks > 1:
            return "only rank 0 is wrong; does a condition such as `if comm.rank:` skip it? 0 counts as False"
        look = why_values(want, got, wrong, seen) if formed else want.look
        want = replace(want, look=look, dtype="new tensors take the input's dtype")
        return compared(want, seen_first, 0.0)

    return test


def why_values(want: Expected, got: list[Tensor], wrong: list[int], seen: Observation) -> str:
    """What may have made values wrong that have the right dtype and shape."""
    if all(bool(nearly(got[rank], want.values[rank]).all()) for rank in wrong):
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
            if not alike(got[rank][start:stop], want.values[rank][start:stop])
        }
        if len(lie) == 1 and (at := lie.pop()) < len(want.chunks):
            return want.chunks[at]
    return want.look


def why_lost(pairs: list[tuple[Tensor, Tensor]]) -> str:
    """Whether values are wrong only where a special one was due, and which."""
    if not any(bool(due.any()) for _, due in pairs):
        return "zeros are numbers like others: does a test such as `if tensor.any():` skip them?"
    if all(alike(value[due.isfinite()], due[due.isfinite()]) for value, due in pairs):
        return "NaN and inf are not to be lost, where one goes in, it comes out"
    return ""


def in_place_or_not(expected: Expecting, in_place: bool) -> Test:
    """The first argument ends as the result if `in_place`, else as it was."""

    @each_rank
    def result_stays(case: Case, rank: int, record: Record) -> str | None:
        if not alike(record.value["tensor"], expected(case, 0).values[rank]):
            return f"rank {rank}'s own tensor does not hold the result: receive into it and do not replace it"
        return None

    @each_rank
    def is_no_copy(case: Case, rank: int, record: Record) -> str | None:
        copy = f"what rank {rank} returned is a copy of its tensor, so that who changes one keeps the other"
        return None if record.value["one"] else f"{copy}: return the tensor itself"

    @each_rank
    def input_stays(case: Case, rank: int, record: Record) -> str | None:
        for before, after in zip(case.args[rank][:2], record.after, strict=False):
            if before is not None and not alike(after, before):
                return f"it overwrote rank {rank}'s input, which belongs to the caller: work on input.clone()"
        return None

    if in_place:
        return lambda case, seen: result_stays(case, seen) or is_no_copy(case, seen)
    return input_stays


def begins_anew(expected: Expecting) -> Test:
    """A second call, with other data, gives what they make, and leaves the first one's result alone."""

    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        if case.args[0][1] is None:
            return None
        first, kept, again = (record.value[name] for name in ("value", "kept", "again"))
        want = expected(case, 1).values[rank]
        if not alike(kept, first):
            changed = f"a second call changed what the first had returned to rank {rank}"
            return f"{changed}: make a new tensor in each call"
        if alike(again, want):
            return None
        if alike(again, first):
            return f"called again with other data, rank {rank} says the same: what stays behind?"
        return f"called again with other data, rank {rank} is wrong: what does the first call leave behind?"

    return test


@each_rank
def new_tensor(case: Case, rank: int, record: Record) -> str | None:
    """What comes back shares no memory with the input; seen where memory is measured."""
    gave = f"rank {rank} returned the memory of its input, so that who changes one changes both"
    return f"{gave}: return a new tensor" if record.left < 0 else None


@each_rank
def messages(case: Case, rank: int, record: Record) -> str | None:
    right = (rank + 1) % case.ranks
    wrong = [receiver for receiver, _ in record.sent if receiver != right]
    return f"rank {rank} sent to rank {wrong[0]}: in this ring it sends to rank {right} only" if wrong else None


def first_sent(seen: Observation) -> list[list[int]]:
    """The bytes of each message that a rank sent in its first call."""
    return [[nbytes for _, nbytes in record.sent[: record.value["messages"]]] for record in seen.records]


def wider_or_narrower(sent: list[list[int]], bound: Sequence[int], itemsize: int) -> int | None:
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
        want, each = expected(case, 0), first_sent(seen)
        sent = [sum(mine) for mine in each]
        rank = next((rank for rank in range(case.ranks) if sent[rank] != want.wire[rank]), None)
        if rank is None:
            return None
        size = f"rank {rank} sent {sent[rank]} bytes, a ring {want.wire[rank]}"
        if other := wider_or_narrower(each, want.wire, want.itemsize):
            return f"{size}: {travels(other, want.itemsize)}"
        if sent[rank] >= (case.ranks - 1) * want.whole and max(each[rank]) >= want.whole:
            return f"{size}: your messages are whole tensors, send one chunk in each step"
        if sent[rank] < want.wire[rank]:
            return f"{size}: which elements of a chunk does it not send?"
        longest = max(max(mine, default=0) for mine in each)
        halves = round(sum(want.wire) / ((case.ranks - 1) * want.whole)) if case.ranks > 1 else 0
        if len(each[rank]) <= halves * (case.ranks - 1) and all(set(mine) <= {longest} for mine in each):
            return f"{size}: all its messages are of one length: send a chunk as long as it is, without padding"
        return f"{size}: N-1 steps are enough for each half, and each sends one chunk"

    return test


def one_message(expected: Expecting) -> Test:
    """A broadcast goes around once: each rank sends the whole tensor, in one message, if anybody is left to tell."""

    def test(case: Case, seen: Observation) -> str | None:
        want, sent = expected(case, 0), first_sent(seen)
        if other := wider_or_narrower(sent, want.wire, want.itemsize):
            return travels(other, want.itemsize)
        for rank, each in enumerate(sent):
            if len(each) > 1 and sum(each) == want.wire[rank]:
                many = f"rank {rank} sent the tensor in {len(each)} messages"
                return f"{many}: at most one is asked for, with the whole tensor"
        got, due = sum(map(sum, sent)), sum(want.wire)
        said = f"together they sent {got} bytes, and N-1 messages make {due}"
        return None if got == due else f"{said}: ask which rank has nobody left to tell"

    return test


def nearly(value: Tensor, want: Tensor) -> Tensor:
    """Where two tensors are as close as a narrower dtype would bring them."""
    return torch.isclose(value.double(), want.double(), rtol=1e-2, atol=0.0, equal_nan=True)
