"""Loading: every rank reads what it needs of a checkpoint, whoever wrote it, and nothing else.

    1  all ranks    read the manifest and hold it to the engine: names, shapes, optimizer
    2  each rank    plans what it reads, and reads all of it once, so that damage shows while the engine is as it was
    3  each rank    reads it again, a piece at a time, to where it rests; at stages 1 and 2 the shards are then gathered

A rank of stage 1, 2 or 3 reads its own elements of everything; one of stage 0 needs all. Values that were saved in
another dtype or codec are cast or decoded on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zerolab.checkpoint import plain, rng
from zerolab.checkpoint.agreement import READING, all_gather_or_raise, writers_of
from zerolab.checkpoint.folder import resolve
from zerolab.checkpoint.manifest import NONPARAM, SCHEDULER, model_file
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.shards import blocks_of, buffers_of, check_complete, groups_of, states_of, tied_names
from zerolab.errors import InputError, StateError
from zerolab.precision.codec import Codec
from zerolab.zero import ZeroEngine
from zerolab.zero.bucket import Bucket
from zerolab.zero.full_parameters import gather_parameters, overlaps, write_main, write_parameters
from zerolab.zero.stored_step import StoredSegment
from zerolab.zero.tiers import changing

Tensor = torch.Tensor
Shapes = Mapping[str, tuple[int, ...]]
HOW = {"fused": None, "foreach": None, "capturable": False, "differentiable": False}
"""Options that say how torch's optimizer computes, as torch has them by default: this engine's own stay."""


@dataclass(frozen=True)
class Loaded:
    """What was loaded; `notes` say what could not be taken over, `nbytes_needed` counts what this rank needed."""

    folder: Path
    step: int
    data: Any
    notes: tuple[str, ...] = ()
    nbytes_needed: int = 0


class Load:
    """One load of this rank, into an engine."""

    def __init__(self, engine: ZeroEngine, scheduler: Any, weights_only: bool) -> None:
        self.engine, self.scheduler, self.weights_only = engine, scheduler, weights_only
        self.notes: list[str] = []

    def run(self, path: Path) -> Loaded:
        engine = self.engine
        engine.synchronize()
        self.path = Path(all_gather_or_raise(engine, lambda: self._find(path), READING)[0])
        all_gather_or_raise(engine, self._check, READING)
        with changing(engine, "a load"):
            all_gather_or_raise(engine, self._apply, READING)
            gather_parameters(engine)
        engine.broken = None
        return Loaded(self.path, self.manifest.step, plain.decode(self.manifest.data), tuple(self.notes), self.needed)

    # Before anything is changed.

    def _find(self, path: Path) -> str:
        engine = self.engine
        engine.check_between_steps("load", mends=True)
        if engine.broken is not None and self.weights_only:
            raise StateError(f"{engine.broken}; weights_only would leave the optimizer's states as they are")
        # Rank 0 says which one: `latest` may change while others look.
        return str(resolve(path)) if engine.comm.rank == 0 else ""

    def _check(self) -> None:
        self.source = CheckpointReader(self.path)
        self.manifest = self.source.manifest
        own, writers = writers_of(self.engine)
        self.same_world = (self.engine.comm.size, writers) == (self.manifest.ranks, self.manifest.writers)
        # Whose buffers this rank takes over. With another number of ranks it takes nobody's random generators.
        self.writer = own if self.same_world else 0
        self.states = {} if self.weights_only else self.manifest.states
        self._check_model()
        if not self.weights_only:
            self._check_optimizer()
        self.needed = sum(self.source.check(*wanted) for wanted in self._plan_reads())
        if not self.weights_only:
            file, same = model_file(self.writer), self.same_world
            names = [name for name in self.source.reader(file).entries if name.startswith(rng.PREFIX) and same]
            self.random = {name: self.source.tensor(file, name) for name in names}
            self.schedule = None if self.scheduler is None else self.source.json(SCHEDULER)

    def _check_model(self) -> None:
        saved, buffers = self.manifest.parameters, buffers_of(self.engine.model)
        slots = {slot.name: (slot, bucket) for bucket in self.engine.buckets for slot in bucket.layout.slots}
        ours = {name: tuple(slot.shape) for name, (slot, _) in slots.items()}
        self._compare("parameter", ours, {name: of.shape for name, of in saved.items()})
        theirs = {name: self.source.buffer(name, self.writer) for name in self.manifest.buffers}
        shapes = ({name: tuple(buffer.shape) for name, buffer in of.items()} for of in (buffers, theirs))
        self._compare("buffer", *shapes)
        self.buffers = [(buffer, theirs[name]) for name, buffer in buffers.items()]
        for name, (_, bucket) in slots.items():
            if bucket.trainable and not saved[name].trains and self.states:
                raise InputError(
                    f"{name} trains in this model and was frozen in {self.path}, which has no optimizer states of it; "
                    "freeze it, or load with weights_only=True"
                )

    def _compare(self, kind: str, ours: Shapes, theirs: Shapes) -> None:
        tied = tied_names(self.engine.model)
        for name in [*ours, *theirs]:
            here, there = (of.get(name, "none") for of in (ours, theirs))
            if here != there and not (name in tied and name not in ours):
                raise InputError(
                    f"the {kind} {name} has shape {here} in this model and {there} in {self.path}; build the model "
                    "that was saved"
                )

    def _check_optimizer(self) -> None:
        engine, manifest = self.engine, self.manifest
        check_complete(engine)
        said = self.source.json(NONPARAM)
        self.loss_scaler, saved_groups = said["loss_scaler"], said["groups"]
        names = sorted(states_of(engine)) or sorted(manifest.states)
        if manifest.states and sorted(manifest.states) != names:
            raise InputError(
                f"{self.path} has the states of {manifest.optimizer} ({', '.join(manifest.states)}) and this engine "
                f"has {type(engine.optimizer).__name__} ({', '.join(names) or 'none'}); build it with the optimizer "
                "that was saved, or load with weights_only=True"
            )
        step = engine.optimizer_step
        # Some make their counters before the first step.
        counts = [value for segment in step.segments for value in step.counters(segment).values()]
        begun = any(map(step.has_begun, step.segments)) or any(torch.as_tensor(value).any() for value in counts)
        if names and not manifest.states and (engine.broken is not None or begun):
            raise InputError(
                f"{self.path} was saved before the first step and this engine has made some; load it into a new engine"
            )
        number_of = {name: number for number, group in enumerate(saved_groups) for name in group["parameters"]}
        self.groups: list[Any] = []
        for group in groups_of(engine).values():
            theirs = {number_of[name]: name for name in group if name in number_of}
            if len(theirs) > 1:
                raise InputError(
                    f"{' and '.join(theirs.values())} share a group of the optimizer's here and were in "
                    f"{len(theirs)} when {self.path} was saved; give the groups as they were, or load with "
                    "weights_only=True"
                )
            self.groups.append(saved_groups[next(iter(theirs))] if theirs else {"options": {}, "counters": {}})
        if engine.scaler is None and self.loss_scaler is not None:
            self.notes.append("the checkpoint's loss scale is not used, since no state is fp16 now")
        elif engine.scaler is not None and self.loss_scaler is None:
            self.notes.append("the checkpoint has no loss scale, so the scaler begins anew")
        elif engine.scaler is not None:
            # Refuses what it cannot take, before anything is changed.
            copy(engine.scaler).load(self.loss_scaler)

    def _plan_reads(self) -> Iterator[tuple[str, str, int, int]]:
        """Which elements of which state this rank will read."""
        for bucket in self.engine.buckets:
            for lap in overlaps(bucket.layout, *bucket.owned):
                yield self.source.state_of(lap.slot.name, bucket.dtypes.shard), lap.slot.name, lap.start, lap.stop
        for segment in self.engine.optimizer_step.segments:
            begin = segment.begin
            main = ["main"] if segment.format.main is not None else []
            for name in [*(segment.format.states if self.states else []), *main]:
                for lap in overlaps(segment.bucket.layout, begin, begin + segment.numel):
                    state = self.source.state_of(lap.slot.name) if name == "main" else name
                    yield state, lap.slot.name, lap.start, lap.stop

    # Changing the engine.

    @torch.no_grad()
    def _apply(self) -> None:
        def fill_parameter(bucket: Bucket, name: str, start: int, out: Tensor) -> None:
            self.source.read_into(out, self.source.state_of(name, bucket.dtypes.shard), name, start)

        def fill_main(bucket: Bucket, name: str, start: int, out: Tensor) -> None:
            self.source.read_into(out, self.source.state_of(name), name, start)

        write_parameters(self.engine, fill_parameter)
        if not self.weights_only:
            self._set_counters()
        for states in self.engine.optimizer_step.stored(writing=True):
            for state in states:
                if state.name == "main":
                    write_main(state, fill_main)
                elif self.states:
                    self._fill_state(*state)
        for buffer, value in self.buffers:
            buffer.copy_(value)
        self.engine.new_values()
        if not self.weights_only:
            self._set_rest()

    def _set_counters(self) -> None:
        engine, step = self.engine, self.engine.optimizer_step
        number = {group: at for at, group in enumerate(groups_of(engine))}
        for segment in step.segments if self.states else []:
            own = engine.optimizer.param_groups[number[segment.group]]
            # A kernel that counts on the GPU reads them there. Each segment counts up its own, in place.
            device = step.device if own.get("fused") or own.get("capturable") else "cpu"
            counters = {
                name: value.to(device, copy=True) if isinstance(value, Tensor) else value
                for name, value in self.groups[number[segment.group]]["counters"].items()
            }
            step.go_on(segment, counters)

    def _fill_state(self, segment: StoredSegment, name: str, codec: Codec, raw: Tensor) -> None:
        codes, scales = codec.split(raw, segment.numel)
        saved = self.states[name]
        alike = Codec(getattr(torch, saved["dtype"]), saved["scaled"], saved["root"]) == codec
        decoded = scales is not None and not alike
        values = torch.zeros(segment.numel, dtype=torch.float32, device=raw.device) if decoded else codes
        for lap in overlaps(segment.bucket.layout, segment.begin, segment.begin + segment.numel):
            if scales is None or decoded:
                self.source.read_into(values[lap.first : lap.last], name, lap.slot.name, lap.start)
                continue
            # Of a state that was saved in the same scaled blocks nothing is decoded, so every bit stays.
            for part in self.source.plan(lap.slot.name, lap.start, lap.stop):
                at = lap.first + part.start - lap.start
                end = at + part.stop - part.start
                codes[at:end] = self.source.codes(name, lap.slot.name, part).to(codes.device)
                scales[slice(*blocks_of(at, end))] = self.source.scales(name, lap.slot.name, part).to(scales.device)
        if decoded:
            codec.encode(values, raw)

    def _set_rest(self) -> None:
        engine = self.engine
        for group, saved in zip(engine.optimizer.param_groups, self.groups, strict=True):
            for name, value in saved["options"].items():
                if isinstance(group.get(name), Tensor):
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
