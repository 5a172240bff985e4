"""Answers to `choose_stage` of lesson 00, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model
from zoo.start_here.state_bytes import STATES

MODEL = model("00_start_here", "choose_stage")
OWN_STATES = STATES + MODEL

WRONG = [
    blank("choose_stage"),
    Wrong("the one that keeps least",
          changed(MODEL, "range(4):", "range(3, -1, -1):"),
          "the lowest is asked for"),
    Wrong("less than the memory",
          changed(MODEL, "= gpu_bytes", " gpu_bytes"),
          "What fills the memory to the last byte fits"),
    Wrong("3 where nothing fits",
          changed(MODEL, "return None", "return 3"),
          "No stage fits here, not even 3"),
    Wrong("-1 where nothing fits",
          changed(MODEL, "return None", "return -1"),
          "you say -1, and a stage from 0 to 3, or None, is due"),
    Wrong("0 counts as False", """
def first(parameters, ranks, gpu_bytes, recipe):
    for stage in range(4):
        if sum(state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes:
            return stage
    return None

def choose_stage(*args):
    return first(*args) or None
""", "Stage 0 is a stage"),
    Wrong("all GPUs as one",
          changed(MODEL, "gpu_bytes:", "gpu_bytes * ranks:"),
          "The bytes are those of one GPU"),
    Wrong("remembers by parameters",
          changed(changed(MODEL,
                          "def choose_stage",
                          "SIZES = {}\n\ndef choose_stage"),
                  "sum(state_bytes(parameters, ranks, stage, recipe).values())",
                  "SIZES.setdefault((parameters, stage), sum(state_bytes(parameters, ranks, stage, "
                  "recipe).values()))"),
          "what stays from call to call?"),
    Wrong("the largest kind alone",
          changed(MODEL, "if sum", "if max"),
          "Sum up all three kinds"),
    Wrong("even shares", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    for stage in range(4):
        whole, shared = sum(recipe[:3 - stage]), sum(recipe[3 - stage:])
        if parameters * whole + parameters * shared // ranks <= gpu_bytes:
            return stage
""", "Its fullest shard is rounded up"),
    Wrong("never stage 3",
          changed(MODEL, "range(4):", "range(3):"),
          "Is 3 among the stages"),
    Wrong("a float",
          changed(MODEL, "return stage", "return float(stage)"),
          "0, and a stage from 0 to 3, or None, is due"),
    # One slip away from right.
    Wrong("a byte of tolerance",
          changed(OWN_STATES, "gpu_bytes:", "gpu_bytes + 1:"),
          "allow none"),
    Wrong("all ranks on one GPU",
          changed(OWN_STATES, "if sum", "if ranks * sum"),
          "together keep"),
    Wrong("shares gradients out at stage 1",
          changed(OWN_STATES, "2 else", "1 else"),
          "are these your bytes at stage 1"),
    Wrong("never shares parameters out",
          changed(OWN_STATES, "stage >= 3", "stage > 3"),
          "are parameters shared out there"),
    Wrong("remembers sizes without the recipe", """
_sizes = {}


def choose_stage(parameters: int, ranks: int, gpu_bytes: int, recipe: tuple[int, int, int]) -> int | None:
    key = parameters, ranks
    if key not in _sizes:
        _sizes[key] = [sum(state_bytes(parameters, ranks, stage, recipe).values()) for stage in range(4)]
    for stage, size in enumerate(_sizes[key]):
        if size <= gpu_bytes:
            return stage
    return None
""", "recipe (4, 4, 24), you say 1, and 3 is due"),
]  # fmt: skip

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
