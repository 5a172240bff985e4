"""Right answers to `choose_stage` of lesson 00."""

from zoo.answers import Right

RIGHT = [
    Right("own arithmetic", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    piece = (parameters + ranks - 1) // ranks
    need = parameters * sum(recipe)
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
]  # fmt: skip
