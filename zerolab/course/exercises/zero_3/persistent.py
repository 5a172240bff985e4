"""The exercise of lesson 05 on the persistence threshold: which tensors are too small to cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case, Observation, Record, once, plural
from zerolab.course.judge.claims import Calls, calls_are, each_rank, only, shared_by
from zerolab.course.judge.draw import DTYPES, fine
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.mistakes import Wanted, compared, named
from zerolab.course.judge.same import alike, by_dtype
from zerolab.errors import InputError
from zerolab.flat.layout import chunk_sizes

TEXT = """
What is too small to cut

A bias has few numbers, and gathering it costs a message's latency like a large matrix does. So stage 3 has a
**persistence threshold**: a tensor of *fewer* than `threshold` elements stays whole on every rank. All others are
cut. The threshold looks at each tensor by itself; it is no budget for all of them together.

Write a class. `Persistent(comm, tensors, threshold)` gets whole tensors of any shape, the same on every rank, and
calls no collective.

- `self.kept` is a list or a tuple: for each tensor, in order, what this rank keeps of it, whole or a shard.
- `whole(index)` returns a tensor, whole and in its shape, as often as it is asked. It gathers what was cut, each
  time, and calls nothing for what was not. (On one rank, too, what reaches the threshold counts as cut.)
- Once the caller drops its tensors, nothing but `kept` may stay in memory, also after `whole`; and once the caller
  drops a `Persistent`, nothing of it. The check counts storages. (`functools.cache` on a method keeps each `self`
  that it was called for, so what you remember belongs in `self`.)
- The caller's tensors, and its list of them, stay as they are. Several `Persistent` may be alive at once.

The check draws tensors in float32, float64 and bfloat16, transposed in memory, without dimensions or without
elements, and thresholds from 0 to more than any tensor has. About twelve lines.
"""


class Persistent:
    """Tensors, cut over the ranks unless they are small."""

    ### BEGIN SOLUTION
    def __init__(self, comm, tensors, threshold):
        self.comm, self.threshold = comm, threshold
        self.shapes = [tensor.shape for tensor in tensors]
        self.kept = [self.part(tensor) for tensor in tensors]

    def part(self, tensor):
        if tensor.numel() < self.threshold:
            return tensor
        return tensor.flatten().tensor_split(self.comm.size)[self.comm.rank].clone()

    def whole(self, index):
        shape, part = self.shapes[index], self.kept[index]
        small = shape.numel() < self.threshold
        return part if small else self.comm.all_gather(part, shape.numel()).view(shape)

    ### END SOLUTION


Tensor = torch.Tensor


def persistent_case(rng: Random, ranks: int, shapes: Sequence[tuple[int, ...]], threshold: int, world: str) -> Case:
    tensors = [fine(rng, torch.Size(shape).numel(), rng.choice(DTYPES)).view(shape) for shape in shapes]
    # A matrix may lie in memory as its transpose does.
    tensors[0] = tensors[0].t().contiguous().t()
    numels = [tensor.numel() for tensor in tensors]
    about = f"on {plural(ranks, 'rank')}, tensors of {numels} elements, threshold {threshold}"
    return Case([(tensors, threshold)] * ranks, world, about)


def persistent_cases(rng: Random) -> list[Case]:
    def drawn() -> list[tuple[int, ...]]:
        width = rng.randint(3, 6)
        # As in a model: matrices, and biases that are much smaller.
        return [(width, width), (width,), (width + 1, width), (width + 1,), (5 * width, width), (3,), (), (0, 2)]

    cases = []
    for ranks, threshold in ((2, 8), (3, 0), (4, 1), (1, 10_000)):
        shapes = drawn()
        matrix = torch.Size(shapes[0]).numel()
        # A tensor of exactly as many elements as the threshold is among them.
        cases.append(persistent_case(rng, ranks, shapes, matrix, "lockstep"))
        cases.append(persistent_case(rng, ranks, drawn(), threshold, "lockstep"))
    # Alone, a shard of a row looks like the row: whether it is gathered must not hang on that.
    cases.append(persistent_case(rng, 1, drawn(), 3, "lockstep"))
    return [*cases, persistent_case(rng, 2, drawn(), 8, "processes")]


def run_persistent(fn: Callable[..., Any], comm: Collectives, tensors: list[Tensor], threshold: int) -> Any:
    """Hand whole tensors to the answer, ask for each one, twice, and once more when a second answer is alive beside it.
    The answer is returned, too, though only its type's name gets out: while it lives, what it holds is measured."""
    own = [tensor.clone() for tensor in tensors]
    answer = fn(comm, own, threshold)
    kind = type(answer.kept).__name__
    if not isinstance(answer.kept, list | tuple):
        raise InputError(f"`kept` is a {kind}, and a list is due, with one tensor for each that it got, in order")
    try:
        held = [answer.whole(index) for index in range(len(tensors))]
        values = [whole.clone() for whole in held]
        # What the first round gave is still in use.
        twice = [answer.whole(index).clone() for index in range(len(tensors))]
        del held
    except Exception as error:
        if not (said := shared_by(fn)):
            raise
        raise InputError(f"{said} ({error})") from error
    intact = alike(own, tensors, 0.0)
    del own
    others = [-tensor for tensor in reversed(tensors)]
    second = fn(comm, others, 2 * threshold + 1).whole(len(others) - 1).clone()
    del others
    try:
        again = [answer.whole(index).clone() for index in range(len(tensors))]
    except Exception as error:
        raise InputError(f"whole() fails once a second {SECOND} ({error})") from error
    if len(answer.kept) > len(tensors) and (said := shared_by(fn)):
        raise InputError(f"{said} (of {len(tensors)} tensors it keeps {len(answer.kept)})")
    asked = {"values": values, "twice": twice, "second": second, "again": again}
    return {**asked, "intact": intact, "kept": list(answer.kept), "caches": caches_of(fn), "answer": answer}


