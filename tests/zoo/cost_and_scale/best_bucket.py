"""Answers to `best_bucket` of lesson 09, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("buckets first, then the wire", """
def best_bucket(ready, nbytes, sizes, ranks, latency, bandwidth):
    best = None
    for size in sorted(sizes):
        buckets = [[0.0, 0]]
        for time, more in zip(ready, nbytes):
            if buckets[-1][1] >= size:
                buckets.append([0.0, 0])
            buckets[-1][0] = time
            buckets[-1][1] += more
        now = 0.0
        for complete, held in buckets:
            now = complete if complete > now else now
            now += 2 * (ranks - 1) * latency + 2 * (ranks - 1) / ranks * held / bandwidth
        if best is None or now < best[1] * (1 - 1e-12):
            best = size, now
    return best
"""),
    Right("fractions", """
from fractions import Fraction as F


def best_bucket(ready, nbytes, sizes, ranks, latency, bandwidth):
    def end(size):
        free, held = F(0), 0
        for i in range(len(ready)):
            held += nbytes[i]
            if held < size and i + 1 < len(ready):
                continue
            free = max(free, F(ready[i]))
            free += 2 * (ranks - 1) * (F(latency) + F(held, ranks) / F(bandwidth))
            held = 0
        return free

    size = min(sorted(sizes), key=end)
    return [size, float(end(size))]
"""),
    Right("a generator and reduce", """
from functools import reduce


def best_bucket(ready, nbytes, sizes, ranks, latency, bandwidth):
    def buckets(size):
        held, time = 0, 0
        for time, more in zip(ready, nbytes):
            held += more
            if held >= size:
                yield time, held
                held = 0
        if held:
            yield time, held

    def ring(held):
        return 2 * (ranks - 1) * (latency + held / (ranks * bandwidth))

    ends = {size: reduce(lambda free, one: max(free, one[0]) + ring(one[1]), buckets(size), 0.0) for size in sizes}
    earliest = min(ends.values())
    return min(size for size, end in ends.items() if end == earliest), earliest
"""),
    Right("torch, from the back", """
def best_bucket(ready, nbytes, sizes, ranks, latency, bandwidth):
    found = []
    for size in sizes:
        groups, held = [], 0
        for k, n in enumerate(nbytes):
            held += n
            if held >= size:
                groups.append((k, held))
                held = 0
        if held:
            groups.append((len(nbytes) - 1, held))
        costs = torch.tensor([2 * (ranks - 1) * (latency + n / ranks / bandwidth) for _, n in groups],
                             dtype=torch.float64)
        starts = torch.tensor([ready[k] for k, _ in groups], dtype=torch.float64)
        # The end is the latest of: a bucket is ready, and then it and all after it travel.
        after = costs.flip(0).cumsum(0).flip(0)
        found.append(((starts + after).max().item(), size))
    low = min(found)[0]
    size = min(size for end, size in found if end <= low * (1 + 1e-12))
    return size, low
"""),
]  # fmt: skip
