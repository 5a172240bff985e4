"""The exercise of lesson 09 on the size of buckets: when does the last one end?"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives, program, read_mistakes
from zerolab.course.judge.same import NEARLY, alike

TEXT = """
Few buckets or many?

In backward the layers' gradients become ready one after the other. Reduced together, in one bucket, they pay the
latency once, but nothing travels before backward has ended. Reduced one by one, they leave early, and each pays the
latency. Find the best size in between.

Layer i, counted in the order of backward, has `nbytes[i]` bytes of gradients, all of them ready `ready[i]` seconds
after backward's start, never before those of layer i - 1. For a given size of buckets:

- Layers are joined in order. As soon as a bucket has *at least* `size` bytes it is full, and the next layer opens a
  new one. Layers are not cut. The last bucket may stay smaller.
- A bucket is complete when the last of its layers is ready. It is all-reduced over `ranks` ranks, at the price above,
  where N need not divide the bytes.
- The wire carries one bucket at a time, in order. Each begins when it is complete and the wire is free.

`sizes` are the candidates, in any order. Return `(size, seconds)`: the size with which the last bucket has been
reduced earliest, and when that is, in seconds since backward's start. Of sizes that end equally early, the smallest.

By hand: three layers of 100 bytes, ready after 1, 2 and 6 s; 2 ranks, a latency of 1 s, 100 bytes/s. A bucket of n
bytes takes 2 (1 + n / 2 / 100) = 2 + n / 100 s.

    size 100      [0] 1 to 4     [1] 4 to 7     [2] 7 to 10     ends after 10 s
    size 150      [0, 1] 2 to 6                 [2] 6 to 9      ends after  9 s
    size 300      [0, 1, 2] 6 to 11                             ends after 11 s

So `best_bucket([1, 2, 6], [100, 100, 100], [300, 150, 100], 2, 1, 100)` is `(150, 9)`. The check draws 1 to 40
layers, 1 to 64 ranks, sizes below the smallest layer and above all together. About fifteen lines.
"""


def best_bucket(
    ready: list[float], nbytes: list[int], sizes: list[int], ranks: int, latency: float, bandwidth: float
) -> tuple[int, float]:
    """(the size of buckets with the earliest end, that end in seconds)."""
    ### BEGIN SOLUTION

    def end(size):
        free = held = 0
        for layer, (time, more) in enumerate(zip(ready, nbytes, strict=True), 1):
            held += more
            if held >= size or layer == len(ready):
                free = max(free, time) + 2 * (ranks - 1) * (latency + held / ranks / bandwidth)
                held = 0
        return free

    seconds, size = min((end(size), size) for size in sizes)
    return size, seconds
    ### END SOLUTION


MISTAKES = r"""
Of sizes that end equally early the smallest is due: it takes least memory
    min((end(size), size) for size in sizes) => min(((end(size), size) for size in sizes), key=lambda a: (a[0], -a[1]))
That is the size with the latest end; the earliest is asked for
    min((end => max((end
The wire carries one bucket at a time: the next waits until it is free
    max(free, time) + => max(free, time +
    / bandwidth) => / bandwidth))
A bucket is complete when the last of its layers is ready, not the first
    held += more => first = first if held else time\n            held += more
    max(free, time) => max(free, first)
A bucket need not wait for the whole backward: it leaves when it is complete and the wire is free
    max(free, time) => max(free, ready[-1])
The last bucket leaves, too, when it is not full
    held >= size or layer == len(ready) => held >= size
A bucket may become larger than the size: the layer that reaches it belongs to it
    held >= size or layer == len(ready) => layer == len(ready) or held + nbytes[layer] > size
A bucket of exactly the size is full
    held >= size => held > size
Layers are joined: a bucket with fewer bytes than the size takes the next layer, too
    held >= size => True
An all-reduce is two rounds of N-1 steps
    2 * (ranks - 1) => (ranks - 1)
A round takes N-1 steps, and you take one
    (ranks - 1) => min(ranks - 1, 1)
Each step has its latency: without it the smallest buckets would always be best
    (latency + => (
"""


def pair(record: Record) -> Any:
    """A size may come back as a float."""
    value = record.value
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], float) and value[0].is_integer():
        return [int(value[0]), value[1]]
    return value


def drawn(rng: Random, layers: int, ranks: int, even: bool = False) -> tuple[Any, ...]:
    """Layers of some sizes, and a link on which a bucket of about four layers takes as long as computing them."""
    unit = rng.randint(20, 400) * 1000
    nbytes = [unit * (1 if even else rng.choice((1, 1, 2, 3))) for _ in range(layers)]
    bandwidth = rng.choice((1.25e9, 1.25e10, 2.5e10))
    rounds = 2 * max(ranks - 1, 1)
    mean = rounds * sum(nbytes) / layers / ranks / bandwidth
    latency = mean * rng.uniform(0.3, 3) / rounds
    ready, now = [], 0.0
    for part in nbytes:
        now += mean * rng.uniform(0.6, 1.6) * part * layers / sum(nbytes)
        ready.append(now)
    sizes = sorted({unit * many for many in (1, 2, 3, 4, 6, 9, 14, 3 * layers, 4 * layers)})
    return ready, nbytes, rng.sample(sizes, rng.randint(4, len(sizes))), ranks, latency, bandwidth


def found(rng: Random, answers: list[Any], shown: int = 0, layers: int = 0, ranks: int = 0, even: bool = False) -> Case:
    """A draw in which no two ends are nearly and not quite alike, and the answer at `shown` gives what no other one
    does. On one rank all sizes end at once: the first and the last in the list are neither the smallest nor the
    largest."""
    for _ in range(5000):
        args = drawn(rng, layers or rng.randint(6, 16), ranks or rng.choice((2, 4, 8, 64)), even)
        ready, nbytes, sizes, *others = args
        ends = sorted(best_bucket(ready, nbytes, [size], *others)[1] for size in sizes)
        if any(0 < late - early <= 1e-6 * late for early, late in pairwise(ends)):
            continue
        if others[0] == 1 and {sizes[0], sizes[-1]} & {min(sizes), max(sizes)}:
            continue
        gave = [answer(*args) for answer in answers]
        if not shown or sum(alike(gave[shown], other, NEARLY) for other in gave) == 1:
            break
    return Case([args])


def bucket_cases(rng: Random) -> list[Case]:
    """A case for each mistake, in which it shows and no other looks the same; few layers, many, alike; one rank."""
    answers = [best_bucket, *(program(best_bucket, change) for change in read_mistakes(MISTAKES).values())]
    # The first mistake shows only where sizes end at once.
    cases = [found(rng, answers, shown) for shown in range(2, len(answers))]
    for layers, ranks in ((1, 4), (2, 3), (40, 8), (5, 1), (9, 1)):
        cases.append(found(rng, answers, layers=layers, ranks=ranks, even=layers == 40))
    return cases


EXERCISE = Exercise(
    "best_bucket",
    bucket_cases,
    (
        Claim(
            "it finds the size with the earliest end, and that end",
            Gives(pair, "Write down for one size when each bucket is complete, begins and ends"),
        ),
    ),
    run=alone,
    hints=(
        "First for one size: walk through the layers with the bytes that the open bucket holds so far.",
        "When a bucket is complete, it begins at the later of two moments: now, and when the wire is free.",
        "Then the earliest end of all sizes, and of equal ones the smallest: min() of (end, size).",
    ),
    mistakes=MISTAKES,
    without=frozenset({"shape"}),
    text=TEXT,
    answer=(best_bucket,),
    points=2,
)