def caches_of(fn: Any) -> list[str]:
    """The methods that functools.cache, or lru_cache, is on."""
    return [name for name, value in vars(fn).items() if hasattr(value, "cache_info")]


LOOK = "look at what `whole` gives for a matrix and for a bias"
SECOND = "Persistent has been made, of other tensors: what belongs to one has its place in self, not in the class"


@each_rank
def shaped_right(case: Case, rank: int, record: Record) -> str | None:
    for index, (value, want) in enumerate(zip(record.value["values"], case.args[0][0], strict=True)):
        if not isinstance(value, Tensor) or value.dtype != want.dtype or value.shape == want.shape:
            continue
        if torch.equal(value.flatten(), want.flatten()):
            shapes = f"{tuple(value.shape)}, not {tuple(want.shape)}"
            return f"rank {rank}'s tensor {index} has the right numbers in the wrong shape: {shapes}"
    return None


@once
def tensors_wanted(case: Case) -> Wanted:
    tensors = case.args[0][0]
    lying = [tensors[0].t().reshape(tensors[0].shape), *tensors[1:]]
    says = "the numbers in the order in which they lie in memory: flatten() goes row by row, whatever the strides"
    return Wanted([tensors] * case.ranks, {says: [lying] * case.ranks}, LOOK)


@each_rank
def later_right(case: Case, rank: int, record: Record) -> str | None:
    tensors = case.args[0][0]
    if not alike(record.value["twice"], tensors):
        said = f"asked once more, whole() gives other numbers to rank {rank}"
        return f"{said}: what has the first time changed?"
    if not alike(record.value["second"], -tensors[0]):
        return f"to rank {rank} a second one's whole() gives other numbers, when this second {SECOND}"
    if not alike(record.value["again"], tensors):
        return f"whole() gives other numbers to rank {rank} once a second {SECOND}"
    return None


def persistent_values(case: Case, seen: Observation) -> str | None:
    """`whole` gives each tensor back, each time."""
    first = compared(tensors_wanted(case), only(seen, "values"), by_dtype)
    return shaped_right(case, seen) or first or later_right(case, seen)


def caller_intact(case: Case, seen: Observation) -> str | None:
    if all(record.value["intact"] for record in seen.records):
        return None
    return "the list of tensors that it got, or a tensor in it, has changed: they belong to the caller"


def staying(numels: Sequence[int], threshold: int) -> list[bool]:
    return [numel < threshold for numel in numels]


def as_budget(numels: Sequence[int], threshold: int, order: Sequence[int], fewer: bool = False) -> list[bool]:
    """Which stay if the threshold is (wrongly) how many elements may stay in all, or one more than that."""
    stays, left = [False] * len(numels), threshold
    for index in order:
        if numels[index] + fewer <= left:
            stays[index] = True
            left -= numels[index]
    return stays


