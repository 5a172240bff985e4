"""`zerolab checkpoint`: what can be done with what a run saved. Each action is a row of `ACTIONS`: its help, its flags,
and what it does, which returns the exit status."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from zerolab.apps.cli import convert, ending
from zerolab.apps.cli.parser import Parser
from zerolab.apps.cli.tables import count, rendered
from zerolab.apps.interop.huggingface.whole import consolidate
from zerolab.checkpoint import CheckpointError, Manifest
from zerolab.checkpoint.manifest import MANIFEST, SCHEDULER, model_file
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.rng import PREFIX
from zerolab.checkpoint.tensors import CHECKSUMS
from zerolab.errors import InputError
from zerolab.models import Config
from zerolab.precision import PRECISIONS
from zerolab.precision.recipe import FLOATS, STATES
from zerolab.train.model import saved_shape
from zerolab.train.progress import Bar

DAMAGED = 1


class Action(NamedTuple):
    """A word after `zerolab checkpoint`."""

    text: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: list[str]) -> int:
    """Do what the first argument says."""
    parser = Parser(prog="zerolab checkpoint", description="Look into what a run saved.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="action", parser_class=Parser)
    for name, action in ACTIONS.items():
        action.add_flags(actions.add_parser(name, help=action.text, description=action.text.capitalize() + "."))
    given = parser.parse_args(arguments)
    return ACTIONS[given.action].run(given)


def add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a checkpoint, or a folder of some, of which the newest is taken")


# Show.


def show(given: argparse.Namespace) -> int:
    """Print what a checkpoint says of itself."""
    reader = CheckpointReader(given.folder)
    table = Table(title=str(reader.path), title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows(reader):
        table.add_row(name, value)
    ending.show(rendered(lambda console: console.print(table)))
    return 0


def rows(reader: CheckpointReader) -> Iterator[tuple[str, str]]:
    """Names and values of the table."""
    path, manifest = reader.path, reader.manifest
    numel = sum(saved.numel for saved in manifest.parameters.values())
    ranks = count(manifest.ranks, "rank")
    if manifest.replicas > 1:
        ranks += f", {manifest.replicas} replicas of each shard"
    yield "step", f"{manifest.step:,}"
    yield "written by", f"ZeRO-{manifest.stage}, {ranks}"
    yield "precision", precision_of(manifest)
    yield "rested in", ", ".join(f"{what}: {place}" for what, place in manifest.offload.items())
    yield "parameters", f"{numel:,} in {count(len(manifest.parameters), 'tensor')}"
    for kind, files, nbytes in bytes_by_kind(path, manifest):
        yield kind, f"{nbytes:,} bytes in {count(files, 'file')}"
    yield "bytes a parameter", f"{manifest.nbytes / max(numel, 1):.2f}"
    states = ", ".join(f"{name} {state['dtype']}" for name, state in manifest.states.items())
    if manifest.main:
        states = f"main parameters, {states}" if states else "main parameters"
    yield "optimizer", f"{manifest.optimizer}: {states or 'no states yet'}"
    yield "scheduler", "saved" if SCHEDULER in manifest.files else "none"
    yield "random generators", generators_of(reader)
    if isinstance(manifest.data, dict):
        yield "data", ", ".join(f"{name} {told(value)}" for name, value in manifest.data.items())


def told(value: Any) -> str:
    """A value of what a run says of its data; of one with parts the short ones."""
    if not isinstance(value, dict):
        return str(value)
    parts = {name: part for name, part in value.items() if len(str(part)) < 40}
    return f"({', '.join(f'{name} {part}' for name, part in parts.items())})"


def precision_of(manifest: Manifest) -> str:
    """The recipe's name, or its dtypes."""
    if manifest.precision is None:
        return "fp32"
    said = dict(manifest.precision)
    named = next((name for name, recipe in PRECISIONS.items() if vars(recipe) == said), None)
    dtypes = [f"{state} {said[state]}" for state in STATES if said.get(state, "fp32") != "fp32"]
    return named or ", ".join([*dtypes, *(word for word in ("sharded_main", "fp8") if said.get(word))])


