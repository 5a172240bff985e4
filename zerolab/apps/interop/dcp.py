"""Checkpoints of torch's own distributed checkpointing (torch.distributed.checkpoint, DCP), written and read.

    to_dcp("runs/a", "runs/a-dcp")          # for FSDP2, DDP or one process
    from_dcp("runs/b-dcp", "runs/b")        # from any of them, for any engine

A folder has `.metadata`, a pickle that says which values there are and where, and files with shards of them, in the
names of get_model_state_dict and get_optimizer_state_dict:

    model.NAME                    parameters, buffers, and the other names of tied ones
    optim.state.NAME.exp_avg      each state of the optimizer by parameter, its step counter, too
    optim.param_groups.0.params   the names of a group's parameters
    optim.param_groups.0.lr       a group's options
    optim.param_groups.NAME.lr    the same by parameter (flatten_optimizer_state_dict=True)

A DCP folder has no random generators, no loss scale and no scheduler: they begin anew.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import secrets
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, filesystem, metadata
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from zerolab import __version__
from zerolab.apps.interop.drafts import new_folder, refuse_used
from zerolab.checkpoint import plain
from zerolab.checkpoint.folder import Folder, draft_name
from zerolab.checkpoint.load import HOW
from zerolab.checkpoint.manifest import (
    NONPARAM,
    Manifest,
    SavedFile,
    SavedParameter,
    ShardRange,
    model_file,
    optimizer_file,
    tensor_name,
)
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.save import commit
from zerolab.checkpoint.shards import buffers_of, tied_names
from zerolab.checkpoint.tensors import FileWriter
from zerolab.errors import CheckpointError
from zerolab.files import write_whole
from zerolab.flat.layout import check_count
from zerolab.ranks.folders import reason

METADATA, FILE = ".metadata", "__0_0.distcp"
WEIGHTS_ALONE = 'convert the weights alone (optimizer="")'
Progress = Callable[[int, int], None]
"""Told how many entries were converted, and of how many."""
Keys = dict[str, dict[str, str]]
"""By parameter or group: keys, by the last part of their names."""
Values = dict[str, tuple[torch.dtype, tuple[int, ...], str | None]]
"""What goes into a file: dtype, shape and key; without a key, zeros."""


# To torch.


def to_dcp(checkpoint: Path | str, folder: Path | str, *, progress: Progress = lambda done, total: None) -> Path:
    """Write a checkpoint (its folder, or one in which it is the newest) as a DCP folder, which must be new or empty.

    model   each parameter in the dtype with the most bits: its main parameters, where they are kept apart;
            persistent buffers, as rank 0 had them
    optim   the optimizer's states, decoded, once it has stepped; options by group, and by parameter for
            StateDictOptions(flatten_optimizer_state_dict=True) of an optimizer with other groups

    Holds one tensor at a time.
    """
    folder = Path(folder).expanduser()
    values = _make_state_dict(CheckpointReader(checkpoint))
    entries: dict[str, Any] = {}
    places: dict[MetadataIndex, Any] = {}
    names = {".".join(map(str, path)): path for path in values}
    with new_folder(folder) as draft:
        with open(draft / FILE, "xb") as file:
            for key, path in names.items():
                start, offset = file.tell(), None
                value = values[path]() if callable(values[path]) else values[path]
                torch.save(value, file)
                entries[key] = BytesStorageMetadata()
                if isinstance(value, torch.Tensor):
                    offset = torch.Size([0] * value.dim())
                    whole = metadata.ChunkStorageMetadata(offset, value.size())
                    properties = metadata.TensorProperties(value.dtype)
                    entries[key] = TensorStorageMetadata(properties, value.size(), [whole])
                places[MetadataIndex(key, offset)] = filesystem._StorageInfo(FILE, start, file.tell() - start)
                progress(len(entries), len(names))
                del value  # before the next one is read
            file.flush()
            os.fsync(file.fileno())
        write_whole(draft / METADATA, pickle.dumps(Metadata(entries, names, places)))
    return folder


def _make_state_dict(source: CheckpointReader) -> dict[tuple[Any, ...], Any]:
    """By the path that a state dict has it at, a value, or what reads a tensor."""
    manifest, names = source.manifest, source.manifest.parameters
    found: dict[tuple[Any, ...], Any] = {
        ("model", name): partial(source.read_whole, source.state_of(name), name) for name in names
    }
    found |= {("model", name): partial(source.buffer, name) for name in manifest.buffers}
    found |= {("model", name): found["model", first] for name, first in manifest.tied.items()}
    for number, group in enumerate(source.json(NONPARAM)["groups"]):
        options = group["options"] | {name: own for name, own in HOW.items() if name in group["options"]}
        if "lr" in options:
            # A scheduler of torch's wants it, and has set it if there was one.
            options.setdefault("initial_lr", options["lr"])
        for option, value in {**options, "params": group["parameters"]}.items():
            found["optim", "param_groups", number, option] = value
        for name in group["parameters"]:
            # A parameter that is called 0 would be taken for a group.
            if not name.isdecimal():
                found |= {("optim", f"param_groups.{name}.{option}"): value for option, value in options.items()}
            if manifest.states and names[name].trains:
                states = group["counters"] | {of: partial(source.read_whole, of, name) for of in manifest.states}
                found |= {("optim", "state", name, state): value for state, value in states.items()}
    return found


# A folder of torch's.

_RECORDS = {
    *("Metadata", "MetadataIndex", "_StorageInfo"),
    *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
}


class _Inert:
    """What stands for all else that a pickle would make, a tensor's properties among it."""

    def __new__(cls, *_: Any, **__: Any) -> _Inert:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.dtype = state[0] if isinstance(state, tuple) else None


