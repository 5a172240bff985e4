"""One of our checkpoints as a folder of torch's distributed checkpoint (DCP).

Torch is given a state dict of tensors without memory, and a planner that reads each tensor from the checkpoint when
torch is about to write it. Torch's writer holds all that goes into one file until that file is written, so files are
kept small.
"""

from __future__ import annotations

import io
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as torch_checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import NONPARAM, model_file, optimizer_file, read_manifest, tensor_name
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.errors import CheckpointError
from zerolab.ranks.folders import reason

Tensor = torch.Tensor
Progress = Callable[[int, int], None]
"""Told how many bytes of tensors were converted, and of how many."""
MOST_IN_FILE = 1 << 27
"""Bytes of tensors in one file, unless one tensor has more."""
AT_ONCE = 1 << 22
"""Elements that are decoded at a time."""
HOW = {"fused": None, "foreach": None, "capturable": False, "differentiable": False}
"""Options that say how torch's optimizer computes, as torch has them by default: who loads chooses again."""


def to_dcp(checkpoint: Path | str, folder: Path | str, *, progress: Progress | None = None) -> Path:
    """Write a checkpoint (its folder, or one in which it is the newest) as a DCP folder, which must be new or empty.

    In one process without a process group. Holds the tensors of one file at a time, 128 MiB or the largest tensor. The
    folder appears when it is whole.

    model   each parameter in the dtype with the most bits: its main parameters, where they are kept apart. That is what
            FSDP2 shards under a MixedPrecisionPolicy; where it shards 16-bit parameters, loading rounds them.
            Persistent buffers, as rank 0 had them.
    optim   the optimizer's states, those that rest in scaled blocks as fp32; options of its groups. A checkpoint from
            before the first step has no states.

    Groups are numbered as the engine's optimizer had them. Who has another number of groups loads with
    StateDictOptions(flatten_optimizer_state_dict=True): options are there by parameter, too.

    Returns the folder. Raises a CheckpointError for a checkpoint that is damaged and a folder that cannot be written.
    """
    path, folder = resolve(Path(checkpoint).expanduser()), Path(folder).expanduser()
    remedy = remedy_for(path)
    manifest = read_manifest(path, remedy)
    refuse_used(folder)
    draft = folder.with_name(f".writing-{folder.name}-{secrets.token_hex(4)}")
    source = CheckpointReader(path, manifest, remedy)
    with _Draft(draft, folder):
        state_dict, readers = _Contents(source).all()
        with warnings.catch_warnings():
            # That there is no process group is meant.
            warnings.simplefilter("ignore")
            torch_checkpoint.save(
                state_dict,
                storage_writer=_SmallFiles(draft, per_thread_copy_ahead=0),
                planner=_Planner(readers, progress),
                no_dist=True,
            )
    return folder


def refuse_used(folder: Path) -> None:
    """Raise a CheckpointError for a folder in which something is."""
    try:
        used = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to ({reason(error)}); name a new folder") from None
    if used:
        raise CheckpointError(f"{folder} is not empty (it has {used[0]}); name a new folder")


class _Draft:
    """While a draft is written: it becomes the folder at the end, or goes away; errors are worded as ours."""

    def __init__(self, draft: Path, folder: Path) -> None:
        self.draft, self.folder = draft, folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if error is None:
                if self.folder.exists():
                    self.folder.rmdir()
                self.draft.rename(self.folder)
        except OSError as late:
            error = late
        if error is None:
            return
        shutil.rmtree(self.draft, ignore_errors=True)
        # Torch wraps what went wrong with each rank.
        if isinstance(error, CheckpointException):
            error = next(failure[0] for failure in error.failures.values())
        if isinstance(error, OSError):
            raise CheckpointError(
                f"{self.folder} could not be written ({reason(error)}); see to the disk, or name another folder"
            ) from None
        raise error