def bytes_by_kind(path: Path, manifest: Manifest) -> Iterator[tuple[str, int, int]]:
    """Kind, files and bytes."""
    files, nbytes = Counter[str](), Counter[str]()
    sizes = {name: saved.nbytes for name, saved in manifest.files.items()}
    for name, size in {**sizes, MANIFEST: (path / MANIFEST).stat().st_size}.items():
        kind = "JSON" if name.endswith(".json") else f"{name.partition('_')[0]} shards"
        files[kind] += 1
        nbytes[kind] += size
    yield from ((kind, files[kind], nbytes[kind]) for kind in files)


def generators_of(reader: CheckpointReader) -> str:
    """Whose states were saved for each rank, as the first rank's file says."""
    try:
        file = reader.reader(model_file(0))
        names = [name for name in file.entries if name.startswith(PREFIX)]
    except CheckpointError as error:
        return f"unknown: {error}"
    return ", ".join(sorted(name.removeprefix(PREFIX) for name in names)) or "none"


# Verify.


def check(given: argparse.Namespace) -> int:
    """Read all of a checkpoint, and say of each damaged file what is wrong."""
    reader = CheckpointReader(given.folder)
    path, manifest = reader.path, reader.manifest
    with Bar(total=manifest.nbytes, desc="verify", unit="B", unit_scale=True, disable=None) as bar:

        def advance(nbytes: int) -> None:
            bar.update(nbytes)

        wrong = verify(reader, advance)
    if wrong:
        lines = [*wrong.values(), f"{path} is damaged: {reader.remedy}"]
    else:
        lines = [f"{path} is whole: {count(len(manifest.files) + 1, 'file')}, {manifest.nbytes:,} bytes of states"]
    ending.show("\n".join(lines) + "\n")
    return DAMAGED if wrong else 0


def verify(reader: CheckpointReader, advance: Callable[[int], None]) -> dict[str, str]:
    """Read all; returns what is wrong, by file. `advance` is called with how many more bytes were read."""
    wrong = {}
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
            wrong[name] = str(error).removesuffix(f"; {reader.remedy}")
    return wrong


# Consolidate.


def add_consolidate(parser: argparse.ArgumentParser) -> None:
    add_folder(parser)
    parser.add_argument("out", type=Path, help="a folder to write, new or empty")
    parser.add_argument(
        "--dtype",
        choices=list(FLOATS),
        help="of the weights; fp32 takes the main parameters (default: as they were saved)",
    )
    parser.add_argument(
        "--huggingface",
        action="store_true",
        help="names and config.json as transformers' from_pretrained reads them, of a model that zerolab train has "
        "trained",
    )


def gather(given: argparse.Namespace) -> int:
    """Write the parameters of a checkpoint whole."""
    reader = CheckpointReader(given.folder)
    path, manifest = reader.path, reader.manifest
    config = config_in(path, manifest) if given.huggingface else None
    with Bar(total=len(manifest.parameters), desc="consolidate", unit="tensor", disable=None) as bar:
        dtype = None if given.dtype is None else FLOATS[given.dtype]
        consolidate(path, given.out, dtype=dtype, config=config, progress=lambda name: bar.update())
    kind = "as transformers reads them" if config else "under the names of the model"
    ending.show(
        f"{count(len(manifest.parameters), 'tensor')} of step {manifest.step:,} written to {given.out}, {kind}\n"
    )
    return 0


def config_in(path: Path, manifest: Manifest) -> Config:
    """The model's shape, which `zerolab train` keeps beside the position in its data."""
    said = manifest.data if isinstance(manifest.data, dict) else {}
    shape = saved_shape(said)
    if shape is None:
        raise InputError(
            f"{path} was not saved by zerolab train, so its model's shape is unknown; leave --huggingface out, or give "
            "the config to zerolab.apps.interop.huggingface.whole.consolidate"
        )
    return shape


ACTIONS = {
    "show": Action("say what a checkpoint holds", add_folder, show),
    "verify": Action("read all of a checkpoint and name each damaged file", add_folder, check),
    "consolidate": Action("write the parameters of a checkpoint whole, as safetensors", add_consolidate, gather),
    "convert": Action("write torch's distributed checkpoint from one, or back", convert.add_flags, convert.run),
}
