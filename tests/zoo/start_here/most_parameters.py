"""Answers to `most_parameters` of lesson 00, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("style 1", """
import bisect
def most_parameters(gpu_bytes, ranks, stage, recipe):
    takes = lambda parameters: sum(state_bytes(parameters, ranks, stage, recipe).values())
    return bisect.bisect_right(range(gpu_bytes * ranks + 1), gpu_bytes, key=takes) - 1
"""),
    Right("style 2", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    rounds, left = divmod(gpu_bytes, whole * ranks + shared)
    extra = 0 if left < shared else ((left - shared) // whole if whole else ranks)
    return rounds * ranks + min(extra, ranks)
"""),
    Right("bisection", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    fits = lambda n: sum(state_bytes(n, ranks, stage, recipe).values()) <= gpu_bytes
    low, high = 0, 1
    while fits(high):
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
"""),
    Right("bits from above", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    best = 0
    for bit in reversed(range(gpu_bytes.bit_length() + ranks.bit_length() + 1)):
        more = best | 1 << bit
        if sum(state_bytes(more, ranks, stage, recipe).values()) <= gpu_bytes:
            best = more
    return best
"""),
    Right("closed form", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    shared = sum(recipe[3 - stage:]) if stage else 0
    whole = sum(recipe) - shared
    groups, left = divmod(gpu_bytes, whole * ranks + shared)
    if whole:
        extra = max(0, min(ranks - 1, (left - shared) // whole))
    else:
        extra = ranks - 1 if left >= shared else 0
    return groups * ranks + extra
"""),
    Right("bisect with range and key", """
from bisect import bisect_right
def most_parameters(gpu_bytes, ranks, stage, recipe):
    def total(n):
        return sum(state_bytes(n, ranks, stage, recipe).values())
    return bisect_right(range(10 ** 18), gpu_bytes, key=total) - 1
"""),
    Right("recursive", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    def search(low, high):
        if low == high:
            return low
        mid = low + high + 1 >> 1
        if sum(state_bytes(mid, ranks, stage, recipe).values()) > gpu_bytes:
            return search(low, mid - 1)
        return search(mid, high)
    return search(0, gpu_bytes * ranks)
"""),
    Right("galloping steps", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    model, step = 0, 1
    while step:
        bigger = model + step
        if sum(state_bytes(bigger, ranks, stage, recipe).values()) <= gpu_bytes:
            model, step = bigger, step * 2
        else:
            step //= 2
    return model
"""),
    Right("shards outer", """
import math
def most_parameters(gpu_bytes, ranks, stage, recipe):
    cut = recipe[::-1][:stage]
    kept = recipe[::-1][stage:]
    a, b = sum(kept), sum(cut)
    # estimate, then correct
    guess = gpu_bytes * ranks // (a * ranks + b)
    def need(n):
        return n * a + -(-n // ranks) * b
    while need(guess) > gpu_bytes:
        guess -= 1
    while need(guess + 1) <= gpu_bytes:
        guess += 1
    return guess
"""),
    Right("float midpoint", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    low, high = 0, gpu_bytes * ranks + 1
    while high - low > 1:
        middle = int((low + high) / 2)
        if sum(state_bytes(middle, ranks, stage, recipe).values()) <= gpu_bytes:
            low = middle
        else:
            high = middle
    return low
"""),
    # A second reading of the text alone.
    Right("steps down from even shares", """
from fractions import Fraction
def most_parameters(gpu_bytes, ranks, stage, recipe):
    each = sum(Fraction(width, ranks if 3 - index <= stage else 1) for index, width in enumerate(recipe))
    guess = gpu_bytes // each
    while sum(state_bytes(guess, ranks, stage, recipe).values()) > gpu_bytes:
        guess -= 1
    return guess
"""),
    Right("a sequence for bisect", """
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
    Right("decimal digits", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    found = 0
    for power in range(18, -1, -1):
        while sum(state_bytes(found + 10 ** power, ranks, stage, recipe).values()) <= gpu_bytes:
            found += 10 ** power
    return found
"""),
    Right("cached recursion", """
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
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("bisect with a key over a range", """
import bisect
def most_parameters(gpu_bytes, ranks, stage, recipe):
    need = lambda n: sum(state_bytes(n, ranks, stage, recipe).values())
    return bisect.bisect_right(range(gpu_bytes * ranks + 2), gpu_bytes, key=need) - 1
"""),
]  # fmt: skip
