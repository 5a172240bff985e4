"""The exercise of lesson 09 on the size of buckets: few are late, many wait for latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import NEARLY, Mistakes, answers
from zerolab.course.judge.same import alike

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


Bucket = tuple[float, float, int]
"""When its first and its last layer are ready, and its bytes."""


def buckets_of(ready: Sequence[float], nbytes: Sequence[int], size: int, slip: str = "") -> list[Bucket]:
    """Layers joined in order until a bucket is full, open to slips."""
    found: list[Bucket] = []
    first, held, last = 0.0, 0, 0.0
    for time, more in zip(ready, nbytes, strict=True):
        if slip == "at most" and held and held + more > size:
            found.append((first, last, held))
            held = 0
        first = first if held else time
        held, last = held + more, time
        full = {"more than": held > size, "at most": held >= size, "a layer each": True}.get(slip, held >= size)
        if full:
            found.append((first, last, held))
            held = 0
    if held and slip != "no rest":
        found.append((first, last, held))
    return found


def end(
    ready: Sequence[float],
    nbytes: Sequence[int],
    size: int,
    ranks: int,
    latency: float,
    bandwidth: float,
    slip: str = "",
) -> float:
    """When the last bucket has been reduced, open to slips."""
    free = 0.0
    for first, last, held in buckets_of(ready, nbytes, size, slip):
        steps = {"one round": ranks - 1, "one step": 2 * min(ranks - 1, 1), "N steps": 2 * ranks}.get(
            slip, 2 * (ranks - 1)
        )
        share = held if slip == "whole" else held / ranks
        taken = steps * ((0.0 if slip == "no latency" else latency) + share / bandwidth)
        if slip == "latency once":
            taken = min(steps, 1) * latency + steps * share / bandwidth
        complete = {"first layer": first, "at the end": ready[-1]}.get(slip, last)
        begin = complete if slip == "at once" else max(free, complete)
        free = max(free, begin + taken) if slip == "at once" else begin + taken
    return free


def best(
    ready: Sequence[float],
    nbytes: Sequence[int],
    sizes: Sequence[int],
    ranks: int,
    latency: float,
    bandwidth: float,
    slip: str = "",
) -> tuple[int, float]:
    """(Size, end) of the best candidate, open to slips."""
    ends = [(end(ready, nbytes, size, ranks, latency, bandwidth, slip), size) for size in sizes]
    if slip == "exposed":
        ends = [(time - ready[-1], size) for time, size in ends]
    if slip == "latest":
        time, size = max(ends)
    elif slip == "largest":
        time, size = min(ends, key=lambda one: (one[0], -one[1]))
    elif slip == "in order":
        time, size = min(ends, key=lambda one: one[0])
    elif slip == "last":
        time, size = min(reversed(ends), key=lambda one: one[0])
    else:
        time, size = min(ends)
    return size, time


TEXTS = {
    "largest": "Of sizes that end equally early the smallest is due: it takes least memory",
    "in order": "Of sizes that end equally early the smallest is due, wherever it stands in the list",
    "last": "Of sizes that end equally early the smallest is due, and not the last in the list",
    "latest": "That is the size with the latest end; the earliest is asked for",
    "exposed": "That counts from the moment when backward has ended; seconds since its start are asked for",
    "at once": "The wire carries one bucket at a time: the next waits until it is free",
    "first layer": "A bucket is complete when the last of its layers is ready, not the first",
    "at the end": "A bucket need not wait for the whole backward: it leaves when it is complete and the wire is free",
    "no rest": "The last bucket leaves, too, when it is not full",
    "at most": "A bucket may become larger than the size: the layer that reaches it belongs to it",
    "more than": "A bucket of exactly the size is full",
    "a layer each": "Layers are joined: a bucket with fewer bytes than the size takes the next layer, too",
    "one round": "An all-reduce is two rounds of N-1 steps",
    "one step": "A round takes N-1 steps, and you take one",
    "N steps": "A round takes N-1 steps, not N",
    "whole": "In each step an N-th of the bucket travels",
    "no latency": "Each step has its latency: without it the smallest buckets would always be best",
    "latency once": "Each of a bucket's steps has its latency",
}
SLIPS: Mistakes = {text: partial(best, slip=slip) for slip, text in TEXTS.items()} | {
    "The size alone is not enough: (size, seconds)": lambda *args: best(*args)[0],
    "The seconds alone are not enough: (size, seconds)": lambda *args: best(*args)[1],
    "The size comes first, the seconds second": lambda *args: best(*args)[::-1],
}
_judged = answers(best, SLIPS, "Write down for one size when each bucket is complete, begins and ends")


def found_best(case: Case, seen: Observation) -> str | None:
    """A size may come back as a float."""
    record = seen.records[0]
    if isinstance(record.value, list | tuple) and len(record.value) == 2:
        size, time = record.value
        size = int(size) if isinstance(size, float) and size.is_integer() else size
        seen = replace(seen, records=[replace(record, value=[size, time])])
    return _judged(case, seen)


# Cases.


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
    sizes = rng.sample(sizes, rng.randint(4, len(sizes)))
    return ready, nbytes, sizes, ranks, latency, bandwidth


def suits(args: tuple[Any, ...], slip: str) -> bool:
    """Whether no two ends are nearly and not quite alike, and the slip shows and looks like no other. On one rank all
    sizes end at once: the first and the last in the list are neither the smallest nor the largest."""
    ready, nbytes, sizes, ranks, latency, bandwidth = args
    ends = sorted(end(ready, nbytes, size, ranks, latency, bandwidth) for size in sizes)
    if any(0 < late - early <= 1e-6 * late for early, late in pairwise(ends)):
        return False
    if ranks == 1 and {sizes[0], sizes[-1]} & {min(sizes), max(sizes)}:
        return False
    if not slip:
        return True
    got = best(*[*args, slip])
    others = [best(*[*args, other]) for other in ["", *TEXTS] if other != slip]
    return not any(alike(got, other, NEARLY) for other in others)


def found(rng: Random, slip: str = "", layers: int = 0, ranks: int = 0, even: bool = False) -> Case:
    for _ in range(5000):
        args = drawn(rng, layers or rng.randint(6, 16), ranks or rng.choice((2, 4, 8, 64)), even)
        if suits(args, slip):
            break
    ready, nbytes, sizes, count, *_ = args
    what = f"{plural(len(nbytes), 'layer')} of {sum(nbytes):,} bytes, ready after {ready[0]:.3g} to {ready[-1]:.3g} s"
    return Case([args], about=f"{what}, {plural(count, 'rank')}, sizes {sizes}")


def bucket_cases(rng: Random) -> list[Case]:
    """A case for each slip, in which it shows and no other looks the same; few layers, many, alike; one rank."""
    alone_shown = [slip for slip in TEXTS if slip not in ("largest", "in order", "last")]
    # Every size ends at the same moment where nothing is sent: the smallest is due.
    tied = [found(rng, layers=5, ranks=1), found(rng, layers=9, ranks=1)]
    cases = [found(rng, slip) for slip in alone_shown]
    few = [found(rng, layers=1, ranks=4), found(rng, layers=2, ranks=3), found(rng, layers=40, ranks=8, even=True)]
    return [*cases, *few, *tied]


EXERCISE = Exercise(
    "best_bucket",
    bucket_cases,
    (
        Claim("it finds the size with the earliest end, and that end", found_best),
        Claim("its lists stay as they were", untouched(0, 1, 2)),
    ),
    run=alone,
    hints=(
        "First for one size: walk through the layers with the bytes that the open bucket holds so far.",
        "When a bucket is complete, it begins at the later of two moments: now, and when the wire is free.",
        "Then the earliest end of all sizes, and of equal ones the smallest: min() of (end, size).",
    ),
    text=TEXT,
    answer=(best_bucket,),
    points=2,
)
