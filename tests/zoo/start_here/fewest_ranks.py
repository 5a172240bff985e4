"""Answers to `fewest_ranks` of lesson 00, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("00_start_here", "fewest_ranks")
FEWEST = """
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    left = sum(recipe) - factor * whole
    if left <= 0:
        return None
    return math.ceil(factor * shared / left)
"""
COUNT = """
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    for ranks in range(1, {bound} + 1):
        if (whole + shared) * ranks >= factor * (whole * ranks + shared):
            return ranks
    return None
"""
ENDLESS = changed(changed(MODEL,
                          "whole * factor",
                          "not shared or factor * whole"),
                  "(whole + shared) * ranks < factor * (whole * ranks + shared)",
                  "OURS < THEIRS")  # fmt: skip

WRONG = [
    blank("fewest_ranks"),
    Wrong("rounds down",
          changed(FEWEST, "math.ceil", "int"),
          "round up"),
    Wrong("one more",
          changed(FEWEST, "math.ceil(factor * shared / left)", "int(factor * shared / left) + 1"),
          "exactly, which is enough"),
    Wrong("one more, always",
          changed(FEWEST, "shared / left)", "shared / left) + 1"),
          "one rank fewer is enough"),
    Wrong("the factor itself",
          "def fewest_ranks(factor, stage, recipe):\n    return math.ceil(factor)",
          "Only what is shared out shrinks with N"),
    Wrong("the limit as reached", """
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    ranks = 1
    while round(sum(recipe) / (whole + shared / ranks), 2) < factor:
        ranks += 1
        if ranks > 10_000:
            return None
    return ranks
""", "is the limit, which no number of ranks reaches"),
    Wrong("never says never",
          changed(FEWEST, "return None", "return 10**6"),
          "is the limit"),
    Wrong("divides by nothing",
          changed(FEWEST, "left <= 0", "left < 0"),
          "ZeroDivisionError"),
    Wrong("a negative number",
          changed(FEWEST, "left <= 0", "left == 0"),
          "and a whole number of ranks from 1 on, or None, is due"),
    Wrong("fp32 by heart",
          changed(FEWEST, "whole, shared", "recipe = (4, 4, 8)\n    whole, shared"),
          "In fp32 with Adam it never is"),
    Wrong("a stage too low",
          changed(FEWEST, "whole, shared", "stage = max(stage - 1, 1)\n    whole, shared"),
          "shares out one kind more"),
    Wrong("a stage too high",
          changed(FEWEST, "whole, shared", "stage = min(stage + 1, 3)\n    whole, shared"),
          "which kinds stay whole?"),
    Wrong("powers of two",
          changed(FEWEST, "math.ceil(factor * shared / left)", "2 ** math.ceil(math.log2(factor * shared / left))"),
          "Ranks need not be a power of two"),
    Wrong("stops counting at 64",
          changed(COUNT, "{bound}", "64"),
          "ranks it is reached: so close"),
    Wrong("stops counting at 200,000",
          changed(COUNT, "{bound}", "200000"),
          "then count without a bound"),
    Wrong("allows a tolerance",
          changed(FEWEST, "left <= 0", "left < 0.05"),
          "with 1226 ranks it is reached: so close"),
    Wrong("nearly there",
          changed(ENDLESS, "OURS < THEIRS", "(whole + shared) / (whole + shared / ranks) + 1e-12 < factor"),
          "0000000002274: allow no tolerance"),
    Wrong("as good as there",
          changed(ENDLESS,
                  "OURS < THEIRS",
                  "not ((whole + shared) / (whole + shared / ranks) >= factor or math.isclose((whole + "
                  "shared) / (whole + shared / ranks), factor))"),
          "a hair less than 3.99"),
    Wrong("divides by the factor", """
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if not shared or factor * whole >= whole + shared:
        return None
    return math.ceil(shared / ((whole + shared) / factor - whole))
""", "which is enough: where you divide, it rounds"),
    Wrong("compares quotients",
          changed(ENDLESS, "OURS < THEIRS", "(whole + shared) / (whole + shared / ranks) < factor"),
          "on 3 it is 2.25 exactly"),
    Wrong("compares products of quotients",
          changed(ENDLESS, "OURS < THEIRS", "whole + shared < factor * (whole + shared / ranks)"),
          "on 4 ranks it saves 2.666667 times, and on 3"),
    Wrong("rounds to a digit first",
          changed(FEWEST, "factor * shared / left", "round(factor * shared / left, 1)"),
          "a hair less than"),
    # Keep something between calls, or lose what is rare.
    Wrong("a counter that goes on", """
import itertools
ranks = itertools.count(1)
def fewest_ranks(factor, stage, recipe):
    whole, total = sum(recipe[: 3 - stage]), sum(recipe)
    if whole * factor >= total: return None
    for n in ranks:
        if total * n >= factor * (whole * n + total - whole): return n
""", "called with other arguments before"),
    # One slip away from right.
    Wrong("more than the factor",
          changed(FEWEST, "math.ceil(factor * shared / left)", "int(factor * shared // left) + 1"),
          "is it > where >= is due?"),
    Wrong("among 2**18 ranks", """
def fewest_ranks(factor: float, stage: int, recipe: tuple[int, int, int]) -> int | None:
    whole = sum(recipe[: 3 - stage])
    shared = sum(recipe[3 - stage :])

    def enough(ranks):
        return (whole + shared) * ranks >= factor * (whole * ranks + shared)

    low, high = 1, 2**18
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
""", "with 279618 ranks it is reached: however many it takes"),
]  # fmt: skip

RIGHT = [
    Right("style 1", """
from fractions import Fraction
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    left = whole + shared - Fraction(factor) * whole
    return None if left <= 0 else -(-Fraction(factor) * shared // left)
"""),
    Right("style 2", """
from itertools import count
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if factor * whole >= whole + shared:
        return None
    return next(ranks for ranks in count(1) if (whole + shared) * ranks >= factor * (whole * ranks + shared))
"""),
    Right("fractions", """
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
    Right("doubling then bisect, multiply", """
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
    Right("as_integer_ratio", """
def fewest_ranks(factor, stage, recipe):
    top, bottom = factor.as_integer_ratio()
    shared = sum(width for index, width in enumerate(recipe) if index >= 3 - stage)
    total = sum(recipe)
    gain = total * bottom - top * (total - shared)
    return -(-top * shared // gain) if gain > 0 else None
"""),
    Right("float closed with fix-up", """
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
    Right("bits", """
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
    # A second reading of the text alone.
    Right("decimal", """
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
    Right("bisect with a key", """
from bisect import bisect_left
def fewest_ranks(factor, stage, recipe):
    parameters, gradients, optimizer = recipe
    divided = [0, optimizer, optimizer + gradients, optimizer + gradients + parameters][stage]
    whole = sum(recipe) - divided
    if not sum(recipe) > factor * whole:
        return None
    return bisect_left(range(1, 10**9), True, key=lambda n: sum(recipe) * n >= factor * (whole * n + divided)) + 1
"""),
    Right("doubling steps", """
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
    Right("counts with fractions", """
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
    Right("counts quotients of fractions", """
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
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("ratio of integers", """
def fewest_ranks(factor, stage, recipe):
    up, down = float(factor).as_integer_ratio()
    whole, cut = sum(recipe[:3 - stage]), sum(recipe[3 - stage:])
    gain = down * (whole + cut) - up * whole
    if gain <= 0:
        return None
    return -(-up * cut // gain)
"""),
]  # fmt: skip
