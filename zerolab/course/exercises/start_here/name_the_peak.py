"""Exercise of lesson 00: the peak. The samples come from a tracker that watches a real step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.course.exercises.start_here.claims import SHARDED_FROM, is_whole
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.same import short
from zerolab.memory import Tracker, model_labels
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, engine_labels

TEXT = """
Name the peak

Model states stay; other things come and go, and the highest moment decides whether a step fits. `samples` is what a
`Tracker` saw in a real step, or in the rest of one: a list with a dict for each moment, the bytes by kind, such as
`activations`, `gradient_buffers` or `other`. Each dict has all kinds, with 0 for what is not there.

Find the moment at which *all kinds together* are highest; if there are several, the first. Return its index and the
name of the kind that takes most *at that moment*. About four lines. It need not be the kind that was highest by
itself; if several take as much, name any of them. The check draws steps of small networks, plain and at stage 3, some
watched from the middle on, one millions of times as large, and some in which two kinds trade places.
"""


def name_the_peak(samples: list[dict[str, int]]) -> tuple[int, str]:
    """Index of the highest moment, and the kind that takes most in it."""
    ### BEGIN SOLUTION
    totals = [sum(sample.values()) for sample in samples]
    highest = totals.index(max(totals))
    return highest, max(samples[highest], key=samples[highest].get)
    ### END SOLUTION


def totals(samples: Sequence[Mapping[str, int]]) -> list[int]:
    return [sum(sample.values()) for sample in samples]


def peak(samples: Sequence[Mapping[str, int]]) -> tuple[int, str]:
    """The first of the highest moments, and the kind that takes most then."""
    total = totals(samples)
    at = total.index(max(total))
    return at, largest(samples[at])


def largest(sample: Mapping[str, int]) -> str:
    return max(sample, key=lambda kind: sample[kind])


def tallest(samples: Sequence[Mapping[str, int]]) -> str:
    """The kind with the highest peak of its own."""
    return largest({kind: max(sample[kind] for sample in samples) for kind in samples[0]})


def peak_right(case: Case, seen: Observation) -> str | None:
    samples = case.args[0][0]
    got, (at, kind) = seen.records[0].value, peak(samples)
    if not isinstance(got, list | tuple) or len(got) != 2:
        return f"you return {short(got)}, and two things are due: an index and a kind"
    total, (where, what) = totals(samples), got
    if not is_whole(where) or not 0 <= where < len(samples):
        return f"{short(where)} is no index of {plural(len(samples), 'moment')}"
    if where != at:
        said = f"at moment {where} there are {total[where]} bytes, and at the highest {max(total)}"
        return f"{said}. {why_moment(samples, where, at)}"
    if isinstance(what, str) and samples[at].get(what) == samples[at][kind]:
        return None
    said = f"moment {at} is right. Of it you name {short(what)}"
    if not isinstance(what, str) or what not in samples[at]:
        return f"{said}, and a kind is due, such as 'gradients'"
    said = f"{said}, with {samples[at][what]} bytes, and another kind has {samples[at][kind]}"
    if samples[at][kind] - samples[at][what] < FINE and what in largest_rounded(samples[at]):
        return f"{said}. So small a difference counts, too: compare bytes, unrounded"
    second = largest({name: taken for name, taken in samples[at].items() if name != kind})
    over = f"; of all kinds but {kind} it takes most, so do you pass over {kind}?" if what == second else ""
    if what == tallest(samples):
        return f"{said}. It is the tallest of all at some other moment, and that moment is not asked for{over}"
    if what == max(samples[at]):
        return f"{said}. Did max compare the names? Compare their bytes"
    return f"{said}. Look at all kinds of this moment{over}"


def why_moment(samples: Sequence[Mapping[str, int]], where: int, at: int) -> str:
    total = totals(samples)
    if at == 0:
        return "The highest is the first moment here, number 0: does your search leave it out?"
    left_out = [kind for kind in samples[0] if where == (rest := without(samples, kind)).index(max(rest))]
    also = f"; of all kinds but {' or '.join(left_out)} it is the highest, so is one left out?" if left_out else ""
    if total[where] == max(total):
        first = "Several moments are as high; the first is asked for"
        return f"{first}. If you took the first of those that you see, does your sum leave out a kind?"
    if at == len(samples) - 1 and where == total.index(max(total[:-1])):
        return "The highest is the last moment here: does your search leave it out, or round?"
    if 0 < max(total) - total[where] < TINY:
        return "So small a difference counts, too: compare whole bytes, unrounded, in numbers of more than 32 bits"
    if where in (rounded.index(max(rounded)) for rounded in coarse(total)):
        return "In larger units both are as high, so do not round: compare bytes"
    if where == at + 1:
        return "You are one late: Python counts from 0"
    kind = max(samples[0], key=lambda name: max(sample[name] for sample in samples))
    if samples[where][kind] == max(sample[kind] for sample in samples):
        return f"There {kind} alone is at its highest; a moment's height is the sum of its kinds{also}"
    states = [sum(sample.get(name, 0) for name in SHARDED_FROM) for sample in samples]
    if where == states.index(max(states)):
        return f"There the model states are at their highest; what passes counts, too{also}"
    if left_out:
        return f"A moment's height is the sum of all its kinds{also}"
    if where == len(samples) - 1:
        return "That is the last moment: a peak passes"
    rises = [0, *(later - earlier for earlier, later in pairwise(total))]
    if rises[where] == max(rises):
        return "There the most is added; look at how much there is"
    if total[where] > max(total[where - 1 : where] + total[where + 1 : where + 2]):
        return "That is a peak, but a higher one comes after it: look at all moments"
    return "A moment's height is the sum of all its kinds"


def without(samples: Sequence[Mapping[str, int]], kind: str) -> list[int]:
    """The heights of moments if one kind is left out."""
    return [sum(sample.values()) - sample[kind] for sample in samples]


FINE, TINY = 512, 4
"""Bytes that rounding to a unit of 2**10 may hide, and those that only numbers of 32 bits hide."""


def coarse(total: Sequence[int]) -> list[list[int]]:
    """Totals in larger units than a byte, rounded in either way."""
    return [[how(each / unit) for each in total] for unit in (10**3, 2**10, 10**6, 2**20) for how in (int, round)]


def largest_rounded(sample: Mapping[str, int]) -> set[str]:
    """The kinds that seem to take most if bytes are rounded: the first of those that are alike then, or the last."""
    kinds, rounded = list(sample), coarse(list(sample.values()))
    first = {kinds[each.index(max(each))] for each in rounded}
    return first | {kinds[-1 - each[::-1].index(max(each))] for each in rounded}


def watched(width: int, layers: int, rows: int, steps: int) -> list[dict[str, int]]:
    """Live bytes by kind at each moment of the last of `steps` steps."""
    threads = torch.get_num_threads()
    # So little work is slower on several threads, far slower where the machine is busy.
    torch.set_num_threads(1)
    try:
        return train(width, layers, rows, steps)
    finally:
        torch.set_num_threads(threads)


def train(width: int, layers: int, rows: int, steps: int) -> list[dict[str, int]]:
    modules = [part for _ in range(layers) for part in (nn.Linear(width, width, bias=False), nn.Tanh())]
    model = nn.Sequential(*modules)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    examples = torch.ones(rows, width)
    for _ in range(steps):
        optimizer.zero_grad()
        with Tracker(model_labels(model, optimizer)) as tracker:
            model(examples).sum().backward()
            optimizer.step()
    return [sample.bytes for sample in tracker.samples]


def sharded_step(comm: Collectives, width: int, rows: int) -> list[dict[str, int]]:
    """The same for a rank at stage 3, where layers come and go."""
    engine = ZeroEngine(nn.Sequential(*(nn.Linear(width, width) for _ in range(4))), comm, 3, lr=1e-3)
    with Tracker(engine_labels(engine)) as tracker:
        engine.backward(engine(torch.ones(rows, width)).sum())
        engine.step()
    return [sample.bytes for sample in tracker.samples]


def peak_cases(rng: Random) -> list[Case]:
    cases = []

    def add(samples: list[dict[str, int]], said: str) -> None:
        cases.append(Case([(samples,)], about=f"{said}, {plural(len(samples), 'moment')}"))

    for rows, steps in ((200, 2), (4, 1), (4, 2), (50, 1)):
        width, layers = rng.randint(16, 40), rng.randint(2, 4)
        rows += rng.randint(0, rows // 4)
        add(
            watched(width, layers, rows, steps),
            f"step {steps} of {plural(layers, 'layer')} of {width}, {rows} examples",
        )
    # Here the kind that was highest of all is not the largest at the peak. Nearly every draw is such a one.
    while True:
        width, layers = rng.randint(20, 40), rng.randint(4, 6)
        rows = 2 * width + rng.randint(0, 4)
        samples = watched(width, layers, rows, 2)
        if peak(samples)[1] != tallest(samples):
            break
    add(samples, f"step 2 of {plural(layers, 'layer')} of {width}, {rows} examples")
    # In a deep network activations take most.
    width, layers = rng.randint(16, 24), rng.randint(7, 8)
    rows = 4 * width
    deep = watched(width, layers, rows, 2)
    add(deep, f"step 2 of {plural(layers, 'layer')} of {width}, {rows} examples")
    width, rows = rng.randint(16, 40), rng.randint(2, 8)
    samples = launch(sharded_step, width, rows, ranks=2, world="lockstep", device="cpu", prints="quiet")[0]
    add(samples, f"stage 3 on rank 0 of 2, 4 layers of {width}, {plural(rows, 'example')}")
    # A few bytes make the difference, and the highest moment comes first.
    width, rows = rng.randint(2, 4), rng.randint(2, 4)
    samples = watched(width, 2, rows, 2)
    add(samples, f"step 2 of 2 layers of {width}, {rows} examples")
    add(samples[peak(samples)[0] :], "the same step, watched from its highest moment on")
    # A moment that is one byte lower comes first: 32-bit floats could not tell them apart, and 32-bit integers hold
    # only that one. And one that is as high, of other kinds, comes last.
    at, kind = peak(samples)
    times, rest = divmod(2**31, sum(samples[at].values()))
    large = [{name: taken * times + rest * (name == kind) for name, taken in sample.items()} for sample in samples]
    large.append(dict(zip(large[at], reversed(large[at].values()), strict=True)))
    # So is one in which a single kind takes nearly all; and in it the kinds stand in another order.
    taken = sum(large[at].values())
    large.append(dict.fromkeys(reversed(large[at]), 1) | {kind: taken - len(large[at]) + 1})
    large.insert(at, large[at] | {kind: large[at][kind] - 1})
    add(large, "the same step, millions of times as large")
    # A sample is a dict: it says by name, and not by place, what a kind takes.
    turned = []
    for turn, sample in enumerate(deep):
        kinds = list(sample)
        kinds = kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]
        turned.append({kind: sample[kind] for kind in kinds})
    add(turned, f"a step of {plural(layers, 'layer')}, the kinds of each moment in another order")
    # Each kind takes most somewhere: who never names one must not pass by luck.
    most = peak(deep)[1]
    for kind in deep[0]:
        if kind != most:
            said = f"a step of {plural(layers, 'layer')} in which {kind} and {most} trade places"
            add([sample | {kind: sample[most], most: sample[kind]} for sample in deep], said)
    return cases


EXERCISE = Exercise(
    "name_the_peak",
    peak_cases,
    (
        Claim("it finds the highest moment, and what takes most there", peak_right),
        Claim("its input stays as it was", untouched(0)),
    ),
    run=alone,
    hints=(
        "How high is a moment? Write down the totals first.",
        "max(names, key=...) finds the name with the largest number; list.index finds the first place.",
    ),
    text=TEXT,
    answer=(name_the_peak,),
    points=2,
)
