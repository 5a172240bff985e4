"""A folder of torch's distributed checkpoint (DCP) as one of our checkpoints, as if one rank had written it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zerolab import __version__
from zerolab.apps.interop.dcp.folder import DcpFolder
from zerolab.apps.interop.dcp.write import Progress
from zerolab.apps.interop.drafts import refuse_used, writing
from zerolab.checkpoint import plain
from zerolab.checkpoint.folder import Folder, discard, draft_name
from zerolab.checkpoint.manifest import (
    MANIFEST,
    NONPARAM,
    Manifest,
    SavedFile,
    SavedParameter,
    ShardRange,
    crc32,
    model_file,
    optimizer_file,
    tensor_name,
)
from zerolab.checkpoint.shards import buffers_of, tied_names
from zerolab.checkpoint.tensors import FileWriter
from zerolab.errors import CheckpointError
from zerolab.files import write_whole
from zerolab.flat.layout import check_count

WEIGHTS_ALONE = 'convert the weights alone (optimizer="")'
Keys = dict[str, dict[str, str]]
"""By parameter or group: keys, by the last part of their names."""
Values = dict[str, tuple[torch.dtype, tuple[int, ...], str | None]]
"""What goes into a file: dtype, shape and key; without a key, zeros."""


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
    progress: Progress | None = None,
) -> Path:
    """Write what a DCP folder has as a checkpoint, the first in the folder `checkpoints`, which must be new or empty.

    folder       written by torch.distributed.checkpoint.save with a state dict {"model": ..., "optim": ...} of
                 get_state_dict, flat or not, by any number of ranks of FSDP2, DDP or one process. Without optimizer
                 states, weights alone are written
    frozen       which entries that no optimizer has are parameters, frozen or other names of tied ones
    buffers      and which are buffers; names, or patterns such as "*.running_*"
    module       in the place of both: the model that was saved, which may be on the meta device
    model, optimizer    what the two parts are called in the state dict, such as "app.model"
    step, data   the checkpoint's, as `Checkpoints.save` has them; the step is else the optimizer's own count, or 0

    One process, which holds one entry at a time, and a shard of it. Nothing of the folder is run. A parameter that was
    never stepped has no states in torch; here they are zero.

    Returns the checkpoint's folder. Raises a CheckpointError that names what is missing, damaged or of another kind.
    """
    source, target = DcpFolder(Path(folder).expanduser()), Path(checkpoints).expanduser()
    refuse_used(target, CheckpointError)
    frozen, buffers, tied = list(frozen), list(buffers), {}
    if module is not None:
        frozen += [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        buffers += buffers_of(module)
        tied = tied_names(module)
    states, groups = _keys_by_name(source, f"{optimizer}.state."), _read_groups(source, f"{optimizer}.param_groups.")
    if states and not groups:
        groups = [{"parameters": list(states), "options": {}}]
    stepped = {*states, *(name for group in groups for name in group["parameters"])}
    parameters, in_model, in_optimizer = {}, Values(), Values()
    for name, key in _keys_of_model(source, model).items():
        dtype, shape = source.dtype(key), source.shape(key)
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
        numel = prod(shape)
        stretches = (ShardRange(0, numel, 0),) if numel else ()
        parameters[name] = SavedParameter(shape, _word(dtype), not is_frozen, "", stretches)
        if numel:
            in_model[tensor_name("model", name, 0, numel)] = dtype, (numel,), key
    long = _long_states(source, parameters, states)
    for name, saved in parameters.items():
        for state, of_state in long.items() if saved.numel and saved.trains else ():
            own = states.get(name, {}).get(state)
            values = of_state if own is None else source.dtype(own), (saved.numel,), own
            in_optimizer[tensor_name(state, name, 0, saved.numel)] = values
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
        ranks=1,
        stage=0,
        replicas=1,
        precision=None,
        offload={"optimizer": "device", "parameters": "device"},
        optimizer="AdamW" if decoupled else "an optimizer of torch's",
        states={state: {"dtype": _word(dtype), "scaled": False, "root": False} for state, dtype in long.items()},
        main=False,
        parameters=parameters,
        buffers={name.removeprefix("buffer/"): [0] for name in in_model if name.startswith("buffer/")},
        tied=tied,
        data=plain.encode(data, "data"),
        files={},
        written_by={"zerolab": __version__, "torch": torch.__version__, "from": "torch.distributed.checkpoint"},
    )
    with closing(Folder(target)) as room:
        draft = target / draft_name(step, manifest.save)
        draft.mkdir()
        try:
            with writing(target):
                _write(draft, manifest, in_model, in_optimizer, groups, source, progress)
                return room.commit(draft, step, None)
        except BaseException:
            discard(draft)
            raise


def _write(
    draft: Path,
    manifest: Manifest,
    in_model: Values,
    in_optimizer: Values,
    groups: list[dict[str, Any]],
    source: DcpFolder,
    progress: Progress | None,
) -> None:
    """Write the files of a checkpoint, the manifest last."""
    tensors = [*in_model.values(), *in_optimizer.values()]
    total, done = sum(dtype.itemsize * prod(shape) for dtype, shape, _ in tensors), 0
    files, about = {}, {"save": manifest.save, "step": str(manifest.step), "rank": "0"}
    for file, values in ((model_file(0), in_model), (optimizer_file(0), in_optimizer)):
        shapes = {name: (dtype, shape) for name, (dtype, shape, _) in values.items()}
        with closing(FileWriter(draft / file, shapes, about)) as writer:
            for name, (dtype, shape, key) in values.items():
                tensor = torch.zeros(shape, dtype=dtype) if key is None else source.read(key)
                writer.append(name, tensor)
                done += tensor.nbytes
                if progress is not None:
                    progress(done, total)
            writer.finish()
        files[file] = SavedFile(writer.nbytes, writer.header_crc32)
    said = {"groups": plain.encode(groups, "the optimizer's options"), "loss_scaler": None}
    text = (json.dumps(said, indent=1) + "\n").encode()
    write_whole(draft / NONPARAM, text)
    files[NONPARAM] = SavedFile(len(text), crc32(text))
    write_whole(draft / MANIFEST, replace(manifest, files=files).to_json().encode())


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _keys_of_model(source: DcpFolder, model: str) -> dict[str, str]:
    keys = {key.removeprefix(f"{model}."): key for key in source.entries if key.startswith(f"{model}.")}
    if not keys:
        tops = sorted({key.partition(".")[0] for key in source.entries})
        raise CheckpointError(
            f"{source.path} has no entry that begins with {model!r} (it has {', '.join(tops[:5])}); say what "
            'the model is called there: model="..."'
        )
    # DDP's module is called so.
    within = "module." if all(name.startswith("module.") for name in keys) else ""
    return {name.removeprefix(within): key for name, key in keys.items()}


def _matches(name: str, patterns: list[str]) -> bool:
    return name in patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


# The optimizer.


def _keys_by_name(source: DcpFolder, start: str) -> Keys:
    found: Keys = {}
    for key in source.entries:
        if key.startswith(start):
            name, _, last = key.removeprefix(start).rpartition(".")
            found.setdefault(name.removeprefix("module."), {})[last] = key
    return found


def _read_groups(source: DcpFolder, start: str) -> list[dict[str, Any]]:
    """Parameters and options: of groups by number, which have `params`, or else by parameter. Both are there in what we
    write."""
    keys = _keys_by_name(source, start)
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
        group["parameters"] += [each.removeprefix("module.") for each in names]
    return list(groups.values())


def _long_states(source: DcpFolder, parameters: dict[str, SavedParameter], states: Keys) -> dict[str, torch.dtype]:
    """The states that have an element for each of a parameter, and their dtypes."""
    found: dict[str, torch.dtype] = {}
    for name, own in states.items():
        for state, key in own.items():
            if state != "step" and source.is_tensor(key) and source.shape(key) == parameters[name].shape:
                found.setdefault(state, source.dtype(key))
            elif state in found or prod(source.shape(key)) != 1:
                raise CheckpointError(
                    f"{state} of {name} in {source.path} has another shape than the parameter, so this "
                    f"optimizer is not elementwise and no engine can take its states; {WEIGHTS_ALONE}"
                )
    for state, name in ((state, name) for name, own in states.items() for state in found if state not in own):
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
                    f"{source.path}, though they share a group, which no engine can go on from; {WEIGHTS_ALONE}"
                )
    return found
