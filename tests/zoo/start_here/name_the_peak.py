"""Right answers to `name_the_peak` of lesson 00."""

from zoo.answers import Right

RIGHT = [
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
]  # fmt: skip
