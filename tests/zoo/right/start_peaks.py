"""Right answers to the last exercises of lesson 00, in other styles than the model's."""

from zoo.right.answer import Right

RIGHT = [
    Right("style 1", "name_the_peak", """
def name_the_peak(samples):
    totals = [sum(sample.values()) for sample in samples]
    at = max(range(len(samples)), key=totals.__getitem__)
    return at, max(samples[at], key=samples[at].get)
"""),
    Right("enumerate max", "name_the_peak", """
def name_the_peak(samples):
    at, worst = max(enumerate(samples), key=lambda pair: sum(pair[1].values()))
    return at, max(worst, key=worst.get)
"""),
    Right("loop", "name_the_peak", """
def name_the_peak(samples):
    best, index, who = -1, 0, ""
    for i, sample in enumerate(samples):
        total = 0
        for b in sample.values():
            total += b
        if total > best:
            best, index = total, i
            ordered = sorted(sample.items(), key=lambda item: item[1])
            who = ordered[-1][0]
    return (index, who)
"""),
    Right("totals list index", "name_the_peak", """
def name_the_peak(samples):
    totals = [sum(moment.values()) for moment in samples]
    index = totals.index(max(totals))
    _, kind = max((b, k) for k, b in samples[index].items())
    return index, kind
"""),
    Right("torch argmax", "name_the_peak", """
import torch
def name_the_peak(samples):
    kinds = list({kind: None for sample in samples for kind in sample})
    table = torch.tensor([[sample.get(kind, 0) for kind in kinds] for sample in samples], dtype=torch.int64)
    totals = table.sum(1)
    index = (totals == totals.max()).nonzero()[0].item()
    return index, kinds[table[index].argmax().item()]
"""),
    Right("counter", "name_the_peak", """
from collections import Counter
def name_the_peak(samples):
    counters = list(map(Counter, samples))
    index = min(range(len(counters)), key=lambda i: (-counters[i].total(), i))
    return index, counters[index].most_common(1)[0][0]
"""),
    Right("reduce", "name_the_peak", """
from functools import reduce
from operator import itemgetter
def name_the_peak(samples):
    higher = lambda a, b: b if sum(b[1].values()) > sum(a[1].values()) else a
    index, sample = reduce(higher, enumerate(samples))
    return index, max(sample.items(), key=itemgetter(1))[0]
"""),
    Right("namedtuple", "name_the_peak", """
from typing import NamedTuple
class Peak(NamedTuple):
    index: int
    kind: str
def name_the_peak(samples):
    sums = {}
    for i, s in enumerate(samples):
        sums.setdefault(sum(s.values()), i)
    index = sums[max(sums)]
    s = samples[index]
    return Peak(index, max(s, key=lambda k: s[k]))
"""),
    Right("first sample's keys", "name_the_peak", """
def name_the_peak(samples):
    kinds = list(samples[0])
    totals = [sum(s.get(k, 0) for k in kinds) for s in samples]
    at = totals.index(max(totals))
    return at, max(kinds, key=lambda k: samples[at].get(k, 0))
"""),
    Right("style 1", "fewest_ranks", """
from fractions import Fraction
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    left = whole + shared - Fraction(factor) * whole
    return None if left <= 0 else -(-Fraction(factor) * shared // left)
"""),
    Right("style 2", "fewest_ranks", """
from itertools import count
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if factor * whole >= whole + shared:
        return None
    return next(ranks for ranks in count(1) if (whole + shared) * ranks >= factor * (whole * ranks + shared))
"""),
    Right("fractions", "fewest_ranks", """
from fractions import Fraction
from math import ceil
def fewest_ranks(factor, stage, recipe):
    shared = sum(recipe[3 - stage:]) if stage else 0
    whole = sum(recipe) - shared
    f = Fraction(factor)
    room = sum(recipe) - f * whole
    if room <= 0:
        return None
    return ceil(f * shared / room)
"""),
    Right("doubling then bisect, multiply", "fewest_ranks", """
def fewest_ranks(factor, stage, recipe):
    p, g, o = recipe
    kept = (p if stage < 3 else 0) + (g if stage < 2 else 0) + (o if stage < 1 else 0)
    cut = p + g + o - kept
    if not cut or factor * kept >= p + g + o:
        return None
    good = lambda n: (p + g + o) * n >= factor * (kept * n + cut)
    high = 1
    while not good(high):
        high += high
    low = high // 2
    while high - low > 1:
        mid = (low + high) // 2
        if good(mid): high = mid
        else: low = mid
    return high
"""),
    Right("as_integer_ratio", "fewest_ranks", """
def fewest_ranks(factor, stage, recipe):
    top, bottom = factor.as_integer_ratio()
    shared = sum(width for index, width in enumerate(recipe) if index >= 3 - stage)
    total = sum(recipe)
    gain = total * bottom - top * (total - shared)
    return -(-top * shared // gain) if gain > 0 else None
"""),
    Right("float closed with fix-up", "fewest_ranks", """
import math
def fewest_ranks(factor, stage, recipe):
    total = sum(recipe)
    shared = sum(recipe[::-1][:stage])
    whole = total - shared
    if total <= factor * whole:
        return None
    n = max(1, math.floor(factor * shared / (total - factor * whole)) - 2)
    while total * n < factor * (whole * n + shared):
        n += 1
    return n
"""),
    Right("bits", "fewest_ranks", """
from fractions import Fraction
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[:3 - stage]), sum(recipe[3 - stage:])
    def enough(n):
        return Fraction(whole + shared) / (whole + Fraction(shared, n)) >= factor
    if not enough(2 ** 80):
        return None
    most = 0
    for bit in range(80, -1, -1):
        if not enough(most + 2 ** bit):
            most += 2 ** bit
    return most + 1
"""),
]  # fmt: skip
