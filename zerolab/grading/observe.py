"""Runs a learner's function on ranks and notes what it does. It judges nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zerolab.collectives import Collectives, Request, Transport
from zerolab.collectives.wrap import Wrapped
from zerolab.errors import RankError
from zerolab.grading.case import Case, Observation, Record, Trouble, record_from_json, record_to_json
from zerolab.ranks import RankFailure, launch

CASE_SECONDS = 5.0
"""How long one call may take. The reference needs a hundredth of a second."""


class Notes(Wrapped):
    """A transport that notes the receiver and the bytes of each message."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.sent: list[tuple[int, int]] = []

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        self.sent.append((dst, tensor.numel() * tensor.element_size()))
        return super().isend(tensor, dst, tag)


def on_rank(comm: Collectives, fn: Callable[..., Any], takes_comm: bool, args: list[tuple[Any, ...]]) -> dict[str, Any]:
    """One rank's part: call `fn` and note what it did."""
    notes = Notes(comm.transport)
    comm.transport = notes
    mine = args[comm.rank]
    value = fn(comm, *mine) if takes_comm else fn(*mine)
    collectives = comm.meter.calls_by_collective() if comm.meter else {}
    return record_to_json(Record(value, list(mine), notes.sent, collectives))


def observe(fn: Callable[..., Any], case: Case, takes_comm: bool = True) -> Observation:
    """Run `fn` as the case says; every error of the learner's code becomes the observation's trouble."""
    try:
        records = launch(
            on_rank,
            fn,
            takes_comm,
            case.args,
            ranks=case.ranks,
            world=case.world,
            # Real processes may have to be started first.
            timeout=CASE_SECONDS if case.world == "lockstep" else 30.0,
            device="cpu",
            collectives="ring",
            prints="quiet",
        )
    except RankError as error:
        return Observation(trouble=trouble_of(error))
    return Observation([record_from_json(record) for record in records])


def observe_all(fn: Callable[..., Any], cases: Sequence[Case], takes_comm: bool = True) -> list[Observation]:
    """Run the cases in order, up to the first that ends in trouble."""
    seen: list[Observation] = []
    for case in cases:
        seen.append(observe(fn, case, takes_comm))
        if seen[-1].trouble:
            break
    return seen


def trouble_of(error: BaseException) -> Trouble:
    """What a learner should read of an error."""
    if isinstance(error, RankFailure):
        return Trouble(error.error or "died", str(error), where(error.traceback))
    if isinstance(error, RankError):
        kind = "TimeOut" if "did not finish within" in str(error) else type(error).__name__
        return Trouble(kind, str(error))
    return Trouble(type(error).__name__, str(error))


def where(text: str) -> str:
    """The innermost line of the learner's own code in a traceback's text, as "line 3 of ring_all_gather"."""
    frames = re.findall(r'File "(<answer[^"]*|[^"]*ipykernel[^"]*|<ipython[^"]*)", line (\d+), in (\S+)', text)
    return f"line {frames[-1][1]}, in {frames[-1][2]}" if frames else ""
