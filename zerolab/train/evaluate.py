"""The loss on text that the model is not trained on, from time to time."""

from __future__ import annotations

import torch

from zerolab.collectives import Collectives, phase
from zerolab.data import Batches
from zerolab.gpu import door
from zerolab.train.progress import Steps
from zerolab.zero import ZeroEngine


class Evaluator:
    """What one rank does to evaluate: every rank makes the same calls.

    `batches` are of held-out text; their first `count` steps are what each evaluation sees, so that its numbers can be
    compared. `losses` are by the number of steps that were made before. `every` is None: nothing is ever evaluated.
    """

    def __init__(
        self,
        comm: Collectives,
        engine: ZeroEngine,
        batches: Batches,
        every: int | None,
        count: int,
        steps: Steps,
    ) -> None:
        self.comm, self.engine, self.batches = comm, engine, batches
        self.every, self.count, self.steps = every, count, steps
        self.losses: dict[int, float] = {}

    def is_due(self, step: int) -> bool:
        """Whether to evaluate after so many steps."""
        return self.every is not None and step % self.every == 0

    def evaluate(self, step: int) -> None:
        """The mean loss over all ranks' sequences, after so many steps. Neither the model nor any generator of random
        numbers is another after it, and its collectives are in the phase "evaluate", which no step has."""
        if self.every is None or step in self.losses:
            return
        device = self.comm.device
        total = torch.zeros(1, device=device)
        self.engine.eval()
        with phase("evaluate", whole=True), torch.no_grad():
            for index in range(self.count):
                for inputs, targets in self.batches.step(index):
                    total += self.engine(door.send(inputs, device), door.send(targets, device)).detach()
            self.comm.all_reduce(total, average=True)
        self.engine.train()
        self.losses[step] = total.item() / (self.count * self.batches.accumulation)
        self.steps.evaluated(step, self.losses[step])
