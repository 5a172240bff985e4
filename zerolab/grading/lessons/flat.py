"""Exercises of lesson 02: flat buffers. The plain functions are here, the others beside: a module that lives in a row
(`flat_module`), gradients that travel (`flat_travel`, `flat_overlap`), and a trace (`flat_trace`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from zerolab.flat.layout import round_up
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import alike, short
from zerolab.grading.exercise import Claim, Exercise, Test
from zerolab.grading.lessons import flat_module, flat_overlap, flat_trace, flat_travel
from zerolab.grading.lessons.flat_module import laid, laid_out
from zerolab.grading.lessons.twice import LEAVES_ITS_INPUT, REMEMBERS, twice

Answer = Callable[..., Any]


def answers(right: Answer, mistakes: Mapping[str, Answer], look: str) -> Test:
    """A plain function returns what `right` returns. `mistakes` are functions that people write instead, by what to
    say of them; `look` is said of all others."""

    def test(case: Case, seen: Observation) -> str | None:
        values = [record.value["first"] for record in seen.records]
        wrong = [i for i, value in enumerate(values) if not alike(value, right(*case.args[i]), 0.0)]
        if not wrong:
            return None
        args, got = case.args[wrong[0]], values[wrong[0]]
        whose = f"for rank {wrong[0]} " if case.ranks > 1 else ""
        said = f"{case.about}: {whose}you say {short(got)}, and it is {short(right(*args))}"
        for says, mistake in mistakes.items():
            if all(alike(values[i], mistake(*case.args[i]), 0.0) for i in wrong):
                return f"{said}. {says}"
        return f"{said}. {look}"

    return test


# 1. Where parameters lie.


def lay_out_cases(rng: Random) -> list[Case]:
    shapes = [([6, 1], 2, 4), ([8, 4, 4], 2, 4), ([5, 0, 3], 3, 2), ([], 4, 8), ([7], 4, 1)]
    shapes += [([5, 7], 2, 6), ([4, 9, 2], 2, 3), ([290, 3, 8], 3, 4)]
    for ranks in (2, 3, 4, 1, 8):
        numels = [rng.randint(0, 40) for _ in range(rng.randint(2, 6))]
        shapes.append((numels, ranks, rng.choice((1, 2, 4, 6, 16))))
    return [Case([shape], about=layout_about(*shape)) for shape in shapes]


def layout_about(numels: Sequence[int], ranks: int, align: int) -> str:
    return f"parameters of {list(numels)} elements, {plural(ranks, 'rank')}, align={align}"


LAID_OUT_WRONG: dict[str, Answer] = {
    "Parameters lie one behind the other here; each starts at a multiple of align": (
        lambda numels, ranks, align: laid(numels, lambda end: end, lambda end: round_up(end, ranks * align))
    ),
    "The starts are right; the length is a multiple of ranks only, and shards have to start at round places, too": (
        lambda numels, ranks, align: laid(numels, lambda end: round_up(end, align), lambda end: round_up(end, ranks))
    ),
    "The starts are right; the length is a multiple of align only: shards may be unequal, or begin at odd places": (
        lambda numels, ranks, align: laid(numels, lambda end: round_up(end, align), lambda end: round_up(end, align))
    ),
    "The starts are right; you return the end of the last parameter, without padding for the ranks": (
        lambda numels, ranks, align: laid(numels, lambda end: round_up(end, align), lambda end: end)
    ),
    "Masks of bits round to powers of two alone, and align may be any number": (
        lambda numels, ranks, align: laid(
            numels, lambda end: (end + align - 1) & ~(align - 1), lambda end: round_up(end, ranks * align)
        )
    ),
    "Without parameters there is nothing to hold, and 0 is a multiple, too": (
        lambda numels, ranks, align: (
            laid_out(numels, ranks, align)[0], max(laid_out(numels, ranks, align)[1], ranks * align)
        )
    ),
    "A parameter without elements takes no place, and yet its start is a multiple of align like any other": (
        lambda numels, ranks, align: (
            [
                start if numels[n] or not n else laid_out(numels, ranks, align)[0][n - 1] + numels[n - 1]
                for n, start in enumerate(laid_out(numels, ranks, align)[0])
            ],
            laid_out(numels, ranks, align)[1],
        )
    ),
    "The starts are right; the length is one unit longer than it must be where parameters fill the row already": (
        lambda numels, ranks, align: (
            laid_out(numels, ranks, align)[0],
            (laid(numels, lambda end: round_up(end, align), int)[1] // (ranks * align) + 1) * ranks * align,
        )
    ),
    "Only the end of the row is a multiple of ranks * align, not the end of each parameter": (
        lambda numels, ranks, align: laid(
            numels, lambda end: round_up(end, ranks * align), lambda end: round_up(end, ranks * align)
        )
    ),
    "Each parameter has a start, also one without elements": (
        lambda numels, ranks, align: laid_out([numel for numel in numels if numel], ranks, align)
    ),
    "You round up what is a multiple already; look at what your formula makes of align itself": (
        lambda numels, ranks, align: laid(
            numels,
            lambda end: (end // align + 1) * align,
            lambda end: (end // (ranks * align) + 1) * ranks * align,
        )
    ),
    "A parameter without elements takes no place; the next may start where it does": (
        lambda numels, ranks, align: laid(
            numels, lambda end: round_up(end, align), lambda end: round_up(end, ranks * align), least=1
        )
    ),
    "You put padding behind a parameter that needs none; look at what your formula makes of align itself": (
        lambda numels, ranks, align: laid(
            [(numel // align + 1) * align for numel in numels],
            lambda end: end,
            lambda end: round_up(end, ranks * align),
        )
    ),
    "You say where parameters end; the list wants where they start": (
        lambda numels, ranks, align: (
            [start + numel for start, numel in zip(laid_out(numels, ranks, align)[0], numels, strict=True)],
            laid_out(numels, ranks, align)[1],
        )
    ),
    "You round starts down, so that parameters overlap": (
        lambda numels, ranks, align: laid(
            numels, lambda end: end // align * align, lambda end: round_up(end, ranks * align)
        )
    ),
    "You round starts and length down, so that parameters overlap and do not fit": (
        lambda numels, ranks, align: laid(
            numels, lambda end: end // align * align, lambda end: end // (ranks * align) * ranks * align
        )
    ),
}  # fmt: skip


# 2. Who owns what.


def owned_cases(rng: Random) -> list[Case]:
    shapes = [([6, 3], 2, 4), ([7, 0, 30], 3, 2), ([3], 4, 1), ([8, 8], 2, 8), ([], 3, 4)]
    for ranks in (2, 3, 4, 1):
        numels = [rng.randint(0, 40) for _ in range(rng.randint(2, 5))]
        shapes.append((numels, ranks, rng.choice((1, 2, 4))))
    cases = []
    for numels, ranks, align in shapes:
        starts, length = laid_out(numels, ranks, align)
        what = f"starts {starts}, sizes {numels}, a row of {length} on {plural(ranks, 'rank')}"
        cases.append(Case([(starts, numels, length, ranks, rank) for rank in range(ranks)], about=what))
    return cases


def owned(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> list[Any]:
    return [
        (number, a - starts[number], b - starts[number]) for number, a, b in cut(starts, numels, length, ranks, rank)
    ]


def cut(
    starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int, least: int = 1
) -> list[tuple[int, int, int]]:
    """(parameter, start, stop) of what a rank owns, counted in the row."""
    first, last = rank * (length // ranks), (rank + 1) * (length // ranks)
    spans = enumerate(zip(starts, numels, strict=True))
    clipped = [(number, max(start, first), min(start + numel, last)) for number, (start, numel) in spans]
    return [piece for piece in clipped if piece[2] - piece[1] >= least]


def with_padding(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> list[Any]:
    padded = [stop - start for start, stop in zip(starts, [*starts[1:], length], strict=True)]
    return owned(starts, padded, length, ranks, rank)


def whole_parameters(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> list[Any]:
    shard = max(length // ranks, 1)
    at = enumerate(zip(starts, numels, strict=True))
    return [(number, 0, numel) for number, (start, numel) in at if start // shard == rank and numel]


def with_empty(least: int) -> Answer:
    """`owned` that leaves out only what is shorter than `least`."""

    def pieces(starts: Sequence[int], numels: Sequence[int], length: int, ranks: int, rank: int) -> list[Any]:
        return [(n, a - starts[n], b - starts[n]) for n, a, b in cut(starts, numels, length, ranks, rank, least)]

    return pieces


OWNED_WRONG: dict[str, Answer] = {
    "You count from the start of the row; start and stop count from the start of the parameter": cut,
    "You count from the start of the shard; start and stop count from the start of the parameter": (
        lambda *args: [(n, *(at - args[4] * (args[2] // args[3]) for at in ab)) for n, *ab in cut(*args)]
    ),
    "Padding belongs to nobody: a parameter stops after its own elements, not where the next one starts": with_padding,
    "A parameter does not belong whole to the rank in whose shard it starts; shards cut through it": whole_parameters,
    "A piece of no elements does not appear: what must hold between start and stop?": with_empty(0),
    "You list every parameter; those that the shard does not meet come out with a stop before their start": (
        with_empty(-(10**9))
    ),
    "You cut each parameter into equal parts; it is the row that is cut, once": (
        lambda starts, numels, length, ranks, rank: [
            (number, rank * numel // ranks, (rank + 1) * numel // ranks)
            for number, numel in enumerate(numels) if rank * numel // ranks < (rank + 1) * numel // ranks
        ]
    ),
    "Stop is one past the last element, as in range and in slices": (
        lambda *args: [(number, start, stop - 1) for number, start, stop in owned(*args)]
    ),
}  # fmt: skip


EXERCISES = (
    Exercise(
        "lay_out",
        lay_out_cases,
        (
            Claim(
                "starts are round, and the length gives equal, round shards",
                answers(laid_out, LAID_OUT_WRONG, "Lay two small parameters out by hand, and compare"),
            ),
            REMEMBERS,
            LEAVES_ITS_INPUT,
        ),
        run=twice,
        hints=(
            "Rounding up to a multiple happens twice: for each start, and once for the length.",
            "Keep one number, where the last parameter ends; -(-a // b) is a / b rounded up.",
        ),
    ),
    Exercise(
        "owned",
        owned_cases,
        (
            Claim(
                "each rank gets the pieces that lie in its shard, and nothing else",
                answers(owned, OWNED_WRONG, "Draw the row, and the borders of the shards on it"),
            ),
            REMEMBERS,
            LEAVES_ITS_INPUT,
        ),
        run=twice,
        hints=(
            "The shard of a rank is a range [first, last) of the row. What does it share with [start, start + numel)?",
            "Two ranges share max(starts) to min(stops), if that is not empty. Then count from the parameter's start.",
        ),
    ),
    flat_module.FLATTEN,
    flat_travel.AVERAGE,
    flat_overlap.OVERLAPPED,
    flat_trace.CULPRIT,
)
