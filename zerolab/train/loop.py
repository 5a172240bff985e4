"""What one rank does in a training run."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle, phase
from zerolab.collectives.records import gather_records
from zerolab.data import Batches, Corpus
from zerolab.data.batches import sequence_start
from zerolab.errors import InputError
from zerolab.memory import Tracker, predict, predict_traffic
from zerolab.models import build_model
from zerolab.ranks import Pace
from zerolab.train import instances
from zerolab.train.config import TrainConfig
from zerolab.train.debug import ZeroDebug
from zerolab.train.evaluate import Evaluator
from zerolab.train.model import take_weights
from zerolab.train.progress import Steps, Stop
from zerolab.train.resume import Saver, Start, data_to_save
from zerolab.train.trace import Recorder
from zerolab.zero import ZeroEngine
from zerolab.zero.labels import engine_labels
from zerolab.zero.optimizer import Factory, default_factory

TRACKED_STEPS = 2
"""Memory is measured in the first steps only: the optimizer's states come with the first, the peak with the
second, and a tracker slows every operation down."""

PHASES_OF_A_STEP = ("forward", "backward", "norm", "publish")


def decay_groups(weight_decay: float) -> Any:
    """Weight decay for matrices only; the weights of norms and biases have none."""
    return lambda _name, parameter: {"weight_decay": weight_decay if parameter.dim() >= 2 else 0.0}


def adamw(config: TrainConfig) -> Factory:
    """The engine's own AdamW, with other decays of its moments where they are asked for."""
    options: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.eps}
    usual = all(getattr(config, name) == TrainConfig.model_fields[name].default for name in ("beta1", "beta2", "eps"))
    return default_factory(config.lr, **({} if usual else options))


def train_rank(
    comm: Collectives, start: Start, corpus: Corpus, progress: str | None, stop: Stop | None = None
) -> dict[str, Any]:
    """Train on this rank; returns the record of all ranks, the same on each of them."""
    config = start.config
    if config.world == "lockstep":
        # Time passes there only as somebody says.
        with Pace(comm, config.gflop_per_s, config.gbyte_per_s):
            return run_rank(comm, start, corpus, progress, stop)
    return run_rank(comm, start, corpus, progress, stop)


def run_rank(
    comm: Collectives, start: Start, corpus: Corpus, progress: str | None, stop: Stop | None
) -> dict[str, Any]:
    config = start.config
    check_same_start(comm, start, corpus)
    torch.manual_seed(config.seed)
    spec = config.spec
    model = build_model(config.shape, checkpoint=config.checkpoint_activations, dropout=config.dropout).to(comm.device)
    if config.init_from is not None and start.folder is None:
        take_weights(model, config.init_from)
    if config.compile:
        for block in model.blocks:
            block.compile(backend=config.compile_backend)
    shard, replicate = instances.split(comm, config.num_distributed_optimizer_instances)
    engine = ZeroEngine(
        model,
        shard,
        spec.stage,
        optimizer=adamw(config),
        clip_norm=config.clip_norm or None,
        groups=decay_groups(config.weight_decay if start.built is None else start.built),
        reduction=spec.reduction,
        overlap=config.overlap,
        overlap_gather=config.overlap,
        prefetch=config.prefetch,
        limits=config.make_limits(),
        bucket_numel=config.bucket_numel,
        precision=spec.precision,
        scaler=config.make_scaler(),
        offload=spec.places,
        replicate=replicate,
    )
    batches = Batches(
        corpus.train, config.seq_len, config.batch_size, comm.size, comm.rank, config.grad_accum_steps, config.seed
    )
    stop = stop or Stop()
    saver = Saver(engine, start, data_to_save(config, corpus), stop)
    saver.load()
    assert comm.meter is not None
    comm.meter.reset()
    steps = Steps(progress if comm.rank == 0 else None)
    recorder = Recorder(comm, engine, config.trace_steps)
    loop = TrainingLoop(comm, engine, batches, config, steps, stop, recorder)
    evaluator = Evaluator(
        comm, engine, held_out(comm, config, corpus), config.eval_every, config.eval_steps, steps, stop
    )
    debug = ZeroDebug(comm, engine, config, PHASES_OF_A_STEP, steps.say)
    tracker = Tracker(engine_labels(engine), samples=recorder.on, clock=comm.transport.now if recorder.on else None)
    peaks = []
    step = start.step
    if step == 0:
        evaluator.evaluate(step)

    def goes_on(tracked: bool = False) -> bool:
        # A skipped step makes no states and frees none.
        enough = tracked and step - start.step - len(loop.skipped) >= TRACKED_STEPS
        return step < config.max_steps and not stop.heard and not enough

    def between(step: int) -> None:
        if saver.is_due(step):
            saver.save(step)
        if evaluator.is_due(step):
            loop.settle()
            evaluator.evaluate(step)

    while goes_on(tracked=True):
        with tracker:
            due = False
            while goes_on(tracked=True) and not due:
                loop.step(step)
                step += 1
                due = saver.is_due(step) or evaluator.is_due(step)
                debug.step_ended(step, loop.settle)
            loop.settle()
            peaks.append(tracker.peak)
            memory = tracker.now() | engine.disk_bytes()
        if due:
            # The ledger is of training; copies that wait to be written are not of it.
            between(step)
    tracked = step - start.step
    recorder.memory = tracker.samples
    while goes_on():
        loop.step(step)
        step += 1
        debug.step_ended(step, loop.settle)
        between(step)
    loop.settle()
    saver.save(step, last=True)
    if not stop.heard:
        evaluator.evaluate(step)
    steps.close()
    with phase("report"):
        digest = parameters_sha256(engine)
        record = {
            "memory": memory,
            "peak": max(peaks, key=lambda kinds: sum(kinds.values())),
            "traffic": loop.traffic(),
            "seconds": loop.seconds,
            "save_seconds": list(saver.seconds.values()),
            "trace": recorder.record(),
        }
        of_ranks = gather_records(comm, record)
    return {
        "ranks": of_ranks,
        "loss": loop.losses,
        "validation_loss": evaluator.losses,
        "loss_scale": loop.scales,
        "skipped_steps": loop.skipped,
        "tracked_steps": tracked,
        "parameters_sha256": digest,
        "traffic_is_stated": comm.meter.nominal,
        "predicted": predictions(engine, config, len(loop.losses), len(loop.skipped)),
        "step": step,
        "saved_steps": list(saver.seconds),
        "notes": saver.notes,
    }


