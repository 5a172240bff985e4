"""The exercise of lesson 05 on the persistence threshold: which tensors are too small to cut."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.flat.layout import chunk_sizes
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import Wanted, calls_are, right
from zerolab.grading.draw import signed
from zerolab.grading.exercise import Claim, Exercise

Tensor = torch.Tensor


def persistent_case(rng: Random, ranks: int, shapes: Sequence[tuple[int, ...]], threshold: int, world: str) -> Case:
    tensors = [signed(rng, torch.Size(shape).numel()).view(shape) for shape in shapes]
    numels = [tensor.numel() for tensor in tensors]
    about = f"on {plural(ranks, 'rank')}, tensors of {numels} elements, threshold {threshold}"
    return Case([(tensors, threshold)] * ranks, world, about)


def persistent_cases(rng: Random) -> list[Case]:
    def drawn() -> list[tuple[int, ...]]:
        width = rng.randint(3, 6)
        # As in a model: matrices, and biases that are much smaller.
        return [(width, width), (width,), (width + 1, width), (width + 1,), (5 * width, width), (3,)]

    cases = []
    for ranks in (2, 3, 4, 1):
        shapes = drawn()
        matrix = torch.Size(shapes[0]).numel()
        # A tensor of exactly as many elements as the threshold is among them.
        cases.append(persistent_case(rng, ranks, shapes, matrix, "lockstep"))
        cases.append(persistent_case(rng, ranks, drawn(), rng.choice([0, 8, 10_000]), "lockstep"))
    return [*cases, persistent_case(rng, 2, drawn(), 8, "processes")]


def run_persistent(fn: Callable[..., Any], comm: Collectives, tensors: list[Tensor], threshold: int) -> Any:
    """Hand whole tensors to the answer and let go of them; then ask for each one. What it kept is counted by memory:
    the given storages that are still alive, and those of `kept`."""
    own = [tensor.clone() for tensor in tensors]
    given = [weakref.ref(tensor.untyped_storage()) for tensor in own]
    answer = fn(comm, own, threshold)
    del own
    alive = {storage.data_ptr(): storage.nbytes() for ref in given if (storage := ref()) is not None}
    alive |= {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in answer.kept}
    values = [answer.whole(index).clone() for index in range(len(tensors))]
    return {"values": values, "kept": [part.numel() for part in answer.kept], "bytes": sum(alive.values())}


def persistent_values(case: Case, seen: Observation) -> str | None:
    """`whole` gives each tensor back."""
    tensors = case.args[0][0]
    for rank, record in enumerate(seen.records):
        got = record.value["values"]
        for index, (value, want) in enumerate(zip(got, tensors, strict=True)):
            if isinstance(value, Tensor) and value.shape != want.shape and torch.equal(value.flatten(), want.flatten()):
                shapes = f"{tuple(value.shape)}, not {tuple(want.shape)}"
                return f"{case.about}: rank {rank}'s tensor {index} has the right numbers in the wrong shape: {shapes}"
    wanted = Wanted([tensors] * case.ranks, look="look at what `whole` gives for a matrix and for a bias")
    records = [replace(record, value=record.value["values"]) for record in seen.records]
    return right(lambda _: wanted)(case, Observation(records))


def staying(numels: Sequence[int], threshold: int) -> list[bool]:
    return [numel < threshold for numel in numels]


def as_budget(numels: Sequence[int], threshold: int, order: Sequence[int]) -> list[bool]:
    """Which stay if the threshold is (wrongly) how many elements may stay in all."""
    stays, left = [False] * len(numels), threshold
    for index in order:
        if numels[index] <= left:
            stays[index] = True
            left -= numels[index]
    return stays


def persistent_cut(case: Case, seen: Observation) -> str | None:
    """Small tensors are whole, large ones cut."""
    tensors, threshold = case.args[0]
    numels = [tensor.numel() for tensor in tensors]
    by_size = sorted(range(len(numels)), key=lambda index: numels[index])
    rules = {
        "tensors of fewer elements stay whole, one of exactly as many is cut": [n <= threshold for n in numels],
        "no tensor is cut": [True] * len(numels),
        "all tensors are cut, the small ones, too": [False] * len(numels),
        "you cut the small ones and keep the large ones": [n >= threshold for n in numels],
        "you measure the shard; the threshold is for the whole tensor": [n // case.ranks < threshold for n in numels],
        "the threshold is no budget for all: each tensor is measured by itself": as_budget(numels, threshold, by_size),
        "the threshold is no budget that is used up from the first on": as_budget(
            numels, threshold, range(len(numels))
        ),
    }
    for rank, record in enumerate(seen.records):

        def lengths(stays: Sequence[bool], rank: int = rank) -> list[int]:
            return [n if s else chunk_sizes(n, case.ranks)[rank] for n, s in zip(numels, stays, strict=True)]

        got, want = record.value["kept"], lengths(staying(numels, threshold))
        if got != want:
            said = f"{case.about}: rank {rank} keeps {got} elements, and {want} are due"
            reason = next((says for says, stays in rules.items() if lengths(stays) == got), "")
            return f"{said}: {reason or 'cut with tensor_split, as all_gather does'}"
    return None


def persistent_bytes(case: Case, seen: Observation) -> str | None:
    """No memory stays besides."""
    for rank, record in enumerate(seen.records):
        want, got = 4 * sum(record.value["kept"]), record.value["bytes"]
        if got > want:
            said = f"rank {rank}'s parts have {want} bytes, and {got} are alive"
            return f"{case.about}: {said}: a view keeps all the memory of its tensor, and so does each name for it"
    return None


PERSISTENT = Exercise(
    "Persistent",
    persistent_cases,
    (
        Claim("it gives each tensor back, whole and in its shape", persistent_values),
        Claim("it keeps small tensors whole and a shard of the others", persistent_cut),
        Claim("it keeps no other memory", persistent_bytes),
        Claim(
            "it gathers what is cut, and nothing else",
            calls_are(
                lambda case, rank: [
                    ("all_gather", tensor.numel()) for tensor in case.args[0][0] if tensor.numel() >= case.args[0][1]
                ],
                "what is whole already needs no call",
            ),
        ),
    ),
    run=run_persistent,
    hints=(
        "Make two lists in __init__: the shapes, and what you keep.",
        "A shard is tensor.flatten().tensor_split(comm.size)[comm.rank]. Whose memory is that?",
        "In `whole`, kept[index] has fewer elements than its shape if it was cut; but on one rank, and for an empty "
        "shape, it has not. So decide by the threshold, in both places.",
    ),
)
