"""Right answers to `fewest_ranks` of lesson 00."""

from zoo.answers import Right

RIGHT = [
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
    Right("closed form of fractions", """
from fractions import Fraction
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    left = whole + shared - Fraction(factor) * whole
    return None if left <= 0 else -(-Fraction(factor) * shared // left)
"""),
]  # fmt: skip
