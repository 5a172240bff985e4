"""Where a run begins, and what it saves: the settings of `zerolab train` put to the library's checkpoints.

Which sequences a step trains on follows from (seed, step, place), so the step is all that a run must know of its data
to go on; what the sequences depend on besides is saved beside it, and a run that has it otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from zerolab.checkpoint import Checkpoints, find_latest, read_manifest
from zerolab.checkpoint.folder import remedy_for, step_of
from zerolab.checkpoint.manifest import MANIFEST, Manifest
from zerolab.data import Corpus
from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.train.model import saved_shape, shape_to_save
from zerolab.train.progress import Stop
from zerolab.zero import ZeroEngine

Weights = Callable[[], Mapping[str, torch.Tensor]]
Export = Callable[..., None]
SAME = ("model", "model_size", "seed", "seq_len", "batch_size")
"""Settings that a run keeps from its first step to its last."""
SCHEDULE = ("lr_schedule", "warmup_steps", "warmup_shape", "decay_steps", "min_lr")
TAKEN_OVER = ("lr", "weight_decay", "beta1", "beta2", "eps", "dropout", *SCHEDULE)
"""Settings that a checkpoint gives where nobody gives another."""
LATER = ("beta1", "beta2", "eps", "dropout", *SCHEDULE)
"""Those of them that early checkpoints do not name: such runs had what are the defaults now."""


@dataclass(frozen=True)
class Start:
    """Where a run begins: after `step` steps, with the checkpoint in `folder`, or at 0 with none.

    config    the run's settings, with what was taken over
    notes     what to tell whoever started it, a sentence each
    weights   what reads the parameters that it begins with, where it draws none
    export    what writes the whole weights at its end, where they are asked for
    """

    config: RunSpec
    step: int = 0
    folder: Path | None = None
    notes: tuple[str, ...] = ()
    weights: Weights | None = None
    export: Export | None = None


def find_start(config: RunSpec, corpus: Corpus, weights: Weights | None = None, export: Export | None = None) -> Start:
    """Where a run with these settings begins. Raises an InputError for a checkpoint of another run, or none where one
    was named, and a CheckpointError for one that cannot be read."""
    if config.init_from is not None and weights is None:
        raise InputError(f"init_from is {str(config.init_from)!r}, and nobody reads its weights; give what does")
    if config.zero3_save_16bit_model and export is None:
        raise InputError("zero3_save_16bit_model is set, and nobody writes the whole weights; give what does")
    start = replace(_find_start(config, corpus), weights=weights, export=export)
    whole = _folder_of_whole(config, config.max_steps) if config.zero3_save_16bit_model else None
    if whole is not None and start.step < config.max_steps and whole.exists() and any(whole.iterdir()):
        raise InputError(f"the whole weights go to {whole}, which has something in it; move it, or name another folder")
    return start


def _folder_of_whole(config: RunSpec, step: int) -> Path:
    assert config.save_folder is not None
    return config.save_folder.expanduser() / f"model_16bit_step{step}"


def _find_start(config: RunSpec, corpus: Corpus) -> Start:
    if config.resume is None:
        return Start(config)
    folder = config.resume.expanduser()
    found = folder if (folder / MANIFEST).is_file() else find_latest(folder)
    if found is None:
        if config.save_folder is None or config.save_folder.expanduser() != folder or step_of(folder) >= 0:
            raise InputError(
                f"resume is {str(folder)!r}, where there is no checkpoint; name a folder that has one, or leave it out "
                "to begin anew"
            )
        config.check_schedule()
        return Start(config, notes=(f"there is no checkpoint in {folder} yet, so the run begins anew",))
    manifest = read_manifest(found, remedy_for(found))
    saved = data_of(manifest, found)
    if "batch_size" not in config.model_fields_set:
        config = config.model_copy(update={"batch_size": saved["batch_size"]})
    check_batch(config, saved["batch_size"], found)
    check_same(config, corpus, saved, found)
    taken = taken_over(config, saved)
    at = f"step {manifest.step} of {config.max_steps}"
    if manifest.step >= config.max_steps:
        return Start(config, manifest.step, found, notes=(f"{found} is at {at}, so there is nothing left to do",))
    config_now = config.model_copy(update=taken)
    config_now.check_schedule()
    options = ", ".join(
        _option(name, getattr(config_now, name), saved[name])
        for name in TAKEN_OVER
        if name not in LATER or {saved[name], getattr(config_now, name)} != {RunSpec.model_fields[name].default}
    )
    return Start(
        config_now,
        manifest.step,
        found,
        (f"the run goes on from {found}, at {at}, with {options}",),
    )


def taken_over(config: RunSpec, saved: dict[str, Any]) -> dict[str, Any]:
    """The settings that come from a checkpoint: those that nobody gives. Where another kind of schedule is given, the
    end of the checkpoint's schedule does not come, either."""
    given = set(config.model_fields_set)
    if "lr_schedule" in given and config.lr_schedule != saved["lr_schedule"]:
        given |= {"decay_steps", "min_lr"}
    return {name: saved[name] for name in TAKEN_OVER if name not in given}


