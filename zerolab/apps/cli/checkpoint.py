"""`zerolab checkpoint`: what can be done with what a run saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import Flags
from zerolab.apps.cli.parser import read_word
from zerolab.apps.cli.tables import count, make_table, render
from zerolab.checkpoint.folder import remedy_for, resolve
from zerolab.checkpoint.manifest import (
    MANIFEST,
    RNG,
    SCHEDULER,
    Manifest,
    model_file,
    read_header,
    read_manifest,
    reading,
)
from zerolab.errors import CheckpointError, InputError
from zerolab.precision import Precision
from zerolab.run.spec import Float, flag
from zerolab.train.model import saved_shape
from zerolab.train.progress import Bar

if TYPE_CHECKING:
    from zerolab.checkpoint.reader import CheckpointReader

OF_COMMAND = {
    "frozen=[...]": "--frozen NAME",
    "buffers=[...]": "--buffers NAME",
    'model="..."': "--model NAME",
    'optimizer=""': "--weights-only",
    ", or give the model (module=...)": "",
    "give the model (module=...), or save": "save",
}
"""What an error of the library says, and what the command has instead."""


class OfCheckpoint(Flags):
    folder: Annotated[Path, "FOLDER"] = flag("a checkpoint, or a folder of some", ...)


class ShowCheckpoint(OfCheckpoint):
    """Say what a checkpoint holds."""

    def run(self) -> int:
        path = resolve(self.folder.expanduser())
        remedy = remedy_for(path)
        manifest, file = read_manifest(path, remedy), path / model_file(0)
        with reading(file, remedy), open(file, "rb") as opened:
            names = json.loads(read_header(opened.fileno(), file, remedy, manifest)[8:])
        lines = [*describe(path, manifest, names)]
        ending.print_output(render([make_table(str(path), "|", lines, show_header=False)]))
        return 0


def describe(path: Path, manifest: Manifest, saved_by_first: Iterable[str]) -> Iterator[tuple[str, str]]:
    """A line for each fact; `saved_by_first` are the tensors in the first rank's file."""
    numel = sum(saved.numel for saved in manifest.parameters.values())
    yield "step", f"{manifest.step:,}"
    yield "written by", f"ZeRO-{manifest.stage}, {count(manifest.ranks, 'rank')}"
    yield "replicas of a shard", str(manifest.replicas)
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
    states = ["main parameters"] if manifest.main else []
    states += [f"{name} {state['dtype']}" for name, state in manifest.states.items()]
    yield "optimizer", f"{manifest.optimizer}: {', '.join(states) or 'no states yet'}"
    yield "scheduler", "saved" if SCHEDULER in manifest.files else "none"
    names = sorted(name.removeprefix(RNG) for name in saved_by_first if name.startswith(RNG))
    yield "random generators", ", ".join(names) or "none"
    if isinstance(manifest.data, dict):
        yield "data", ", ".join(f"{name} {shorten(value)}" for name, value in manifest.data.items())


def shorten(value: Any) -> str:
    """A value, or of one with parts the short ones."""
    if not isinstance(value, dict):
        return str(value)
    parts = [f"{name} {part}" for name, part in value.items() if len(str(part)) < 40]
    return f"({', '.join(parts)})"


class VerifyCheckpoint(OfCheckpoint):
    """Read all of a checkpoint and name each damaged file."""

    def run(self) -> int:
        path = resolve(self.folder.expanduser())
        from zerolab.checkpoint.reader import CheckpointReader

        reader = CheckpointReader(path)
        manifest = reader.manifest
        with Bar(total=manifest.nbytes, desc="verify", unit="B", unit_scale=True, disable=None) as bar:
            lines = list(find_damaged(reader, bar.update))
        files = count(len(manifest.files) + 1, "file")
        whole = f"{path} is whole: {files}, {manifest.nbytes:,} bytes of states"
        lines.append(f"{path} is damaged: {reader.remedy}" if lines else whole)
        ending.print_output("\n".join(lines) + "\n")
        return int(len(lines) > 1)