@each_rank
def persistent_cut(case: Case, rank: int, record: Record) -> str | None:
    """Small tensors are whole, large ones cut."""
    tensors, threshold = case.args[0]
    numels = [tensor.numel() for tensor in tensors]
    by_size = sorted(range(len(numels)), key=lambda index: numels[index])
    every = range(len(numels))
    one_budget = "the threshold is no budget for all: each tensor is measured by itself"
    rules = {
        "tensors of fewer elements stay whole, one of exactly as many is cut": [n <= threshold for n in numels],
        "no tensor is cut": [True] * len(numels),
        "all tensors are cut, the small ones, too": [False] * len(numels),
        "you cut the small ones and keep the large ones": [n >= threshold for n in numels],
        "you measure the shard; the threshold is for the whole tensor": [n // case.ranks < threshold for n in numels],
        "you count bytes; the threshold counts elements": [tensor.nbytes < threshold for tensor in tensors],
        one_budget: as_budget(numels, threshold, by_size),
        f"{one_budget} alone": as_budget(numels, threshold, by_size, True),
        f"{one_budget}, from the first on": as_budget(numels, threshold, every),
        f"{one_budget} alone, from the first on": as_budget(numels, threshold, every, True),
        "you go by the number of dimensions; the threshold counts elements": [tensor.dim() < 2 for tensor in tensors],
    }

    def lengths(stays: Sequence[bool]) -> list[int]:
        return [n if s else chunk_sizes(n, case.ranks)[rank] for n, s in zip(numels, stays, strict=True)]

    got, want = [part.numel() for part in record.value["kept"]], lengths(staying(numels, threshold))
    if got == want:
        return None
    either = [lengths([stays] * len(numels)) for stays in (True, False)]
    reason = named(rules, lambda stays: lengths(stays) == got) or otherwise(got, either)
    return f"rank {rank} keeps {got} elements, and {want} are due: {reason}"


def otherwise(got: Sequence[int], either: Sequence[Sequence[int]]) -> str:
    """What to say if no rule explains which tensors were cut: are all of them whole, or cut as they should be?"""
    if len(got) == len(either[0]) and all(part in pair for part, *pair in zip(got, *either, strict=True)):
        return "a tensor stays whole if its numel() is less than the threshold, whatever the others are"
    return "cut with tensor_split, as all_gather does"


@each_rank
def persistent_bytes(case: Case, rank: int, record: Record) -> str | None:
    """No memory stays besides."""
    if record.left <= 0:
        return None
    kept = sum(part.nbytes for part in record.value["kept"])
    look = "a view keeps all the memory of its tensor, and so does each name for it, or for what was gathered"
    if caches := record.value["caches"]:
        look = f"functools.cache on `{caches[0]}` belongs to the class, and keeps all that the method was given"
    return f"rank {rank}'s parts have {kept} bytes, and {kept + record.left} are alive: {look}"


def persistent_calls(case: Case, seen: Observation) -> str | None:
    """What was cut is gathered, each time; the rest needs no call."""
    tensors, threshold = case.args[0]

    def due(tensors: Sequence[Tensor], threshold: int) -> Calls:
        return [("all_gather", tensor.numel()) for tensor in tensors if tensor.numel() >= threshold]

    each = due(tensors, threshold)
    want = [*each, *each, *due(tensors[:1], 2 * threshold + 1), *each]
    look = "what is whole already needs no call"
    if any(len(record.calls) < len(want) for record in seen.records):
        look = "what is cut is gathered each time, also while somebody still uses what the last time gave"
        if case.ranks == 1:
            look = "what reaches the threshold counts as cut, on one rank, too, and is gathered each time"
    return calls_are(lambda case, rank: want, look)(case, seen)


EXERCISE = Exercise(
    "Persistent",
    persistent_cases,
    (
        Claim(
            "it gives each tensor back, whole, in its shape and its dtype",
            persistent_values,
            ("Make two lists in __init__, of self: the shapes, and what you keep.",),
        ),
        Claim("it leaves the caller's tensors as they are", caller_intact),
        Claim(
            "it keeps small tensors whole and a shard of the others",
            persistent_cut,
            ("Each tensor is asked by itself: is tensor.numel() < threshold? Nothing is remembered of the others.",),
        ),
        Claim(
            "it keeps no other memory",
            persistent_bytes,
            ("A shard is tensor.flatten().tensor_split(comm.size)[comm.rank]. Whose memory is that?",),
        ),
        Claim("it gathers what is cut, and nothing else", persistent_calls),
    ),
    run=run_persistent,
    hints=(
        "In `whole`, kept[index] has fewer elements than its shape if it was cut; but on one rank, and for an empty "
        "shape, it has not. So decide by the threshold, in both places.",
    ),
    memory=True,
    text=TEXT,
    answer=(Persistent,),
    points=2,
)
