"""Answers to `choose_stage` of lesson 00, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("style 1", """
from functools import reduce
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    for stage in range(4):
        if reduce(lambda one, other: one + other, state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes:
            return stage
"""),
    Right("next gen", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    return next((s for s in range(4) if sum(state_bytes(parameters, ranks, s, recipe).values()) <= gpu_bytes), None)
"""),
    Right("recursion", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    def look(stage):
        if stage == 4:
            return None
        return stage if sum(state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes else look(stage + 1)
    return look(0)
"""),
    Right("own arithmetic", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    piece = (parameters + ranks - 1) // ranks
    need = parameters * sum(recipe)
    best = 0
    for width in (0, *recipe[::-1]):
        pass
    for stage, width in enumerate((0,) + tuple(reversed(recipe))):
        need -= width * (parameters - piece)
        if not need > gpu_bytes:
            return stage
"""),
    Right("bisect", """
from bisect import bisect_left
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    spare = [gpu_bytes - sum(state_bytes(parameters, ranks, stage, recipe).values()) for stage in (0, 1, 2, 3)]
    at = bisect_left(spare, 0)
    return at if at < 4 else None
"""),
    Right("filter min", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    fits = [stage for stage in (3, 2, 1, 0) if gpu_bytes >= sum(state_bytes(parameters, ranks, stage, recipe).values())]
    return min(fits, default=None)
"""),
    # A second reading of the text alone.
    Right("dropwhile", """
from itertools import dropwhile
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    too_big = lambda stage: sum(state_bytes(parameters, ranks, stage, recipe).values()) > gpu_bytes
    for stage in dropwhile(too_big, range(4)):
        return stage
"""),
    Right("StopIteration", """
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
    Right("counts those that do not fit", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    too_large = sum(sum(state_bytes(parameters, ranks, s, recipe).values()) > gpu_bytes for s in (0, 1, 2, 3))
    return None if too_large == 4 else too_large
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("bisect on a falling row", """
from bisect import bisect_left
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    need = [-sum(state_bytes(parameters, ranks, s, recipe).values()) for s in range(4)]
    place = bisect_left(need, -gpu_bytes)
    return place if place < 4 else None
"""),
]  # fmt: skip
