"""What one rank does in a training run: its parts in order, from the first step to the record of all ranks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from zerolab.collectives import Collectives, phase
from zerolab.collectives.observe import gather_records
from zerolab.data import Corpus, MappedCorpus
from zerolab.errors import InputError
from zerolab.memory import Labels, Tracker
from zerolab.ranks import SimulatedCompute
from zerolab.train.account import parameters_sha256, predictions
from zerolab.train.debug import ZeroDebug
from zerolab.train.evaluate import Evaluator
from zerolab.train.loop import PHASES_OF_A_STEP, TrainingLoop
from zerolab.train.parts import held_out, make_engine, trained_on
from zerolab.train.progress import Steps, Stop
from zerolab.train.resume import Saver, Start, data_to_save
from zerolab.train.trace import Recorder
from zerolab.zero.zero_engine import engine_labels

TRACKED_STEPS = 2
"""Memory is measured in the first steps only: the optimizer's states come with the first, the peak with the
second, and a tracker slows every operation down."""


def train_rank(
    comm: Collectives, start: Start, corpus: Corpus, progress: str | None, stop: Stop | None = None
) -> dict[str, Any]:
    """Train on this rank; returns the record of all ranks, the same on each of them."""
    config = start.config
    check_same_start(comm, start, corpus)
    # On a virtual clock time passes only as somebody says.
    speeds = config.gflop_per_s, config.gbyte_per_s
    pace = nullcontext() if config.world == "processes" else SimulatedCompute(comm, *speeds)
    with pace:
        run = Run(comm, start, corpus, progress, stop or Stop())
        run.begin()
        run.tracked_steps()
        run.other_steps()
        run.end()
        return run.record()


class Run:
    """A run on this rank. `step` is the number of steps that are done, those before its checkpoint counted."""

    def __init__(self, comm: Collectives, start: Start, corpus: Corpus, progress: str | None, stop: Stop) -> None:
        config = start.config
        self.comm, self.start, self.config, self.stop = comm, start, config, stop
        self.engine = engine = make_engine(comm, start)
        self.steps = steps = Steps(progress if comm.rank == 0 else None)
        self.saver = Saver(engine, start, data_to_save(config, corpus), stop)
        self.recorder = Recorder(comm, engine, config.trace_steps)
        self.loop = TrainingLoop(comm, engine, trained_on(comm, config, corpus), config, steps, stop, self.recorder)
        batches = held_out(comm, config, corpus)
        self.evaluator = Evaluator(comm, engine, batches, config.eval_every, config.eval_steps, steps)
        clock = comm.transport.now if self.recorder.on else None
        self.tracker = Tracker(with_text(engine_labels(engine), corpus), samples=self.recorder.on, clock=clock)
        self.peaks: list[dict[str, int]] = []
        self.kept: dict[str, int] = {}
        self.step, self.tracked = start.step, 0

    def begin(self) -> None:
        """Load the checkpoint that there is, and count from here on."""
        self.saver.load()
        assert self.comm.meter is not None
        self.comm.meter.reset()
        self.debug = ZeroDebug(self.comm, self.engine, self.config, PHASES_OF_A_STEP, self.steps.say)
        if self.step == 0:
            self.evaluator.evaluate(0)

    def tracked_steps(self) -> None:
        """The first steps, with what they hold. The ledger is of training: neither what is evaluated between them nor
        copies that wait to be written are of it."""
        while self._is_tracked():
            with self.tracker:
                self._one_step()
                while self._is_tracked() and not self._is_due():
                    self._one_step()
                self.loop.settle()
                self.peaks.append(self.tracker.peak)
                self.kept = self.tracker.now() | self.engine.disk_bytes()
            self._between_steps()
        self.tracked = self.step - self.start.step
        self.recorder.memory = self.tracker.samples

    def other_steps(self) -> None:
        while self._goes_on():
            self._one_step()
            self._between_steps()

    def end(self) -> None:
        self.loop.settle()
        self.saver.save(self.step, last=True)
        if not self.stop.heard:
            self.evaluator.evaluate(self.step)
        self.steps.close()

    def record(self) -> dict[str, Any]:
        """What all ranks say of the run, and what each could say."""
        loop = self.loop
        assert self.comm.meter is not None
        with phase("report"):
            digest = parameters_sha256(self.engine)
            own = {
                "memory": self.kept,
                "peak": max(self.peaks, key=lambda kinds: sum(kinds.values())),
                "traffic": loop.traffic(),
                "seconds": loop.seconds,
                "save_seconds": list(self.saver.seconds.values()),
                "trace": self.recorder.record(),
            }
            of_ranks = gather_records(self.comm, own)
            if self.config.world == "virtual":
                # The others are taken to do the same as this one: said once, not as often as there are ranks.
                of_ranks = of_ranks[:1]
        return {
            "ranks": of_ranks,
            "loss": loop.losses,
            "validation_loss": self.evaluator.losses,
            "loss_scale": loop.scales,
            "skipped_steps": loop.skipped,
            "tracked_steps": self.tracked,
            "parameters_sha256": digest,
            "traffic_is_stated": self.comm.meter.nominal,
            "predicted": predictions(self.engine, self.config, len(loop.losses), len(loop.skipped)),
            "step": self.step,
            "saved_steps": list(self.saver.seconds),
            "notes": self.saver.notes,
        }

    def _goes_on(self) -> bool:
        return self.step < self.config.max_steps and not self.stop.heard

    def _is_tracked(self) -> bool:
        """Whether the next step is to be tracked. A skipped one makes no states and frees none."""
        return self._goes_on() and self.step - self.start.step - len(self.loop.skipped) < TRACKED_STEPS

    def _is_due(self) -> bool:
        return self.saver.is_due(self.step) or self.evaluator.is_due(self.step)

    def _one_step(self) -> None:
        self.loop.step(self.step)
        self.step += 1
        self.debug.step_ended(self.step, self.loop.settle)

    def _between_steps(self) -> None:
        if self.saver.is_due(self.step):
            self.saver.save(self.step)
        if self.evaluator.is_due(self.step):
            self.loop.settle()
            self.evaluator.evaluate(self.step)


def with_text(labels: Labels, corpus: Corpus) -> Labels:
    """Labels that also name a text which is mapped from files: it is in the ledger of the host, not of the device."""
    text = [corpus.train, corpus.valid]
    return (lambda: {**labels(), "host:text": text}) if isinstance(corpus, MappedCorpus) else labels


def check_same_start(comm: Collectives, start: Start, corpus: Corpus) -> None:
    """Ranks that loaded different texts (one fell back, another did not), or that see different checkpoints, must not
    train together."""
    with phase("setup"):
        seen = gather_records(comm, [corpus.text.sha256[:12], corpus.text.source])
        steps = gather_records(comm, start.step)
    if any(text != seen[0] for text in seen):
        raise InputError(f"the ranks loaded different texts ({seen}); put one file where all of them can read it")
    if any(step != steps[0] for step in steps):
        raise InputError(
            f"the ranks see checkpoints of different steps in {start.config.resume} ({steps}); name a folder that all "
            "of their machines share"
        )
