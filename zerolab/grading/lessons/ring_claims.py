"""Claims about collectives, each with a hint for every way in which people get it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from zerolab.collectives import Collectives, wire_bytes
from zerolab.grading.case import Case, Observation, Other, Record
from zerolab.grading.exercise import Test

Tensor = torch.Tensor


@dataclass(frozen=True)
class Expected:
    """What a case should give: rank r's value, and values that give a mistake away, by what to say of them. `look` is
    what to look at where the values are wrong in another way."""

    collective: str
    values: list[Tensor]
    mistakes: dict[str, list[Tensor]]
    numel: int
    itemsize: int
    look: str

    def wire(self, ranks: int) -> list[int]:
        """Bytes that each rank sends in a ring. A broadcast passes the whole tensor from hand to hand."""
        if self.collective == "broadcast":
            return [self.numel * self.itemsize] * (ranks - 1)
        return [wire_bytes(self.collective, self.numel, self.itemsize, ranks, rank) for rank in range(ranks)]


def broadcast_and_overwrite(fn: Callable[..., Any], comm: Collectives, tensor: Tensor, src: int) -> list[Any]:
    """What a broadcast returns, and the tensor afterwards; then the caller uses its tensor again, at once."""
    value = fn(comm, tensor, src)
    seen = [value.clone() if isinstance(value, Tensor) else value, tensor.clone()]
    tensor.fill_(USED_AGAIN)
    return seen


USED_AGAIN = -1.0
"""What the caller writes into its tensor when the broadcast has returned; no case has such a number."""


def no_library_collective(case: Case, seen: Observation) -> str | None:
    for record in seen.records:
        for name, _ in record.calls:
            return f"it calls comm.{name}, which is the library's own: build it from comm.isend and comm.irecv"
    return None


def right_values(expected: Callable[[Case], Expected]) -> Test:
    def test(case: Case, seen: Observation) -> str | None:
        want = expected(case)
        got = [returned(record, want) for record in seen.records]
        wrong = [rank for rank, value in enumerate(got) if not same(value, want.values[rank])]
        if not wrong:
            return None
        rank, value = wrong[0], got[wrong[0]]
        if not isinstance(value, Tensor):
            kind = value.type_name if isinstance(value, Other) else type(value).__name__
            return f"{case.about}: rank {rank} returned {kind}, not a tensor: end with return"
        if wrong == [0] and case.ranks > 1:
            skipped = "does a condition such as `if comm.rank:` skip it? 0 counts as False"
            return f"{case.about}: only rank 0 is wrong; {skipped}"
        if want.collective == "broadcast" and bool((value == USED_AGAIN).any()):
            return (
                f"{case.about}: rank {rank} got what its neighbour wrote into the tensor after it had returned: "
                "does the neighbour wait() for what it sends?"
            )
        for says, mistake in want.mistakes.items():
            if all(same(got[rank], mistake[rank]) for rank in wrong):
                return f"{case.about}: {'each rank' if len(wrong) > 1 else f'rank {rank}'} returned {says}"
        if value.dtype != want.values[rank].dtype:
            dtypes = f"{value.dtype}, not {want.values[rank].dtype}"
            return f"{case.about}: rank {rank} returned {dtypes}: new tensors take the input's dtype"
        if value.shape != want.values[rank].shape:
            return f"{case.about}: rank {rank} returned {tuple(value.shape)}, not {tuple(want.values[rank].shape)}"
        places = int((value != want.values[rank]).sum())
        return f"{case.about}: rank {rank} has {places} of {value.numel()} values wrong: {want.look}"

    return test


def in_place_or_not(expected: Callable[[Case], Expected], in_place: bool) -> Test:
    """The first argument ends as the result if `in_place`, else as it was."""

    def test(case: Case, seen: Observation) -> str | None:
        for rank, record in enumerate(seen.records):
            before = case.args[rank][0]
            after = record.value[1] if in_place else record.after[0]
            if in_place and not same(after, expected(case).values[rank]):
                lost = f"rank {rank}'s own tensor does not hold the result"
                return f"{case.about}: {lost}: receive into it and do not replace it"
            if not in_place and not same(after, before):
                overwrote = f"it overwrote rank {rank}'s input, which belongs to the caller"
                return f"{case.about}: {overwrote}: work on input.clone()"
        return None

    return test


def returned(record: Record, want: Expected) -> Any:
    """The value, which is the first of the two that `broadcast_and_overwrite` gives."""
    return record.value[0] if want.collective == "broadcast" else record.value


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


def wider_or_narrower(seen: Observation, bound: list[int], itemsize: int) -> int | None:
    """The bytes of an element if each rank sent as many elements as a ring sends, in a dtype of another size."""
    sent = [record.nbytes for record in seen.records]
    for other in {1, 2, 4, 8} - {itemsize}:
        if [nbytes * itemsize for nbytes in sent] == [nbytes * other for nbytes in bound]:
            return other
    return None


def traffic(expected: Callable[[Case], Expected]) -> Test:
    def test(case: Case, seen: Observation) -> str | None:
        want = expected(case)
        bound = want.wire(case.ranks)
        sent = [sum(nbytes for _, nbytes in record.sent) for record in seen.records]
        if want.collective == "broadcast":
            # Nobody sends the tensor back to its source.
            sent, bound = sorted(sent), [0, *bound]
            for rank, record in enumerate(seen.records):
                if len(record.sent) > 1 and record.nbytes == want.numel * want.itemsize:
                    many = f"rank {rank} sent the tensor in {len(record.sent)} messages"
                    return f"{case.about}: {many}: at most one is asked for, with the whole tensor"
        if sent == bound:
            return None
        rank = next(rank for rank in range(case.ranks) if sent[rank] != bound[rank])
        size = f"{case.about}: rank {rank} sent {sent[rank]} bytes, a ring {bound[rank]}"
        whole = want.numel * want.itemsize
        if want.collective == "broadcast":
            return (
                f"{case.about}: together they sent {sum(sent)} bytes, and N-1 messages "
                f"make {sum(bound)}: ask which rank has nobody left to tell"
            )
        wholes = f"{size}: your messages are whole tensors, send one chunk in each step"
        if sent[rank] == (case.ranks - 1) * whole:
            return wholes
        if other := wider_or_narrower(seen, bound, want.itemsize):
            dtypes = f"its elements travel in {other} bytes each, and the input's take {want.itemsize}"
            return f"{size}: {dtypes}: send in the input's dtype"
        if sent[rank] >= (case.ranks - 1) * whole:
            return wholes
        if sent[rank] < bound[rank]:
            return f"{size}: which elements of a chunk does it not send?"
        return f"{size}: N-1 steps are enough for each half, and each sends one chunk"

    return test


def same(value: object, want: Tensor) -> bool:
    if not isinstance(value, Tensor):
        return False
    return value.dtype == want.dtype and value.shape == want.shape and bool((value == want).all())
