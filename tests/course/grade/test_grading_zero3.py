"""Lesson 05: the exercise on the cost of a step asks for what the engine's meter counts, and a layer that was released
too early ends an answer's process alone."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from zoo.trial import model_names
from zoo.zero_3.forward import RELEASED

from zerolab.collectives import Collectives
from zerolab.course.exercises.zero_3.step_bytes import step_bytes
from zerolab.course.grade import CheckFailed, checks
from zerolab.course.grade.worker import load
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine


class Layers(nn.Module):
    def __init__(self, trains: list[bool], checkpointing: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64, bias=False).requires_grad_(each) for each in trains])
        self.checkpointing = checkpointing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        return x


def sent(comm: Collectives, trains: list[bool], micro_batches: int, checkpointing: bool) -> int:
    engine = ZeroEngine(Layers(trains, checkpointing), comm, 3, lr=1e-3)
    assert comm.meter is not None
    comm.meter.reset()
    for _ in range(micro_batches):
        engine.backward(engine(torch.ones(2, 64)).square().mean())
    engine.step()
    return sum(comm.meter.bytes_by_collective().values())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "trains", [[True, True], [False, False, True, True], [True, False, True], [False, True, False]]
)
def test_the_exercise_asks_for_what_the_meter_counts(trains: list[bool], checkpointing: bool) -> None:
    for micro_batches in (1, 2):
        counted = launch(
            sent, trains, micro_batches, checkpointing, ranks=2, world="lockstep", collectives="ring", device="cpu"
        )
        wanted = step_bytes([(64 * 64, each) for each in trains], 2, micro_batches, checkpointing)
        assert list(counted) == [wanted] * 2


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_a_layer_that_was_released_too_early_is_a_report_and_the_process_that_checks_lives_on() -> None:
    names = model_names("05_zero_3")
    assert load("forward", RELEASED, names) is None
    with pytest.raises(CheckFailed) as failed:
        checks("05_zero_3").forward(names["forward"])
    said = str(failed.value)
    assert "SIGSEGV" in said or "raised RuntimeError" in said, "the second is torch's own word"