def _option(name: str, now: Any, saved: Any) -> str:
    words = name.replace("_", " ")
    said, before = (
        value if isinstance(value, str) else "none" if value is None else f"{value:g}" for value in (now, saved)
    )
    return f"{words} {said}" if now == saved else f"{words} {said} as asked for (it was {before})"


def data_to_save(config: RunSpec, corpus: Corpus) -> dict[str, Any]:
    """What a checkpoint says of the run that it is of."""
    said = {name: getattr(config, name) for name in (*SAME, *TAKEN_OVER)}
    if config.lr_schedule != "constant":
        # A run that is resumed for more steps keeps the end of its decay.
        said["decay_steps"] = config.schedule.decay_steps
    said["shape"] = shape_to_save(config.architecture)
    said["tokenizer"] = None if corpus.tokenizer is None else corpus.tokenizer.said()
    return {**said, "text_sha256": corpus.text.sha256, "text_source": corpus.text.source}


def data_of(manifest: Manifest, found: Path) -> dict[str, Any]:
    """The same, of a checkpoint. Raises an InputError if it says nothing of the kind."""
    wanted = {*SAME, *TAKEN_OVER, "text_sha256", "text_source"} - {*LATER}
    if not isinstance(manifest.data, dict) or not wanted <= manifest.data.keys():
        raise InputError(
            f"{found} was not saved by zerolab train, so nobody knows which batches come next; load it with "
            "zerolab.checkpoint, or name another"
        )
    return {name: RunSpec.model_fields[name].default for name in LATER} | manifest.data


def check_batch(config: RunSpec, saved: int, found: Path) -> None:
    """Refuse ranks and micro-batches that cannot share the sequences of the checkpoint's steps."""
    if saved % (config.ranks * config.grad_accum_steps):
        raise InputError(
            f"{found} was saved with a batch_size of {saved}, which ranks {config.ranks} x accumulation "
            f"{config.grad_accum_steps} do not divide; give ranks and grad_accum_steps that do, or do not resume"
        )


def check_same(config: RunSpec, corpus: Corpus, saved: dict[str, Any], found: Path) -> None:
    """Refuse settings with which the run would not go on, but be another."""
    for name in SAME:
        now, before = getattr(config, name), saved[name]
        if now != before:
            raise InputError(f"{name} is {now} and {found} was saved with {before}; give {before}, or do not resume")
    now, before = shape_to_save(config.architecture), shape_to_save(saved_shape(saved) or config.architecture)
    for name in now:
        if now[name] != before.get(name):
            raise InputError(
                f"the model's {name} is {now[name]} and {found} was saved with {before.get(name)}; give the model that "
                "was saved, or do not resume"
            )
    setting = "data_mode" if config.dataset is None else "dataset"
    if corpus.text.sha256 != saved["text_sha256"]:
        raise InputError(
            f"{setting} gives the text {corpus.text.source!r} (sha256 {corpus.text.sha256[:12]}) and {found} was saved "
            f"with {saved['text_source']!r} (sha256 {saved['text_sha256'][:12]}); give that text, or do not resume"
        )


@dataclass
class Saver:
    """What one rank of a run loads before its first step and saves after others. Every rank makes the same calls.

    seconds   how long this rank did nothing else, by the step that was saved
    """

    engine: ZeroEngine
    start: Start
    data: dict[str, Any]
    stop: Stop
    seconds: dict[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        config = self.start.config
        self.every = config.save_every
        self.checkpoints = None if config.save_folder is None else Checkpoints(config.save_folder, config.keep)
        if self.checkpoints is not None:
            # Now, and not at the first save: another run that saves there shall be named before the work.
            self.checkpoints.hold(self.engine)

    def load(self) -> None:
        """Make the engine what the checkpoint has, if there is one."""
        start = self.start
        if start.folder is None:
            return
        self.notes = Checkpoints(start.folder).load(self.engine).notes
        for group in self.engine.optimizer.param_groups:
            group["lr"] = start.config.lr
            group["betas"], group["eps"] = (start.config.beta1, start.config.beta2), start.config.eps
            group["weight_decay"] = start.config.weight_decay if group["decays"] else 0.0

    def is_due(self, step: int) -> bool:
        """Whether to save after so many steps of the run, with more to come."""
        return self.checkpoints is not None and self.every is not None and step % self.every == 0

    def save(self, step: int, last: bool = False) -> None:
        """Save after so many steps of the run; the last save is there when this returns. Without a folder, nothing.
        Raises a CheckpointError on every rank if this save, or the one before, failed on any."""
        if self.checkpoints is None:
            return
        begun = perf_counter()
        if step in self.seconds:
            self.checkpoints.wait()
        else:
            self.seconds[step] = 0.0
            self.checkpoints.save(self.engine, step, data=self.data, wait=last)
        if last:
            self.checkpoints.close()
            if self.start.config.zero3_save_16bit_model and not self.stop.heard:
                self._export(step)
        self.seconds[step] += perf_counter() - begun

    def _export(self, step: int) -> None:
        """Write the whole weights in 16 bits: a folder that transformers reads."""
        config = self.start.config
        precision = config.dtypes
        dtype = torch.float16 if precision is not None and precision.params == "fp16" else torch.bfloat16
        assert self.start.export is not None
        self.start.export(self.engine, _folder_of_whole(config, step), dtype=dtype, config=config.architecture)
