"""Runs an answer of a notebook in a process of its own, so that whatever it does there, the notebook lives on.

The process is a rank of `launch`: it is forked in some hundredths of a second from the server that holds torch, it has
a copy of the function by value, and it ends with the check. In it the cases in lockstep run, one after the other; those
on real processes start from the notebook, since they are processes of their own anyhow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from zerolab.collectives import Collectives
from zerolab.course.judge.bounds import watch_process
from zerolab.course.judge.case import Case, Observation, Trouble, observation_from_json, observation_to_json
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.observe import CASE_SECONDS, observe, observe_all, trouble_of, warm_up
from zerolab.errors import InputError, RankError
from zerolab.ranks import RankFailure, launch
from zerolab.ranks.folders import temporary_folder
from zerolab.ranks.pickling import pack_function

START_SECONDS = 60.0
"""For the first process, which waits until the server has imported torch."""


def observe_apart(exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case]) -> list[Observation]:
    """What came of the cases, in order, up to the first trouble."""
    inside = iter(observe_inside(exercise, fn, [case for case in cases if case.world == "lockstep"]))
    seen: list[Observation] = []
    for case in cases:
        found = next(inside, None) if case.world == "lockstep" else observe(exercise, fn, case)
        if found is None:
            break
        seen.append(found)
        if found.trouble:
            break
    return seen


def observe_inside(exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case]) -> list[Observation]:
    """What came of cases in lockstep, which run in a process of their own; its death is the trouble of the case that it
    met it in."""
    with temporary_folder("check") as folder:
        diary = folder / "seen"
        try:
            launch(
                write_down,
                fn,
                exercise,
                list(cases),
                str(diary),
                ranks=1,
                collectives="local",
                device="cpu",
                prints="quiet",
                timeout=START_SECONDS + 4 * CASE_SECONDS * len(cases),
            )
            trouble = None
        except RankError as error:
            trouble = ended_by(error)
        except InputError as error:
            trouble = Trouble("InputError", cannot_travel(fn) or str(error))
        lines = diary.read_text(encoding="utf-8").splitlines() if diary.exists() else []
    seen = [observation_from_json(json.loads(line)) for line in lines]
    return [*seen, Observation(trouble=trouble)] if trouble else seen


def write_down(
    comm: Collectives, fn: Callable[..., Any], exercise: Exercise, cases: Sequence[Case], diary: str
) -> None:
    """In the process of the check: run the cases and write a line for each, up to the first trouble."""
    # The learner's ranks are those in lockstep; that this process is a rank, too, is none of their business.
    dist.destroy_process_group()
    watch_process(strict=True)
    warm_up()
    with open(diary, "w", encoding="utf-8", buffering=1) as lines:
        for seen in observe_all(exercise, fn, cases):
            print(json.dumps(observation_to_json(seen)), file=lines)


def cannot_travel(fn: Callable[..., Any]) -> str:
    """What an answer holds that cannot be copied into another process, by its name there; '' if nothing."""
    try:
        pack_function(fn, (), {})
    except InputError as error:
        return str(error)
    return ""


def ended_by(error: RankError) -> Trouble:
    """What ended the process of the check."""
    if isinstance(error, RankFailure) and error.error.startswith("SIG"):
        return Trouble(error.error, f"the process that ran your code was ended by {error.error}")
    return trouble_of(error)
