"""An answer may keep nothing from one call to the next: checks call it again with other arguments."""

import inspect
from typing import Any

import pytest
from cover import NIGHTLY
from zoo.trial import NAMES, first_hint, model_names, quick

from zerolab.course.exercises import exercises_of
from zerolab.course.grade.worker import load, run
from zerolab.course.judge.exercise import Exercise, alone
from zerolab.course.judge.verdict import judge

KEEPS = """
def is_plain(value):
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, bool | int | float | str | torch.dtype)

right, first = {name}, []

def {name}(*args, **named):
    first.append(args)
    kept = [one if is_plain(one) and is_plain(now) else now for one, now in zip(first[0], args)]
    return right(*kept, *args[len(kept):], **named)
"""
"""A model answer that goes on with its first call's numbers, dtypes and flags."""
NO_SUCH_ARGUMENT = {
    *("ring_reduce_scatter", "average_gradients", "train_sharded", "step_overlapped", "shards_in_time"),
    *("agreed_overflow", "atomic_save"),
}
"""They take tensors and functions only, or a step that does no more than name a folder."""


def takes_ranks(lesson: str, name: str) -> bool:
    return exercises_of(lesson)[name].run is not alone and not inspect.isclass(model_names(lesson)[name])


SPEAKING = [(lesson, name) for lesson, name in NAMES if takes_ranks(lesson, name)]


def hint(exercise: Exercise, names: dict[str, Any], seed: int) -> str:
    cases = exercise.drawn(seed)
    found = judge(exercise, cases, run(exercise, names, None, cases))
    return next((finding.hint for finding in found if finding.hint), "")


@pytest.mark.parametrize(("lesson", "name"), SPEAKING)
def test_an_answer_that_goes_on_with_its_first_arguments_fails(lesson: str, name: str) -> None:
    """By day it is called as in the cases that come after another call, up to the first that tells; nightly as in all,
    of which those by themselves come first, and are right."""
    names, exercise = model_names(lesson), quick(exercises_of(lesson)[name])
    assert load(name, "import torch\n" + KEEPS.format(name=name), names) is None
    after = [case for case in exercise.drawn(7) if case.before]
    found = hint(exercise, names, 7) if NIGHTLY else first_hint(exercise, names[name], after)
    assert bool(found) == (name not in NO_SUCH_ARGUMENT)


KEEPS_BY_SOME = """
right, known = {name}, {{}}

def {name}(*args):
    by = str([arg for place, arg in enumerate(args) if place != {place}] + [{of}])
    if by not in known:
        known[by] = right(*args)
    return known[by]
"""
"""A model answer that keeps what it said, by all of its arguments but one, or by a part `of` that one."""
ARGUMENTS = {
    ("01_ring_collectives", "chunk_bounds"): 3,
    ("01_ring_collectives", "ring_bytes"): 4,
    ("02_flat_buffers", "lay_out"): 3,
    ("02_flat_buffers", "owned"): 5,
    ("03_zero_1", "whole_tensors"): 2,
    ("03_zero_1", "step_bytes"): 3,
}
LISTS = {("02_flat_buffers", "lay_out"): 0, ("02_flat_buffers", "owned"): 1, ("03_zero_1", "whole_tensors"): 0}
LISTS[("02_flat_buffers", "culprit")] = 0
FORGETFUL = [(*exercise, place, "") for exercise, count in ARGUMENTS.items() for place in range(count)] + [
    (*exercise, place, of.format(f"args[{place}]"))
    for exercise, place in LISTS.items()
    for of in ("len({})", "sorted({})", "{}[1:]", "{}[:-1]")
]


@pytest.mark.parametrize(("lesson", "name", "place", "of"), FORGETFUL)
def test_an_answer_that_keeps_what_it_said_by_a_part_of_its_arguments_fails(
    lesson: str, name: str, place: int, of: str
) -> None:
    names = model_names(lesson)
    assert load(name, KEEPS_BY_SOME.format(name=name, place=place, of=of), names) is None
    assert "what stays from call to call?" in hint(quick(exercises_of(lesson)[name]), names, 7)


KEEPS_THE_FIRST_BOUNDS = """
bounds = []
def ring_reduce_scatter(comm, tensor):
    if not bounds:
        bounds.extend(chunk_bounds(tensor.numel(), comm.size, rank) for rank in range(comm.size))
    part = lambda t, r: t[slice(*bounds[r % comm.size])]
    travelling = part(tensor, comm.rank - 1).clone()
    for step in range(comm.size - 1):
        mine = part(tensor, comm.rank - 2 - step)
        arrived = torch.empty_like(mine)
        pass_on(comm, travelling, arrived)
        travelling = arrived.add_(mine)
    return travelling
"""


def test_what_stays_from_call_to_call_is_named_as_the_fault() -> None:
    lesson, name = "01_ring_collectives", "ring_reduce_scatter"
    names = model_names(lesson)
    assert load(name, KEEPS_THE_FIRST_BOUNDS, names) is None
    said = hint(quick(exercises_of(lesson)[name]), names, 7)
    assert ", after another call (" in said
    assert said.endswith("(by itself the same call is right: what stays from call to call?)")
