"""Loading: every rank reads what it needs of a checkpoint, whoever wrote it, and nothing else.

    1  all ranks    read the manifest and hold it to the engine: names, shapes, optimizer
    2  each rank    plans what it reads, and reads all of it once, so that damage shows while the engine is as it was
    3  each rank    reads it again, a piece at a time, to where it rests; at stages 1 and 2 the shards are then gathered

A rank of stage 1, 2 or 3 reads its own elements of everything; one of stage 0 needs all. Values that were saved in
another dtype or codec are cast or decoded on the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zerolab.checkpoint import plain, rng
from zerolab.checkpoint.agreement import READING, agree, attempt
from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import NONPARAM, SCHEDULER, model_file, read_manifest
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.shards import blocks_of, buffers_of, split, states_of, tied_names
from zerolab.checkpoint.unsharded import check_complete, group_keys, names_by_group
from zerolab.errors import InputError, StateError
from zerolab.precision.codec import Codec
from zerolab.zero import ZeroEngine
from zerolab.zero.bucket import Bucket
from zerolab.zero.overwrite import Overlap, changing, gather_parameters, overlaps, write_main, write_parameters
from zerolab.zero.tiers.stored_step import StoredSegment

Tensor = torch.Tensor
HOW = ("fused", "foreach", "capturable", "differentiable")
"""Options that say how torch's optimizer computes: this engine's own stay."""
AT_ONCE = 1 << 22
"""Elements that are read at a time."""


@dataclass(frozen=True)
class Loaded:
    """What was loaded: the checkpoint's folder, the step it was saved after, the caller's data, and in words what could
    not be taken over. `nbytes_needed` are the bytes of tensors that this rank needed, `nbytes_read` those that it read
    to check them, in whole blocks."""

    folder: Path
    step: int
    data: Any
    notes: tuple[str, ...] = ()
    nbytes_needed: int = 0
    nbytes_read: int = 0


class Load:
    """One load of this rank, into an engine."""

    def __init__(self, engine: ZeroEngine, path: Path, scheduler: Any, weights_only: bool) -> None:
        self.engine, self.scheduler, self.weights_only = engine, scheduler, weights_only
        self.notes: list[str] = []
        self.rank = engine.owner

        def find() -> str:
            engine.check_between_steps("load", mends=True)
            if engine.broken is not None and weights_only:
                raise StateError(f"{engine.broken}; weights_only would leave the optimizer's states as they are")
            # Rank 0 says which one: `latest` may change while others look.
            return str(resolve(path)) if engine.comm.rank == 0 else ""

        engine.synchronize()
        found, error = attempt(find, READING)
        self.path = Path(agree(engine, error, found)[0])
        self.remedy = remedy_for(self.path)

        def read() -> None:
            self.manifest = read_manifest(self.path, self.remedy)
            self.source = CheckpointReader(self.path, self.manifest, self.remedy)
            try:
                self._check_model()
                self._check_all()
            except BaseException:
                self.source.close()
                raise

        _, error = attempt(read, READING)
        try:
            agree(engine, error)
        except BaseException:
            if error is None:
                self.source.close()
            raise

    def run(self) -> Loaded:
        engine = self.engine
        with self.source, changing(engine, "a load"):
            _, error = attempt(self._apply, READING)
            agree(engine, error)
            gather_parameters(engine)
        engine.broken = None
        return Loaded(
            self.path, self.manifest.step, plain.parse(json.dumps(self.manifest.data)), tuple(self.notes), self.needed,
            self.nbytes_read,
        )  # fmt: skip

    # Before anything is changed.

    def _check_model(self) -> None:
        engine, saved = self.engine, self.manifest.parameters
        tied = tied_names(engine.model)
        slots = {slot.name: (slot, bucket) for bucket in engine.buckets for slot in bucket.layout.slots}
        for name, (slot, bucket) in slots.items():
            if name not in saved:
                raise InputError(
                    f"{self.path} has no parameter {name}, which this model has; build the model that was saved"
                )
            if tuple(slot.shape) != saved[name].shape:
                raise InputError(
                    f"{name} has shape {tuple(slot.shape)} in this model and {saved[name].shape} in {self.path}; build "
                    "the model that was saved"
                )
            if bucket.trainable and not saved[name].trains and not self.weights_only and self.manifest.states:
                raise InputError(
                    f"{name} trains in this model and was frozen in {self.path}, which has no optimizer states of it; "
                    "freeze it, or load with weights_only=True"
                )
        missing = next((name for name in saved if name not in slots and name not in tied), None)
        if missing is not None:
            raise InputError(
                f"{self.path} has a parameter {missing}, which this model has not; build the model that was saved"
            )
        self.buffers = buffers_of(engine.model)
        for name in self.buffers:
            if name not in self.manifest.buffers:
                raise InputError(
                    f"{self.path} has no buffer {name}, which this model has; build the model that was saved"
                )
        strange = next((name for name in self.manifest.buffers if name not in self.buffers and name not in tied), None)
        if strange is not None:
            raise InputError(
                f"{self.path} has a buffer {strange}, which this model has not; build the model that was saved"
            )
        self.groups: list[Any] = []
        if not self.weights_only:
            self._check_optimizer()

    def _check_optimizer(self) -> None:
        engine, manifest = self.engine, self.manifest
        check_complete(engine)
        said = plain.parse(self.source.text(NONPARAM))
        self.loss_scaler, saved_groups = said["loss_scaler"], said["groups"]
        names = sorted(states_of(engine)) or sorted(manifest.states)
        own = type(engine.optimizer).__name__
        if manifest.states and sorted(manifest.states) != names:
            raise InputError(
                f"{self.path} has the states of {manifest.optimizer} ({', '.join(manifest.states)}) and this engine "
                f"has {own} ({', '.join(names) or 'none'}); build it with the optimizer that was saved, or load with "
                "weights_only=True"
            )
        step = engine.optimizer_step
        begun = (counts(step.counters(segment)) or step.has_begun(segment) for segment in step.segments)
        if names and not manifest.states and (engine.broken is not None or any(begun)):
            raise InputError(
                f"{self.path} was saved before the first step and this engine has made some; load it into a new engine"
            )
        of_name = {name: number for number, group in enumerate(saved_groups) for name in group["parameters"]}
        for group in names_by_group(engine):
            theirs = {of_name[name] for name in group if name in of_name}
            if len(theirs) > 1:
                first, other = group[0], next(name for name in group if of_name.get(name) != of_name.get(group[0]))
                raise InputError(
                    f"{first} and {other} share a group of the optimizer's here and were in two when {self.path} was "
                    "saved; give the groups as they were, or load with weights_only=True"
                )
            self.groups.append(saved_groups[theirs.pop()] if theirs else {"options": {}, "counters": {}})
        if self.scheduler is not None and SCHEDULER not in manifest.files:
            raise InputError(f"{self.path} has no scheduler's state; it was saved without scheduler=...")
        if (self.loss_scaler is None) != (engine.scaler is None):
            self.notes.append(
                "the checkpoint has no loss scale, so the scaler begins anew"
                if self.loss_scaler is None
                else "the checkpoint's loss scale is not used, since no state is fp16 now"
            )
        if self.loss_scaler is not None and engine.scaler is not None:
            # Refuses what it cannot take, before anything is changed.
            before = engine.scaler.state()
            engine.scaler.load(self.loss_scaler)
            engine.scaler.load(before)

    def _check_all(self) -> None:
        """Read all that will be read, and keep nothing."""
        self.needed = 0
        for state, name, start, stop in self._wanted():
            self.needed += self.source.check(state, name, start, stop)
        self.nbytes_read = self.source.nbytes_read
        writer = self._writer()
        for name, buffer in self.buffers.items():
            file = model_file(self.manifest.buffers[name][writer])
            self.source.check_tensor(file, f"buffer/{name}")
            shape = self.source.reader(file).entries[f"buffer/{name}"].shape
            if shape != tuple(buffer.shape):
                raise InputError(
                    f"the buffer {name} has shape {tuple(buffer.shape)} in this model and {shape} in {self.path}; "
                    "build the model that was saved"
                )
        if not self.weights_only:
            self.random = self.source.all_of(model_file(writer), rng.PREFIX) if self.same_world else {}
            if self.scheduler is not None:
                self.schedule = plain.parse(self.source.text(SCHEDULER))

    def _wanted(self) -> Iterator[tuple[str, str, int, int]]:
        """Which elements of which state this rank will read."""
        for bucket in self.engine.buckets:
            for lap in overlaps(bucket.layout, *bucket.owned):
                yield self._parameter_state(lap.slot.name, bucket), lap.slot.name, lap.start, lap.stop
        for segment in self.engine.optimizer_step.segments:
            begin = segment.begin
            for name in self._states_of(segment):
                for lap in overlaps(segment.bucket.layout, begin, begin + segment.numel):
                    state = self._main_state(lap.slot.name) if name == "main" else name
                    yield state, lap.slot.name, lap.start, lap.stop

    def _states_of(self, segment: StoredSegment) -> list[str]:
        names = list(segment.format.states) if self.manifest.states and not self.weights_only else []
        return names + (["main"] if segment.format.main is not None else [])

    def _main_state(self, name: str) -> str:
        """What has a parameter with the most bits: its main parameters, where they are kept apart."""
        return "main" if self.manifest.main and self.manifest.parameters[name].trains else "model"

    def _parameter_state(self, name: str, bucket: Bucket) -> str:
        saved = self.manifest.parameters[name].dtype
        return "model" if saved == str(bucket.dtypes.shard).removeprefix("torch.") else self._main_state(name)

    def _writer(self) -> int:
        """Whose buffers this rank takes over: its own, or rank 0's where the number of ranks is another. Then it takes
        over nobody's random generators."""
        engine, replicate = self.engine, self.engine.replicate
        own = engine.comm.rank + (0 if replicate is None else replicate.rank * engine.comm.size)
        writers = engine.comm.size * (1 if replicate is None else replicate.size)
        self.same_world = (engine.comm.size, writers) == (self.manifest.ranks, self.manifest.writers)
        return own if self.same_world else 0

    # Changing the engine.

    def _apply(self) -> None:
        with torch.no_grad():
            write_parameters(self.engine, self._fill_parameter)
            self._states()
            self._rest()

    def _fill_parameter(self, bucket: Bucket, name: str, start: int, out: Tensor) -> None:
        self._fill(out, self._parameter_state(name, bucket), name, start)

    def _fill_main(self, bucket: Bucket, name: str, start: int, out: Tensor) -> None:
        self._fill(out, self._main_state(name), name, start)

    def _states(self) -> None:
        step = self.engine.optimizer_step
        number = {group: at for at, group in enumerate(group_keys(self.engine))}
        if self.manifest.states and not self.weights_only:
            for segment in step.segments:
                counters = self.groups[number[segment.group]]["counters"]
                own = self.engine.optimizer.param_groups[number[segment.group]]
                # Where torch's optimizers have their counters: a kernel that counts on the GPU reads them there.
                on_device = own.get("fused") or own.get("capturable")
                device = step.device if on_device else torch.device("cpu")
                step.go_on(segment, {name: _own(value, device) for name, value in counters.items()})
        for states in step.stored(writing=True):
            for state in states:
                if state.name == "main":
                    write_main(state, self._fill_main)
                elif state.name in self._states_of(state.segment):
                    self._state(*state)

    def _state(self, segment: StoredSegment, name: str, codec: Codec, raw: Tensor) -> None:
        begin = segment.begin
        codes, scales = split(codec, raw, segment.numel)
        saved = self.manifest.states.get(name)
        alike = saved is not None and Codec(_dtype(saved["dtype"]), saved["scaled"], saved["root"]) == codec
        values = codes
        if scales is not None and not alike:
            values = torch.zeros(segment.numel, dtype=torch.float32, device=raw.device)
        for lap in overlaps(segment.bucket.layout, begin, begin + segment.numel):
            if scales is not None and alike:
                self._copy_blocks(codes, scales, name, lap)
            else:
                self._fill(values[lap.first : lap.last], name, lap.slot.name, lap.start)
        if values is not codes:
            codec.encode(values, raw)

    def _copy_blocks(self, codes: Tensor, scales: Tensor, state: str, lap: Overlap) -> None:
        """Of a state that was saved in the same scaled blocks: nothing is decoded, so every bit stays."""
        for part in self.source.plan(lap.slot.name, lap.start, lap.stop):
            at = lap.first + part.start - lap.start
            end = at + part.stop - part.start
            codes[at:end] = self.source.codes(state, lap.slot.name, part).to(codes.device)
            scales[slice(*blocks_of(at, end))] = self.source.scales(state, lap.slot.name, part).to(scales.device)

    def _fill(self, out: Tensor, state: str, name: str, start: int) -> None:
        """Write the elements of a parameter's state from `start` on to `out`, in its dtype, some at a time."""
        for at in range(0, out.numel(), AT_ONCE):
            part = out[at : at + AT_ONCE]
            self.source.read_into(part, state, name, start + at)

    def _rest(self) -> None:
        engine = self.engine
        writer = self._writer()
        for name, buffer in self.buffers.items():
            buffer.copy_(
                self.source.tensor(model_file(self.manifest.buffers[name][writer]), f"buffer/{name}").view_as(buffer)
            )
        engine.new_values()
        if self.weights_only:
            return
        for group, saved in zip(engine.optimizer.param_groups, self.groups, strict=True):
            for name, value in saved["options"].items():
                if isinstance(group.get(name), torch.Tensor):
                    group[name].copy_(value)
                elif name not in HOW:
                    group[name] = value
        if engine.scaler is not None and self.loss_scaler is not None:
            engine.scaler.load(self.loss_scaler)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(self.schedule)
        if self.same_world:
            rng.restore(self.random, engine.comm.device)
        else:
            self.notes.append(
                f"random generators go on as this process has them, since {self.manifest.writers} ranks saved theirs"
            )


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def counts(counters: Mapping[str, Any]) -> bool:
    """Whether an optimizer that has such counters has made a step: some make them before the first."""
    return any(bool(torch.as_tensor(value).any()) for value in counters.values())


def _own(value: Any, device: torch.device) -> Any:
    """A counter of a segment's own: each step counts it up in place."""
    return value.to(device, copy=True) if isinstance(value, torch.Tensor) else value
