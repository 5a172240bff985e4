"""More right answers to the exercises of lesson 00, of a second reading of the texts alone."""

from zoo.right.answer import Right

RIGHT = [
    Right("a Counter", "state_bytes", """
from collections import Counter
def state_bytes(parameters, ranks, stage, recipe):
    order = ["optimizer_states", "gradients", "parameters"]
    held = Counter()
    for place, (kind, each) in enumerate(zip(order, recipe[::-1])):
        pieces = ranks if place < stage else 1
        held[kind] = each * -(parameters // -pieces)
    return held
"""),
    Right("counts the fullest by tensor_split's rule", "state_bytes", """
def state_bytes(parameters, ranks, stage, recipe):
    sizes = [parameters // ranks + (rank < parameters % ranks) for rank in range(ranks)]
    counts = [max(sizes)] * stage + [parameters] * (3 - stage)
    kinds = {}
    for kind in ("parameters", "gradients", "optimizer_states"):
        kinds[kind] = counts.pop() * recipe[len(kinds)]
    return kinds
"""),
    Right("a table of stages", "state_bytes", """
TABLE = {"parameters": "0001", "gradients": "0011", "optimizer_states": "0111"}
def state_bytes(parameters, ranks, stage, recipe):
    def elements(kind):
        return (parameters + ranks - 1) // ranks if TABLE[kind][stage] == "1" else parameters
    return {kind: width * elements(kind) for kind, width in zip(TABLE, recipe)}
"""),
    Right("dropwhile", "choose_stage", """
from itertools import dropwhile
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    too_big = lambda stage: sum(state_bytes(parameters, ranks, stage, recipe).values()) > gpu_bytes
    for stage in dropwhile(too_big, range(4)):
        return stage
"""),
    Right("StopIteration", "choose_stage", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    def stages():
        for stage, _ in enumerate("0123"):
            if gpu_bytes - sum(state_bytes(parameters, ranks, stage, recipe).values()) >= 0:
                yield stage
    try:
        return next(stages())
    except StopIteration:
        return None
"""),
    Right("counts those that do not fit", "choose_stage", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    too_large = sum(sum(state_bytes(parameters, ranks, s, recipe).values()) > gpu_bytes for s in (0, 1, 2, 3))
    return None if too_large == 4 else too_large
"""),
    Right("steps down from even shares", "most_parameters", """
from fractions import Fraction
def most_parameters(gpu_bytes, ranks, stage, recipe):
    each = sum(Fraction(width, ranks if 3 - index <= stage else 1) for index, width in enumerate(recipe))
    guess = gpu_bytes // each
    while sum(state_bytes(guess, ranks, stage, recipe).values()) > gpu_bytes:
        guess -= 1
    return guess
"""),
    Right("a sequence for bisect", "most_parameters", """
import bisect
class Needs:
    def __init__(self, ranks, stage, recipe):
        self.rest = ranks, stage, recipe
    def __len__(self):
        return 1 << 50
    def __getitem__(self, parameters):
        return sum(state_bytes(parameters, *self.rest).values())
def most_parameters(gpu_bytes, ranks, stage, recipe):
    return bisect.bisect(Needs(ranks, stage, recipe), gpu_bytes) - 1
"""),
    Right("decimal digits", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    found = 0
    for power in range(18, -1, -1):
        while sum(state_bytes(found + 10 ** power, ranks, stage, recipe).values()) <= gpu_bytes:
            found += 10 ** power
    return found
"""),
    Right("cached recursion", "most_parameters", """
from functools import lru_cache
def most_parameters(gpu_bytes, ranks, stage, recipe):
    @lru_cache(maxsize=None)
    def fits(parameters):
        return gpu_bytes >= sum(state_bytes(parameters, ranks, stage, recipe).values())
    def widen(step):
        return widen(2 * step) if fits(step) else step
    def narrow(low, high):
        middle = (low + high) // 2
        if middle == low:
            return low
        return narrow(middle, high) if fits(middle) else narrow(low, middle)
    return narrow(0, widen(1))
"""),
    Right("nlargest", "name_the_peak", """
import heapq
def name_the_peak(samples):
    [(_, index)] = heapq.nsmallest(1, ((-sum(s.values()), i) for i, s in enumerate(samples)))
    [kind] = heapq.nlargest(1, samples[index], key=lambda kind: samples[index][kind])
    return index, kind
"""),
    Right("sorted copies", "name_the_peak", """
def name_the_peak(samples):
    order = sorted(range(len(samples)), key=lambda moment: sum(samples[moment].values()), reverse=True)
    return order[0], sorted(samples[order[0]].items(), key=lambda item: -item[1])[0][0]
"""),
    Right("columns", "name_the_peak", """
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
    Right("recursion", "name_the_peak", """
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
    Right("decimal", "fewest_ranks", """
from decimal import Decimal, getcontext
def fewest_ranks(factor, stage, recipe):
    getcontext().prec = 60
    cut = sum(recipe[3 - stage:])
    keep = sum(recipe) - cut
    left = Decimal(keep + cut) - Decimal(factor) * keep
    if left <= 0:
        return None
    ranks = int(Decimal(factor) * cut / left)
    while Decimal(keep + cut) * ranks < Decimal(factor) * (keep * ranks + cut):
        ranks += 1
    return ranks
"""),
    Right("bisect with a key", "fewest_ranks", """
from bisect import bisect_left
def fewest_ranks(factor, stage, recipe):
    parameters, gradients, optimizer = recipe
    divided = [0, optimizer, optimizer + gradients, optimizer + gradients + parameters][stage]
    whole = sum(recipe) - divided
    if not sum(recipe) > factor * whole:
        return None
    return bisect_left(range(1, 10**9), True, key=lambda n: sum(recipe) * n >= factor * (whole * n + divided)) + 1
"""),
    Right("doubling steps", "fewest_ranks", """
def fewest_ranks(factor, stage, recipe):
    shared = sum(width for width, first in zip(recipe, (3, 2, 1)) if stage >= first)
    total = sum(recipe)
    lacks = lambda ranks: total * ranks < factor * ((total - shared) * ranks + shared)
    if factor * (total - shared) >= total:
        return None
    short, step = 0, 1
    while lacks(short + step):
        short, step = short + step, step * 2
    while step > 1:
        step //= 2
        if lacks(short + step):
            short += step
    return short + 1
"""),
    Right("counts with fractions", "fewest_ranks", """
from fractions import Fraction
from itertools import count
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    target = Fraction(factor)
    if whole * target >= whole + shared:
        return None
    for ranks in count(1):
        if (whole + shared) * ranks >= target * (whole * ranks + shared):
            return ranks
"""),
    Right("counts quotients of fractions", "fewest_ranks", """
from fractions import Fraction
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if not shared or (whole and Fraction(whole + shared, whole) <= factor):
        return None
    ranks = 1
    while Fraction(whole + shared) / (whole + Fraction(shared, ranks)) < factor:
        ranks += 1
    return ranks
"""),
]  # fmt: skip
