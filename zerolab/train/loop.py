"""The steps of a run on one rank."""

from __future__ import annotations

import time

import torch

from zerolab.collectives import Collectives, phase
from zerolab.data import Batches
from zerolab.data.batches import sequence_start
from zerolab.gpu import door
from zerolab.run import RunSpec
from zerolab.train.account import mean
from zerolab.train.progress import Steps, Stop
from zerolab.train.readback import Readback, Reader
from zerolab.train.trace import Recorder
from zerolab.zero import ZeroEngine

PHASES_OF_A_STEP = ("forward", "backward", "norm", "publish")


class TrainingLoop:
    """The steps of a run on one rank, and what is known of them: mean loss over the whole batch, seconds, bytes."""

    def __init__(
        self,
        comm: Collectives,
        engine: ZeroEngine,
        batches: Batches,
        config: RunSpec,
        steps: Steps,
        stop: Stop,
        recorder: Recorder,
    ) -> None:
        self.comm, self.engine, self.batches, self.config, self.steps = comm, engine, batches, config, steps
        self.stop, self.schedule, self.recorder = stop, config.schedule, recorder
        # In a virtual world a step takes virtual time, and its loss is not computed.
        self.now = comm.transport.now if config.world == "virtual" else time.perf_counter
        self.losses: list[float | None] = []
        self.seconds: list[float] = []
        self.scales: list[float] = []
        self.skipped: list[int] = []
        self._reader = Reader(comm.device)
        self._reported: Readback | None = None

    def step(self, step: int) -> None:
        """One optimizer step."""
        start = self.now()
        with self.recorder.step(step + 1):
            self._step(step)
        self.seconds.append(self.now() - start)

    def _step(self, step: int) -> None:
        span = self.recorder.span
        if self.config.dropout:
            torch.manual_seed(seed_of(self.config.seed, step, self.comm.rank))
        self.schedule.set(self.engine.optimizer.param_groups, step)
        device, micro_batches = self.comm.device, self.batches.step(step)
        # The mean loss, and how many ranks were asked to stop: one collective says both.
        total = torch.zeros(2, device=device)
        for index, (inputs, targets) in enumerate(micro_batches):
            with span("forward"):
                loss = self.engine(door.send(inputs, device), door.send(targets, device)) / len(micro_batches)
            last = index == len(micro_batches) - 1
            with span("backward"):
                self.engine.backward(loss, reduce=last or not self.config.defer_reduction)
            total[0] += loss.detach()
        with span("optimizer step"):
            result = self.engine.step()
        self.scales.append(result.loss_scale)
        if result.skipped:
            self.skipped.append(step + 1)
            self.steps.skipped(step + 1, result.loss_scale, self.engine.loss_scale)
        self._collect_loss()
        if self.stop.is_asked():
            total[1] = 1
        # Parameters may still be on their way to the others; the loss queues behind them and is read a step later.
        with phase("report"):
            self._reported = self._reader.begin(self.comm.all_reduce_async(total, average=True))

    def settle(self) -> None:
        """Wait for what the last step left under way."""
        self._collect_loss()
        self.engine.synchronize()

    def traffic(self) -> dict[str, int | float]:
        """Bytes sent a step in each collective; whole numbers if all steps sent alike."""
        assert self.comm.meter is not None
        sent = self.comm.meter.bytes_by_collective(*PHASES_OF_A_STEP)
        return {name: mean(total, len(self.seconds)) for name, total in sent.items()}

    def _collect_loss(self) -> None:
        if self._reported is not None:
            loss, stopped = self._reported.numbers(instead=[None, 0])
            self.losses.append(loss)
            self.stop.heard = self.stop.heard or stopped > 0
            self.steps.done(self.losses[-1])
            self._reported = None


def seed_of(seed: int, step: int, rank: int) -> int:
    """The seed of what a rank leaves out (dropout) in a step, so that a run that is resumed leaves out the same."""
    return sequence_start(seed, step, rank, 1 << 62)
