"""`zerolab checkpoint`: what can be done with what a run saved. Each action is a row of `ACTIONS`: what it takes, and
what it does, which returns the exit status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import Flags
from zerolab.apps.cli.parser import read_word
from zerolab.apps.cli.tables import count, make_table, render
from zerolab.apps.interop.huggingface.whole import consolidate
from zerolab.checkpoint import CheckpointError, Manifest, read_manifest
from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import MANIFEST, SCHEDULER, model_file
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.rng import PREFIX
from zerolab.checkpoint.tensors import CHECKSUMS
from zerolab.errors import InputError
from zerolab.models import Config
from zerolab.precision import Precision
from zerolab.precision.recipe import FLOATS
from zerolab.run.spec import Float, setting
from zerolab.train.model import saved_shape
from zerolab.train.progress import Bar

OK, DAMAGED = 0, 1
OF_COMMAND = {
    "frozen=[...]": "--frozen NAME",
    "buffers=[...]": "--buffers NAME",
    'model="..."': "--model NAME",
    'optimizer=""': "--weights-only",
    ", or give the model (module=...)": "",
    "give the model (module=...), or save": "save",
}
"""What an error of the library says, and what the command has instead."""


class Show(Flags):
    """Say what a checkpoint holds."""

    folder: Annotated[Path, "FOLDER"] = setting(..., "a checkpoint, or a folder of some, of which the newest is taken")


class Verify(Show):
    """Read all of a checkpoint and name each damaged file."""


class Consolidate(Show):
    """Write the parameters of a checkpoint whole, as safetensors."""

    out: Annotated[Path, "OUT"] = setting(..., "a folder to write, new or empty")
    dtype: Float | None = setting(None, "of the weights; fp32 takes the main parameters; none: as they were saved")
    huggingface: bool = setting(
        False, "names and config.json as transformers reads them, of a model that zerolab train has trained"
    )


class Convert(Flags):
    """Write torch's distributed checkpoint (DCP) from one, or back. Nothing in a DCP folder is run."""

    source: Annotated[Path, "SOURCE"] = setting(..., "a checkpoint or a folder of some, or a folder of torch's")
    target: Annotated[Path, "TARGET"] = setting(..., "a folder that is new or empty")
    to: Literal["dcp", "zerolab"] = setting(..., "torch's distributed checkpoint, or ours, for which the others are")
    frozen: tuple[str, ...] = setting((), "a frozen parameter, or another name of a tied one; 'norm.*' names several")
    buffers: tuple[str, ...] = setting((), "a buffer, or several; both flags may be given again")
    model: str = setting("model", "what the model is called there")
    optimizer: str = setting("optim", "what the optimizer is called there")
    weights_only: bool = setting(False, "leave the optimizer's states out")


def main(arguments: list[str]) -> int:
    """Do what the first argument says."""
    texts = {name: str(kind.__doc__).partition("\n")[0] for name, (kind, _) in ACTIONS.items()}
    name = read_word("zerolab checkpoint", "Look into what a run saved.", texts, arguments)
    kind, run = ACTIONS[name]
    return run(kind.read(f"zerolab checkpoint {name}", arguments[1:]))


def open_checkpoint(folder: Path) -> tuple[Path, Manifest, CheckpointReader]:
    path = resolve(folder.expanduser())
    manifest = read_manifest(path, remedy_for(path))
    return path, manifest, CheckpointReader(path, manifest, remedy_for(path))


def show(given: Show) -> int:
    path, manifest, reader = open_checkpoint(given.folder)
    rows = [*describe(path, manifest, reader)]
    ending.print_output(render([make_table(str(path), "|", rows, show_header=False)]))
    return OK


def describe(path: Path, manifest: Manifest, reader: CheckpointReader) -> Iterator[tuple[str, str]]:
    """Names and values of the table."""
    numel = sum(saved.numel for saved in manifest.parameters.values())
    ranks = count(manifest.ranks, "rank")
    if manifest.replicas > 1:
        ranks += f", {manifest.replicas} replicas of each shard"
    yield "step", f"{manifest.step:,}"
    yield "written by", f"ZeRO-{manifest.stage}, {ranks}"
    yield "precision", Precision(**manifest.precision or {}).name
    yield "rested in", ", ".join(f"{what}: {place}" for what, place in manifest.offload.items())
    yield "parameters", f"{numel:,} in {count(len(manifest.parameters), 'tensor')}"
    by_kind: dict[str, list[int]] = {}
    sizes = {name: saved.nbytes for name, saved in manifest.files.items()}
    for name, size in {**sizes, MANIFEST: (path / MANIFEST).stat().st_size}.items():
        kind = "JSON" if name.endswith(".json") else f"{name.partition('_')[0]} shards"
        by_kind.setdefault(kind, []).append(size)
    for kind, all_of in by_kind.items():
        yield kind, f"{sum(all_of):,} bytes in {count(len(all_of), 'file')}"
    yield "bytes a parameter", f"{manifest.nbytes / max(numel, 1):.2f}"
    states = [*(["main parameters"] if manifest.main else [])]
    states += [f"{name} {state['dtype']}" for name, state in manifest.states.items()]
    yield "optimizer", f"{manifest.optimizer}: {', '.join(states) or 'no states yet'}"
    yield "scheduler", "saved" if SCHEDULER in manifest.files else "none"
    names = [name.removeprefix(PREFIX) for name in reader.reader(model_file(0)).entries if name.startswith(PREFIX)]
    yield "random generators", ", ".join(sorted(names)) or "none"
    if isinstance(manifest.data, dict):
        yield "data", ", ".join(f"{name} {shorten(value)}" for name, value in manifest.data.items())