class _Unpickler(pickle.Unpickler):
    """A pickle is a program. Here it may make the records that torch describes tensors with, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module in (metadata.__name__, filesystem.__name__) and name in _RECORDS:
            # A class of its own, since a pickle may overwrite what a class has.
            return type(name, (super().find_class(module, name),), {})
        known = getattr(torch, name, None) if module == "torch" else None
        return known if isinstance(known, torch.dtype) or known is torch.Size else _Inert


def read_metadata(folder: Path) -> Metadata:
    """What a DCP folder says of its values."""
    path = folder / METADATA
    try:
        found = _Unpickler(io.BytesIO(path.read_bytes())).load()
        places = {MetadataIndex(at.fqn, at.offset): place for at, place in found.storage_data.items()}
        tensors = [of for of in found.state_dict_metadata.values() if not isinstance(of, BytesStorageMetadata)]
        known = all(isinstance(of, TensorStorageMetadata) and of.properties.dtype for of in tensors)
        if not known or any(Path(place.relative_path).name != place.relative_path for place in places.values()):
            raise ValueError("it names what is not here")
    except OSError as error:
        raise CheckpointError(f"{folder} has no {METADATA} that can be read ({reason(error)}); name another") from None
    except Exception:
        # Whatever bytes may lead to.
        raise CheckpointError(f"{path} is damaged; take another checkpoint") from None
    found.storage_data = places
    return found


class _Planner(DefaultLoadPlanner):
    """Torch's planner, but values that are no tensors are not unpickled freely either."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


class DcpFolder:
    """Entries of a DCP folder by key, read by torch; those of the `model` by name."""

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self.metadata = read_metadata(path)
        self.entries: dict[str, tuple[Any, tuple[int, ...]]] = {
            key: (of.properties.dtype, tuple(of.size)) if isinstance(of, TensorStorageMetadata) else (None, ())
            for key, of in self.metadata.state_dict_metadata.items()
        }
        names = [key.removeprefix(f"{model}.") for key in self.entries if key.startswith(f"{model}.")]
        if not names:
            tops = sorted({key.partition(".")[0] for key in self.entries})
            raise CheckpointError(
                f"{path} has no entry that begins with {model!r} (it has {', '.join(tops[:5])}); say what the model is "
                'called there: model="..."'
            )
        # DDP's module is called so.
        self.within = "module." if all(name.startswith("module.") for name in names) else ""
        self.model = {name.removeprefix(self.within): f"{model}.{name}" for name in names}
        self._reader = FileSystemReader(path)
        self._reader.set_up_storage_reader(self.metadata, True)

    def read(self, key: str) -> Any:
        """A tensor, whole, or another value."""
        dtype, shape = self.entries[key]
        values = {key: None if dtype is None else torch.empty(shape, dtype=dtype)}
        planner = _Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            planner.set_up_planner(values, self.metadata, True)
            plan = planner.create_local_plan()
            if dtype and sum(item.lengths.numel() for item in plan.items) != prod(shape):
                raise ValueError("elements are missing")
            self._reader.read_data(plan, planner).wait()
        except Exception as error:
            files = {place.relative_path for index, place in self.metadata.storage_data.items() if index.fqn == key}
            said = reason(error) if isinstance(error, OSError) else str(error).partition("\n")[0] or repr(error)
            raise CheckpointError(
                f"{self.path / min(files, default='no file')}, which has {key}, cannot be read ({said}); take another "
                "checkpoint"
            ) from None
        return planner.state_dict[key]

    def keys_by_name(self, start: str) -> Keys:
        found: Keys = {}
        for key in self.entries:
            if key.startswith(start):
                name, _, last = key.removeprefix(start).rpartition(".")
                found.setdefault(name.removeprefix(self.within), {})[last] = key
        return found


