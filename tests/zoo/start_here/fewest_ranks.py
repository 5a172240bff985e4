"""Answers to `fewest_ranks` of lesson 00, wrong and right."""

from zoo.answers import Right

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