class TrainingLoop:
    """The steps of a run on one rank, and what is known of them: mean loss over the whole batch, seconds, bytes."""

    def __init__(
        self,
        comm: Collectives,
        engine: ZeroEngine,
        batches: Batches,
        config: TrainConfig,
        steps: Steps,
        stop: Stop,
        recorder: Recorder,
    ) -> None:
        self.comm, self.engine, self.batches, self.config, self.steps = comm, engine, batches, config, steps
        self.stop, self.schedule, self.recorder = stop, config.schedule, recorder
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.scales: list[float] = []
        self.skipped: list[int] = []
        self._reported: Handle | None = None

    def step(self, step: int) -> None:
        """One optimizer step."""
        start = time.perf_counter()
        with self.recorder.step(step + 1):
            self._step(step)
        self.seconds.append(time.perf_counter() - start)
        self.stop.step_ended()

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
                loss = self.engine(inputs.to(device), targets.to(device)) / len(micro_batches)
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
            self._reported = self.comm.all_reduce_async(total, average=True)

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
            loss, stopped = self._reported.wait().tolist()
            self.losses.append(loss)
            self.stop.heard = self.stop.heard or stopped > 0
            self.steps.done(self.losses[-1])
            self._reported = None


def predictions(engine: ZeroEngine, config: TrainConfig, steps: int, skipped: int) -> dict[str, Any]:
    """What memory and traffic should be, by rank, from the layout alone; traffic as the mean over so many steps."""
    spec = config.spec
    copies = config.num_distributed_optimizer_instances
    memory = predict(engine.plans, spec.stage, engine.state_size, spec.precision, spec.places)
    whole, cut = (
        instances.added(
            instances.of_all(
                predict_traffic(
                    engine.plans,
                    spec.stage,
                    engine.comm.size,
                    micro_batches=spec.micro_batches,
                    reduction=spec.reduction,
                    reduce_each=spec.reduce_each,
                    clip=bool(config.clip_norm),
                    precision=spec.precision,
                    offload=spec.places,
                    skipped=is_skipped,
                    limits=config.make_limits(),
                    resident=[unit.name for unit in engine.units if len(unit.modules) > 1],
                ),
                copies,
            ),
            instances.traffic_across(engine.plans, spec, copies, is_skipped),
        )
        for is_skipped in (False, True)
    )
    traffic = {
        name: [
            mean(all_of * (steps - skipped) + less * skipped, steps)
            for all_of, less in zip(sent, cut.get(name, [0] * len(sent)), strict=True)
        ]
        for name, sent in whole.items()
    }
    return {"memory": instances.of_all(memory, copies), "traffic": traffic}


def mean(total: int, count: int) -> int | float:
    """`total / count`, as an int where that is a whole number."""
    return total // count if total % count == 0 else total / count


def parameters_sha256(engine: ZeroEngine) -> str:
    """Of all parameters: names, dtypes, shapes and bytes, unit by unit, so that one unit at a time is whole."""
    digest = hashlib.sha256()
    for unit in engine.units:
        for name, value in sorted(engine.parameters_of(unit).items()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def seed_of(seed: int, step: int, rank: int) -> int:
    """Of what a rank leaves out (dropout) in a step: a run that goes on leaves out what it would have."""
    return sequence_start(seed, step, rank, 1 << 62)


def held_out(comm: Collectives, config: TrainConfig, corpus: Corpus) -> Batches:
    """The micro-batches of the text that is not trained on."""
    sequences = config.batch_size // config.grad_accum_steps
    return Batches(corpus.valid, config.seq_len, sequences, comm.size, comm.rank, seed=config.seed)


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
