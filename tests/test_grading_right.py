"""Right answers of all kinds pass: a check asks for what the text asks for, not for how the model answer does it."""

import pytest
from zoo.trial import hint_for

START = [
    (
        "choose_stage",
        """
from functools import reduce
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    for stage in range(4):
        if reduce(lambda one, other: one + other, state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes:
            return stage
""",
    ),
    (
        "most_parameters",
        """
import bisect
def most_parameters(gpu_bytes, ranks, stage, recipe):
    takes = lambda parameters: sum(state_bytes(parameters, ranks, stage, recipe).values())
    return bisect.bisect_right(range(gpu_bytes * ranks + 1), gpu_bytes, key=takes) - 1
""",
    ),
    (
        "most_parameters",
        """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    rounds, left = divmod(gpu_bytes, whole * ranks + shared)
    extra = 0 if left < shared else ((left - shared) // whole if whole else ranks)
    return rounds * ranks + min(extra, ranks)
""",
    ),
    (
        "name_the_peak",
        """
def name_the_peak(samples):
    totals = [sum(sample.values()) for sample in samples]
    at = max(range(len(samples)), key=totals.__getitem__)
    return at, max(samples[at], key=samples[at].get)
""",
    ),
    (
        "fewest_ranks",
        """
from fractions import Fraction
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    left = whole + shared - Fraction(factor) * whole
    return None if left <= 0 else -(-Fraction(factor) * shared // left)
""",
    ),
    (
        "fewest_ranks",
        """
from itertools import count
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if factor * whole >= whole + shared:
        return None
    return next(ranks for ranks in count(1) if (whole + shared) * ranks >= factor * (whole * ranks + shared))
""",
    ),
]


@pytest.mark.parametrize(("name", "source"), START)
def test_every_right_answer_to_lesson_00_passes(name: str, source: str) -> None:
    assert hint_for("00_start_here", name, source) == ""


def test_an_answer_may_define_a_dataclass() -> None:
    source = """
from dataclasses import dataclass
@dataclass
class Sizes:
    parameters: int
    ranks: int
    def shard(self):
        return -(-self.parameters // self.ranks)
def state_bytes(parameters, ranks, stage, recipe):
    shard = Sizes(parameters, ranks).shard()
    kinds = zip(("parameters", "gradients", "optimizer_states"), recipe, (3, 2, 1))
    return {kind: each * (shard if stage >= first else parameters) for kind, each, first in kinds}
"""
    assert hint_for("00_start_here", "state_bytes", source) == ""
