"""Answers to `name_the_peak` of lesson 00, wrong and right."""

from zoo.answers import Right, changed

PEAK = """
def name_the_peak(samples):
    totals = [sum(sample.values()) for sample in samples]
    at = totals.index(max(totals))
    return at, max(samples[at], key=samples[at].get)
"""

RIGHT = [
    Right("style 1", changed(PEAK, "totals.index(max(totals))", "max(range(len(samples)), key=totals.__getitem__)")),
    Right("enumerate max", """
def name_the_peak(samples):
    at, worst = max(enumerate(samples), key=lambda pair: sum(pair[1].values()))
    return at, max(worst, key=worst.get)
"""),
    Right("loop", """
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
    Right("totals list index", """
def name_the_peak(samples):
    totals = [sum(moment.values()) for moment in samples]
    index = totals.index(max(totals))
    _, kind = max((b, k) for k, b in samples[index].items())
    return index, kind
"""),
    Right("torch argmax", """
import torch
def name_the_peak(samples):
    kinds = list({kind: None for sample in samples for kind in sample})
    table = torch.tensor([[sample.get(kind, 0) for kind in kinds] for sample in samples], dtype=torch.int64)
    totals = table.sum(1)
    index = (totals == totals.max()).nonzero()[0].item()
    return index, kinds[table[index].argmax().item()]
"""),
    Right("counter", """
from collections import Counter
def name_the_peak(samples):
    counters = list(map(Counter, samples))
    index = min(range(len(counters)), key=lambda i: (-counters[i].total(), i))
    return index, counters[index].most_common(1)[0][0]
"""),
    Right("reduce", """
from functools import reduce
from operator import itemgetter
def name_the_peak(samples):
    higher = lambda a, b: b if sum(b[1].values()) > sum(a[1].values()) else a
    index, sample = reduce(higher, enumerate(samples))
    return index, max(sample.items(), key=itemgetter(1))[0]
"""),
    Right("namedtuple", """
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
    Right("first sample's keys", """
def name_the_peak(samples):
    kinds = list(samples[0])
    totals = [sum(s.get(k, 0) for k in kinds) for s in samples]
    at = totals.index(max(totals))
    return at, max(kinds, key=lambda k: samples[at].get(k, 0))
"""),
    # A second reading of the text alone.
    Right("nlargest", """
import heapq
def name_the_peak(samples):
    [(_, index)] = heapq.nsmallest(1, ((-sum(s.values()), i) for i, s in enumerate(samples)))
    [kind] = heapq.nlargest(1, samples[index], key=lambda kind: samples[index][kind])
    return index, kind
"""),
    Right("sorted copies", """
def name_the_peak(samples):
    order = sorted(range(len(samples)), key=lambda moment: sum(samples[moment].values()), reverse=True)
    return order[0], sorted(samples[order[0]].items(), key=lambda item: -item[1])[0][0]
"""),
    Right("columns", """
def name_the_peak(samples):
    kinds = sorted(samples[0])
    columns = [[sample[kind] for sample in samples] for kind in kinds]
    totals = list(map(sum, zip(*columns)))
    best = 0
    for i in range(1, len(totals)):
        if totals[best] < totals[i]:
            best = i
    load, name = max(zip((column[best] for column in columns), kinds))
    return best, name
"""),
    Right("recursion", """
def name_the_peak(samples):
    def highest(low, high):
        if high - low == 1:
            return low
        middle = (low + high) // 2
        left, right = highest(low, middle), highest(middle, high)
        return right if sum(samples[right].values()) > sum(samples[left].values()) else left
    moment = highest(0, len(samples))
    return moment, max(samples[moment].items(), key=lambda pair: pair[1])[0]
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("torch int64 with argmax by hand", """
import torch
def name_the_peak(samples):
    kinds = sorted(samples[0])
    table = torch.tensor([[s[k] for k in kinds] for s in samples], dtype=torch.int64)
    totals = table.sum(1)
    where = int((totals == totals.max()).nonzero()[0])
    return where, kinds[int(table[where].argmax())]
"""),
]  # fmt: skip