def shorten(value: Any) -> str:
    """A value of what a run says of its data; of one with parts the short ones."""
    if not isinstance(value, dict):
        return str(value)
    return f"({', '.join(f'{name} {part}' for name, part in value.items() if len(str(part)) < 40)})"


def verify(given: Verify) -> int:
    """Read all of a checkpoint, and say of each damaged file what is wrong."""
    path, manifest, reader = open_checkpoint(given.folder)
    with Bar(total=manifest.nbytes, desc="verify", unit="B", unit_scale=True, disable=None) as bar:
        lines = [*find_damaged(reader, bar.update)]
    if lines:
        ending.print_output("\n".join([*lines, f"{path} is damaged: {remedy_for(path)}\n"]))
        return DAMAGED
    files = count(len(manifest.files) + 1, "file")
    ending.print_output(f"{path} is whole: {files}, {manifest.nbytes:,} bytes of states\n")
    return OK


def find_damaged(reader: CheckpointReader, advance: Callable[[int], Any]) -> Iterator[str]:
    """Read all; yields what is wrong, of each file once. `advance` is called with how many more bytes were read."""
    for name, saved in reader.manifest.files.items():
        try:
            if name.endswith(".json"):
                reader.json(name)
                advance(saved.nbytes)
                continue
            file = reader.reader(name)
            for tensor in file.entries.keys() - {CHECKSUMS}:
                file.check(tensor)
                advance(file.entries[tensor].nbytes)
        except CheckpointError as error:
            yield str(error).removesuffix(f"; {reader.remedy}")


def gather(given: Consolidate) -> int:
    """Write the parameters of a checkpoint whole."""
    path, manifest, _ = open_checkpoint(given.folder)
    config = read_shape(path, manifest) if given.huggingface else None
    with Bar(total=len(manifest.parameters), desc="consolidate", unit="tensor", disable=None) as bar:
        dtype = None if given.dtype is None else FLOATS[given.dtype]
        consolidate(path, given.out, dtype=dtype, config=config, progress=lambda name: bar.update())
    kind = "as transformers reads them" if config else "under the names of the model"
    tensors = count(len(manifest.parameters), "tensor")
    ending.print_output(f"{tensors} of step {manifest.step:,} written to {given.out}, {kind}\n")
    return OK


def read_shape(path: Path, manifest: Manifest) -> Config:
    """The model's shape, which `zerolab train` keeps beside the position in its data."""
    shape = saved_shape(manifest.data if isinstance(manifest.data, dict) else {})
    if shape is None:
        raise InputError(
            f"{path} was not saved by zerolab train, so its model's shape is unknown; leave --huggingface out, or give "
            "the config to zerolab.apps.interop.huggingface.whole.consolidate"
        )
    return shape


def convert(given: Convert) -> int:
    """Write the other kind of folder, and say where."""
    # It takes a second to import.
    from zerolab.apps.interop.dcp import from_dcp, to_dcp

    with Bar(desc="convert", unit="B", unit_scale=True, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        if given.to == "dcp":
            path = to_dcp(given.source, given.target, progress=progress)
        else:
            options: Any = {"frozen": given.frozen, "buffers": given.buffers, "model": given.model}
            optimizer = "" if given.weights_only else given.optimizer
            try:
                path = from_dcp(given.source, given.target, optimizer=optimizer, progress=progress, **options)
            except CheckpointError as error:
                message = str(error)
                for ours, theirs in OF_COMMAND.items():
                    message = message.replace(ours, theirs)
                raise CheckpointError(message) from None
    ending.print_output(f"{path} is written\n")
    return OK


ACTIONS: dict[str, tuple[type[Flags], Callable[[Any], int]]] = {
    "show": (Show, show),
    "verify": (Verify, verify),
    "consolidate": (Consolidate, gather),
    "convert": (Convert, convert),
}