class _Contents:
    """What a checkpoint has, in torch's names: tensors without memory, and how each is read."""

    def __init__(self, source: CheckpointReader) -> None:
        self.source, self.manifest = source, source.manifest
        self.readers: dict[str, Callable[[], Tensor]] = {}

    def all(self) -> tuple[dict[str, Any], dict[str, Callable[[], Tensor]]]:
        """The state dict, and by flat name what reads its tensors."""
        return {"model": self._model(), "optim": self._optimizer()}, self.readers

    def _model(self) -> dict[str, Tensor]:
        manifest, found = self.manifest, {}
        for name, saved in manifest.parameters.items():
            state = "main" if manifest.main and saved.trains else "model"
            found[name] = self._state(f"model.{name}", state, name)
        for name, writers in manifest.buffers.items():
            found[name] = self._buffer(name, model_file(writers[0]))
        for name, first in manifest.tied.items():
            found[name] = found[first]
            self.readers[f"model.{name}"] = self.readers[f"model.{first}"]
        return found

    def _optimizer(self) -> dict[str, Any]:
        manifest, state = self.manifest, {}
        numbered: list[dict[str, Any]] = []
        by_parameter: dict[str, Any] = {}
        for group in self.source.json(NONPARAM)["groups"]:
            options = {**group["options"], **{name: own for name, own in HOW.items() if name in group["options"]}}
            if "lr" in options:
                # A scheduler of torch's wants it, and has set it if there was one.
                options.setdefault("initial_lr", options["lr"])
            numbered.append({**options, "params": group["parameters"]})
            for name in group["parameters"]:
                # A parameter that is called 0 would be taken for a group.
                if not name.isdecimal():
                    by_parameter |= {f"param_groups.{name}.{option}": value for option, value in options.items()}
                if manifest.states and manifest.parameters[name].trains:
                    long = {each: self._state(f"optim.state.{name}.{each}", each, name) for each in manifest.states}
                    state[name] = {**group["counters"], **long}
        return {"state": state, "param_groups": numbered, **by_parameter}

    def _state(self, key: str, state: str, name: str) -> Tensor:
        saved, source = self.manifest.parameters[name], self.source
        dtype, codec = torch.float32, self.manifest.states.get(state, {})
        if saved.stretches and not codec.get("scaled"):
            first = saved.stretches[0]
            file = (model_file if state == "model" else optimizer_file)(first.writer)
            entry = tensor_name(state, name, first.start, first.stop)
            dtype = source.reader(file).entries[entry].dtype

        def read() -> Tensor:
            out = torch.empty(saved.numel, dtype=dtype)
            for at in range(0, saved.numel, AT_ONCE):
                source.read_into(out[at : at + AT_ONCE], state, name, at)
            return out.view(saved.shape)

        self.readers[key] = read
        return torch.empty(saved.shape, dtype=dtype, device="meta")

    def _buffer(self, name: str, file: str) -> Tensor:
        entry = self.source.reader(file).entries[f"buffer/{name}"]
        self.readers[f"model.{name}"] = lambda: self.source.tensor(file, f"buffer/{name}").view(entry.shape)
        return torch.empty(entry.shape, dtype=entry.dtype, device="meta")


class _Planner(DefaultSavePlanner):
    """Torch's planner, but tensors are read when they are written."""

    def __init__(self, readers: dict[str, Callable[[], Tensor]], progress: Progress | None) -> None:
        super().__init__()
        self.readers, self.progress = readers, progress
        self.done = self.total = 0

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        self.total = sum(map(_nbytes, new_plan.items))
        return super().finish_plan(new_plan)

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        data = super().resolve_data(write_item)
        self.done += _nbytes(write_item)
        if self.progress is not None:
            self.progress(self.done, self.total)
        return data

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.readers[index.fqn]() if index.fqn in self.readers else super().lookup_object(index)


class _SmallFiles(torch_checkpoint.FileSystemWriter):
    """Torch's writer, but with files of bounded size, named as those of many ranks are."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        for number, items in enumerate(_in_files(plan.items)):
            prefix = replace(plan.storage_data, prefix=f"__{number}_")
            results += super().write_data(replace(plan, items=items, storage_data=prefix), planner).wait()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done


def _in_files(items: list[WriteItem]) -> Iterator[list[WriteItem]]:
    """What goes into each file."""
    file: list[WriteItem] = []
    nbytes = 0
    for item in items:
        if file and nbytes + _nbytes(item) > MOST_IN_FILE:
            yield file
            file, nbytes = [], 0
        file.append(item)
        nbytes += _nbytes(item)
    if file:
        yield file


def _nbytes(item: WriteItem) -> int:
    data = item.tensor_data
    return 0 if data is None else data.size.numel() * data.properties.dtype.itemsize
