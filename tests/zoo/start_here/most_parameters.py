"""Right answers to `most_parameters` of lesson 00."""

from zoo.answers import Right

RIGHT = [
    Right("style 2", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    rounds, left = divmod(gpu_bytes, whole * ranks + shared)
    extra = 0 if left < shared else ((left - shared) // whole if whole else ranks)
    return rounds * ranks + min(extra, ranks)
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
]  # fmt: skip