def find_damaged(reader: CheckpointReader, advance: Callable[[int], Any]) -> Iterator[str]:
    """Read all; yields what is wrong. `advance` hears how many more bytes were read."""
    from zerolab.checkpoint.tensors import CHECKSUMS

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


class ConsolidateCheckpoint(OfCheckpoint):
    """Write the parameters of a checkpoint whole, as safetensors."""

    out: Annotated[Path, "OUT"] = flag("a folder to write, new or empty", ...)
    dtype: Float | None = flag("of the weights (default: as they were saved)")
    huggingface: bool = flag("names and config.json as transformers reads them", False)

    def run(self) -> int:
        path = resolve(self.folder.expanduser())
        manifest = read_manifest(path, remedy_for(path))
        config = None
        if self.huggingface:
            # `zerolab train` keeps the shape beside the position in its data.
            config = saved_shape(manifest.data if isinstance(manifest.data, dict) else {})
            if config is None:
                why = "was not saved by zerolab train, so its shape is unknown"
                raise InputError(f"{path} {why}; leave --huggingface out")
        from zerolab.apps.interop.huggingface.whole import consolidate
        from zerolab.precision.codec import MOMENT_DTYPES

        tensors = len(manifest.parameters)
        with Bar(total=tensors, desc="consolidate", unit="tensor", disable=None) as bar:
            dtype = None if self.dtype is None else MOMENT_DTYPES[self.dtype]
            consolidate(path, self.out, dtype=dtype, config=config, progress=lambda name: bar.update())
        kind = "as transformers reads them" if config else "under the names of the model"
        written = f"{count(tensors, 'tensor')} of step {manifest.step:,} written to {self.out}"
        ending.print_output(f"{written}, {kind}\n")
        return 0


class ConvertCheckpoint(Flags):
    """Write torch's distributed checkpoint (DCP) from one, or back."""

    source: Annotated[Path, "SOURCE"] = flag("a checkpoint, or torch's folder", ...)
    target: Annotated[Path, "TARGET"] = flag("a folder that is new or empty", ...)
    to: Literal["dcp", "zerolab"] = flag("what to write", ...)
    frozen: tuple[str, ...] = flag("a frozen parameter, or some, as 'norm.*'", ())
    buffers: tuple[str, ...] = flag("a buffer, or some, likewise", ())
    model: str = flag("what the model is called there", "model")
    optimizer: str = flag("what the optimizer is called there", "optim")
    weights_only: bool = flag("leave the optimizer's states out", False)

    def run(self) -> int:
        from zerolab.apps.interop.dcp import from_dcp, to_dcp

        with Bar(desc="convert", unit="entry", disable=None) as bar:

            def progress(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            try:
                if self.to == "dcp":
                    path = to_dcp(self.source, self.target, progress=progress)
                else:
                    options: Any = self.model_dump(exclude={"source", "target", "to"})
                    if options.pop("weights_only"):
                        options["optimizer"] = ""
                    path = from_dcp(self.source, self.target, progress=progress, **options)
            except CheckpointError as error:
                message = str(error)
                for ours, theirs in OF_COMMAND.items():
                    message = message.replace(ours, theirs)
                raise type(error)(message) from None
        ending.print_output(f"{path} is written\n")
        return 0


ACTIONS: dict[str, Any] = {
    "show": ShowCheckpoint,
    "verify": VerifyCheckpoint,
    "consolidate": ConsolidateCheckpoint,
    "convert": ConvertCheckpoint,
}


def main(arguments: list[str]) -> int:
    texts = {name: str(action.__doc__) for name, action in ACTIONS.items()}
    name = read_word("zerolab checkpoint", "Look into what a run saved.", texts, arguments)
    return int(ACTIONS[name].read(f"zerolab checkpoint {name}", arguments[1:]).run())
