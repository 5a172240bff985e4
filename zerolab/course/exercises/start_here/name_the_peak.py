"""Exercise of lesson 00: the peak. The samples come from a tracker that watches a real step."""

from __future__ import annotations

from random import Random

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives
from zerolab.memory import Tracker
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


MISTAKES = r"""
There one kind alone is at its highest; a moment's height is the sum of its kinds
    sum(sample.values()) => max(sample.values())
There the model states are at their highest; what passes counts, too
    sum(sample.values()) => sum(sample[kind] for kind in ("parameters", "gradients", "optimizer_states"))
That is the last moment: a peak passes
    totals.index(max(totals)) => len(totals) - 1
You are one late: Python counts from 0
    return highest => return highest + 1
That is a peak, but a higher one comes after it: look at all moments
    max(totals) => next((b for a, b, c in zip(totals, totals[1:], totals[2:]) if a < b > c), totals[0])
Several moments are as high; the first is asked for
    totals.index(max(totals)) => len(totals) - 1 - totals[::-1].index(max(totals))
So small a difference counts, too: float32 and 32-bit integers do not hold it, so compare whole bytes
    sum(sample.values()) => torch.tensor(sum(sample.values())).float()
It is the tallest of all at some other moment, and that moment is not asked for
    max(samples[highest], key=samples[highest].get) => max(samples[0], key=lambda kind: max(s[kind] for s in samples))
Did max compare the names? Compare their bytes
    , key=samples[highest].get =>
So small a difference counts, too: compare bytes, unrounded
    key=samples[highest].get => key=lambda kind: samples[highest][kind] // 512
Go by names: the kinds of each moment stand in an order of their own
    return highest => samples[highest] = dict(zip(samples[0], samples[highest].values()))\n    return highest
"""


def watched(comm: Collectives, stage: int, width: int, layers: int, rows: int, steps: int) -> list[dict[str, int]]:
    """Live bytes by kind at each moment of the last of `steps` steps."""
    modules = [part for _ in range(layers) for part in (nn.Linear(width, width, bias=False), nn.Tanh())]
    engine = ZeroEngine(nn.Sequential(*modules), comm, stage, lr=1e-3)
    for _ in range(steps):
        with Tracker(engine_labels(engine)) as tracker:
            engine.backward(engine(torch.ones(rows, width)).sum())
            engine.step()
    return [sample.bytes for sample in tracker.samples]


def peak_cases(rng: Random) -> list[Case]:
    cases = []

    def add(samples: list[dict[str, int]], said: str) -> list[dict[str, int]]:
        at, kind = name_the_peak(samples)
        if sorted(samples[at].values())[-2:] == [samples[at][kind]] * 2:
            samples[at][kind] += 1  # so that one name is right
        cases.append(Case([(samples,)], about=f"{said}, {plural(len(samples), 'moment')}"))
        return samples

    def add_step(width: int, layers: int, rows: int, steps: int = 2, stage: int = 0) -> list[dict[str, int]]:
        of = (stage, width, layers, rows, steps)
        samples = launch(watched, *of, ranks=1 + stage % 2, world="lockstep", device="cpu", prints="quiet")[0]
        return add(samples, f"step {steps} at stage {stage}, {layers} layers of {width}, {rows} examples")

    # In a deep network activations take most.
    width = rng.randint(16, 24)
    deep = add_step(width, rng.randint(7, 8), 4 * width)
    # Each kind takes most somewhere: who never names one, or leaves it out, must not pass by luck.
    kinds, most = list(deep[0]), name_the_peak(deep)[1]
    for kind in kinds:
        if kind != most:
            swapped = [sample | {kind: sample[most], most: sample[kind]} for sample in deep]
            add(swapped, f"a deep network in which {kind} and {most} trade places")
    # A sample is a dict: it says by name, and not by place, what a kind takes.
    turned = [dict(rng.sample([*sample.items()], len(sample))) for sample in deep]
    add(turned, "a deep network, the kinds of each moment in another order")
    for rows, steps in ((200, 2), (4, 1), (4, 2), (50, 1)):
        add_step(rng.randint(16, 40), rng.randint(2, 4), rows + rng.randint(0, rows // 4), steps)
    # Here the kind that was highest of all is not the largest at the peak.
    add_step(rng.randint(16, 40), rng.randint(3, 4), rng.randint(2, 8), steps=1, stage=3)
    # A few bytes make the difference, and the highest moment comes first.
    samples = add_step(rng.randint(2, 4), 2, rng.randint(2, 4))
    at, kind = name_the_peak(samples)
    add(samples[at:], "the same step, watched from its highest moment on")
    # A moment that is one byte lower comes first: 32-bit floats could not tell them apart, and 32-bit integers hold
    # only that one. And one that is as high, of other kinds, comes last.
    times, rest = divmod(2**31, sum(samples[at].values()))
    large = [{name: taken * times + rest * (name == kind) for name, taken in sample.items()} for sample in samples]
    large.append(dict(zip(large[at], reversed(large[at].values()), strict=True)))
    # So is one in which a single kind takes nearly all; and in it the kinds stand in another order.
    taken = sum(large[at].values())
    large.append(dict.fromkeys(reversed(large[at]), 1) | {kind: taken - len(large[at]) + 1})
    large.insert(at, large[at] | {kind: large[at][kind] - 1})
    add(large, "the same step, millions of times as large")
    return cases


EXERCISE = Exercise(
    "name_the_peak",
    peak_cases,
    (
        Claim(
            "it finds the highest moment",
            Gives(lambda record: record.value[0], "Add up all kinds of each moment, to the byte"),
        ),
        Claim(
            "it names what takes most there",
            Gives(lambda record: record.value[1], "Look at all kinds of this moment"),
        ),
    ),
    run=alone,
    hints=(
        "How high is a moment? Write down the totals first.",
        "max(names, key=...) finds the name with the largest number; list.index finds the first place.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(name_the_peak,),
    points=2,
)