# From torch.


def from_dcp(
    folder: Path | str,
    checkpoints: Path | str,
    *,
    module: nn.Module | None = None,
    frozen: Iterable[str] = (),
    buffers: Iterable[str] = (),
    model: str = "model",
    optimizer: str = "optim",
    step: int | None = None,
    data: Any = None,
    progress: Progress = lambda done, total: None,
) -> Path:
    """Write what a DCP folder has as a checkpoint, the first in the folder `checkpoints`, which must be new or empty.

    folder       of torch.distributed.checkpoint.save({"model": ..., "optim": ...}) with what get_state_dict gives, flat
                 or not; without optimizer states, weights alone are written
    frozen       which entries that no optimizer has are parameters, frozen or other names of tied ones
    buffers      and which are buffers; names, or patterns such as "*.running_*"
    module       in the place of both: the model that was saved, which may be on the meta device
    model, optimizer    what the two parts are called in the state dict, such as "app.model"
    step, data   the checkpoint's, as `Checkpoints.save` has them; the step is else the optimizer's own count

    Holds one entry at a time, and a shard of it. States of a parameter that was never stepped are zero.
    """
    source = DcpFolder(Path(folder).expanduser(), model)
    target = Path(checkpoints).expanduser()
    refuse_used(target)
    frozen, buffers, tied = [*frozen], [*buffers], {}
    if module is not None:
        frozen += [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        buffers += buffers_of(module)
        tied = tied_names(module)
    states = source.keys_by_name(f"{optimizer}.state.")
    groups = _read_groups(source, f"{optimizer}.param_groups.")
    if states and not groups:
        groups = [{"parameters": list(states), "options": {}}]
    stepped = {*states, *(name for group in groups for name in group["parameters"])}
    parameters: dict[str, SavedParameter] = {}
    in_model, in_optimizer = Values(), Values()
    for name, key in source.model.items():
        dtype, shape = source.entries[key]
        numel = prod(shape)
        is_frozen = name not in stepped and _matches(name, frozen)
        if name in tied:
            continue
        if name not in stepped and not is_frozen and (_matches(name, buffers) or not dtype.is_floating_point):
            in_model[f"buffer/{name}"] = dtype, shape, key
            continue
        if stepped and name not in stepped and not is_frozen:
            raise CheckpointError(
                f"{name} has no optimizer states in {source.path}, so it may be a frozen parameter, another "
                "name of a tied one, or a buffer; say which: frozen=[...] or buffers=[...], or give the model "
                "(module=...)"
            )
        stretches = (ShardRange(0, numel, 0),) if numel else ()
        parameters[name] = SavedParameter(shape, _dtype_name(dtype), not is_frozen, "", stretches)
        if numel:
            in_model[tensor_name("model", name, 0, numel)] = dtype, (numel,), key
    long = _find_long_states(source, parameters, states)
    for name, parameter in parameters.items():
        for state, of_state in long.items() if parameter.numel and parameter.trains else ():
            own = states.get(name, {}).get(state)
            dtype = of_state if own is None else source.entries[own][0]
            in_optimizer[tensor_name(state, name, 0, parameter.numel)] = dtype, (parameter.numel,), own
    for group in groups:
        group["counters"] = _read_counters(source, group["parameters"], states, long)
    if step is None:
        step = max((int(group["counters"].get("step", 0)) for group in groups), default=0)
    check_count("step", step, least=0)
    # DCP does not say which optimizer it was, but these options do.
    decoupled = any(group["options"].get("decoupled_weight_decay") for group in groups)
    manifest = Manifest(
        save=secrets.token_hex(4),
        step=step,
        optimizer="AdamW" if decoupled else "an optimizer of torch's",
        states={state: {"dtype": _dtype_name(dtype), "scaled": False, "root": False} for state, dtype in long.items()},
        parameters=parameters,
        buffers={name.removeprefix("buffer/"): [0] for name in in_model if name.startswith("buffer/")},
        tied=tied,
        data=plain.encode(data, "data"),
        written_by={"zerolab": __version__, "torch": torch.__version__, "from": "torch.distributed.checkpoint"},
    )
    texts = {"groups": plain.encode(groups, "the optimizer's options"), "loss_scaler": None}
    about = {"save": manifest.save, "step": str(step), "rank": "0"}
    files = {model_file(0): in_model, optimizer_file(0): in_optimizer}
    saved: dict[str, SavedFile] = {}
    done = 0
    with new_folder(target) as new, closing(Folder(new)) as room:
        draft = new / draft_name(step, manifest.save)
        draft.mkdir()
        for file, values in files.items():
            shapes = {name: (dtype, shape) for name, (dtype, shape, _) in values.items()}
            with closing(FileWriter(draft / file, shapes, about)) as writer:
                for name, (dtype, shape, own) in values.items():
                    writer.append(name, torch.zeros(shape, dtype=dtype) if own is None else source.read(own))
                    done += 1
                    progress(done, sum(map(len, files.values())))
                writer.finish()
            saved[file] = SavedFile(writer.nbytes, writer.header_crc32)
        manifest = replace(manifest, files=saved)
        return target / commit(room, draft, manifest, {NONPARAM: json.dumps(texts, indent=1) + "\n"}).name


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _matches(name: str, patterns: list[str]) -> bool:
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


# The optimizer.


def _read_groups(source: DcpFolder, start: str) -> list[dict[str, Any]]:
    """Parameters and options: of groups by number, which have `params`, or else by parameter."""
    keys = source.keys_by_name(start)
    numbered = {name: own for name, own in keys.items() if "params" in own}
    groups: dict[str, dict[str, Any]] = {}
    for name, own in sorted((numbered or keys).items(), key=lambda item: (len(item[0]), item[0])):
        options = {option: source.read(key) for option, key in own.items() if option != "param_names"}
        names = options.pop("params", [name])
        if not all(isinstance(each, str) for each in names):
            raise CheckpointError(
                f"{source.path} has optimizer states by number, as optimizer.state_dict() has them; save what "
                f"get_optimizer_state_dict gives, which has names, or {WEIGHTS_ALONE}"
            )
        # Of groups by parameter, those with the same options are one.
        mark = name if numbered else str(plain.encode(options, "the optimizer's options"))
        group = groups.setdefault(mark, {"parameters": [], "options": options})
        group["parameters"] += [each.removeprefix(source.within) for each in names]
    return list(groups.values())


def _find_long_states(source: DcpFolder, parameters: dict[str, SavedParameter], states: Keys) -> dict[str, torch.dtype]:
    """The states that have an element for each of a parameter, and their dtypes."""
    found: dict[str, torch.dtype] = {}
    for state in dict.fromkeys(state for own in states.values() for state in own):
        of = {name: source.entries[own[state]] for name, own in states.items() if state in own}
        others = [name for name, (dtype, shape) in of.items() if not dtype or shape != parameters[name].shape]
        if state != "step" and not others:
            found[state] = next(iter(of.values()))[0]
        elif any(prod(shape) != 1 for _, shape in of.values()):
            raise CheckpointError(
                f"{state} of {[*others, *of][0]} in {source.path} has another shape than the parameter, so this "
                f"optimizer is not elementwise; {WEIGHTS_ALONE}"
            )
        for name in sorted(states.keys() - of) if state in found else ():
            raise CheckpointError(
                f"{source.path} has no {state} of {name}, but of other parameters; take another checkpoint"
            )
    return found


def _read_counters(source: DcpFolder, names: list[str], states: Keys, long: Collection[str]) -> dict[str, Any]:
    """What all parameters of a group have beside their long states."""
    found: dict[str, Any] = {}
    for name in names:
        for state in sorted(states.get(name, {}).keys() - set(long)):
            value = source.read(states[name][state])
            if found.setdefault(state, value) != value:
                raise CheckpointError(
                    f"{state} is {float(found[state]):g} of one parameter and {float(value):g} of {name} in "
                    f"{source.path}, though they share a group; {WEIGHTS_ALONE}"
                )
    return found
