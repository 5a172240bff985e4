"""Answers to `name_the_peak` of lesson 00, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed

PEAK = """
def name_the_peak(samples):
    totals = [sum(sample.values()) for sample in samples]
    at = totals.index(max(totals))
    return at, max(samples[at], key=samples[at].get)
"""

WRONG = [
    blank("name_the_peak"),
    Wrong("the tallest kind anywhere",
          changed(PEAK,
                  "[at], key=samples[at].get",
                  "[0], key=lambda kind: max(sample[kind] for sample in samples)"),
          "It is the tallest of all at some other moment"),
    Wrong("max of the names",
          changed(PEAK, "[at], key=samples[at].get", "[at]"),
          "Did max compare the names?"),
    Wrong("the highest kind",
          changed(PEAK, "sum(sample.values())", "max(sample.values())"),
          "a moment's height is the sum of its kinds"),
    Wrong("model states alone",
          changed(PEAK, ".values()", "[kind] for kind in ('parameters', 'gradients', 'optimizer_states')"),
          "what passes counts, too"),
    Wrong("the last moment",
          changed(PEAK, "totals.index(max(totals))", "len(samples) - 1"),
          "That is the last moment"),
    Wrong("counts from 1",
          changed(PEAK, "return at", "return at + 1"),
          "Python counts from 0"),
    Wrong("the steepest",
          changed(PEAK,
                  "totals.index(max(totals))",
                  "max(range(1, len(totals)), key=lambda at: totals[at] - totals[at - 1])"),
          "There the most is added"),
    Wrong("bytes for a name",
          changed(PEAK, ", key=samples[at].get", ".values()"),
          "and a kind is due, such as"),
    Wrong("the name alone",
          changed(PEAK, "at, max", "max"),
          "two things are due"),
    Wrong("the first peak that it meets",
          changed(PEAK,
                  "totals.index(max(totals))",
                  "next((i for i in range(1, len(totals) - 1) if totals[i - 1] < totals[i] > totals[i + 1]), 0)"),
          "a higher one comes after it"),
    Wrong("the last of the highest",
          changed(PEAK,
                  "totals.index(max(totals))",
                  "samples.index(max(reversed(samples), key=lambda sample: sum(sample.values())))"),
          "Several moments are as high"),
    Wrong("the total for the index",
          changed(PEAK, "return at", "return totals[at]"),
          "is no index of"),
    Wrong("drops what it has seen", """
def name_the_peak(samples):
    totals = [sum(sample.values()) for sample in samples]
    at = totals.index(max(totals))
    kind = max(samples[at], key=samples[at].get)
    samples[0].clear()
    return at, kind
""", "it overwrote rank 0's input"),
    Wrong("rounds to KiB",
          changed(PEAK, "sum(sample.values())", "round(sum(sample.values()) / 1024)"),
          "both are as high, so do not round"),
    Wrong("adds up in float32", """
def name_the_peak(samples):
    totals = [sum(sample.values()) for sample in samples]
    import torch
    tensor = torch.tensor(totals, dtype=torch.float32)
    at = int(tensor.argmax())
    return at, max(samples[at], key=samples[at].get)
""", "compare whole bytes, unrounded"),
    Wrong("rounds the kinds",
          changed(PEAK, "samples[at].get", "lambda kind: samples[at][kind] // 512"),
          "compare bytes, unrounded"),
    Wrong("skips the first",
          changed(PEAK,
                  "totals.index(max(totals))",
                  "max(range(1, len(totals)), key=totals.__getitem__) if totals[1:] else 0"),
          "The highest is the first moment here"),
    Wrong("skips the last",
          changed(PEAK, "(totals)", "(totals[:-1] or totals)"),
          "The highest is the last moment here"),
    # Keep something between calls, or lose what is rare.
    Wrong("a default list that keeps the highest", """
def name_the_peak(samples, best=[-1, -1]):
    for i, sample in enumerate(samples):
        if sum(sample.values()) > best[0]: best[:] = sum(sample.values()), i
    return best[1], max(samples[best[1]], key=samples[best[1]].get)
""", "called with other arguments before"),
    # One slip away from right.
    Wrong("without optimizer_states",
          changed(PEAK, "sample.values()", 'n for kind, n in sample.items() if kind != "optimizer_states"'),
          "of all kinds but optimizer_states it is the highest"),
    Wrong("without gradients",
          changed(PEAK, "sample.values()", 'n for kind, n in sample.items() if kind != "gradients"'),
          "of all kinds but gradients it is the highest"),
    Wrong("without activations",
          changed(PEAK, "sample.values()", 'n for kind, n in sample.items() if kind != "activations"'),
          "of all kinds but activations it is the highest"),
    Wrong("without other",
          changed(PEAK, "sample.values()", 'n for kind, n in sample.items() if kind != "other"'),
          "of all kinds but other it is the highest"),
    Wrong("without parameters",
          changed(PEAK, "sample.values()", 'n for kind, n in sample.items() if kind != "parameters"'),
          "does your sum leave out a kind?"),
    Wrong("names no activations",
          changed(PEAK, "samples[at],", "(kind for kind in samples[at] if kind != 'activations'),"),
          "and another kind has"),
    # Hold on most inputs: sums of 32 bits, edges, a rank that has nothing.
    Wrong("int32 totals", """
import torch
def name_the_peak(samples):
    kinds = list(samples[0])
    table = torch.tensor([[s[k] for k in kinds] for s in samples]).to(torch.int32)
    totals = [int(t) for t in table.sum(1, dtype=torch.int32)]
    index = totals.index(max(totals))
    return index, kinds[int(table[index].argmax())]
""", "more than 32 bits"),
    Wrong("'other' is nobody's", """
def name_the_peak(samples):
    totals = [sum(s.values()) for s in samples]
    index = totals.index(max(totals))
    return index, max((k for k in samples[index] if k != "other"), key=samples[index].get)
""", "pass over other"),
    Wrong("kinds by their place", """
def name_the_peak(samples: list[dict[str, int]]) -> tuple[int, str]:
    names = list(samples[0])
    rows = [list(moment.values()) for moment in samples]
    totals = [sum(row) for row in rows]
    index = totals.index(max(totals))
    row = rows[index]
    return index, names[row.index(max(row))]
""", "the kinds of each moment in another order, 58 moments: moment 26 is right"),
    Wrong("of equal moments the one with the largest kind", """
def name_the_peak(samples: list[dict[str, int]]) -> tuple[int, str]:
    index = max(range(len(samples)), key=lambda at: (sum(samples[at].values()), max(samples[at].values())))
    moment = samples[index]
    return index, max(moment, key=lambda kind: moment[kind])
""", "times as large, 21 moments: at moment 20 there are"),
]  # fmt: skip

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
