"""`zerolab train`: flags, and the closing table."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from pydantic.fields import FieldInfo

from zerolab.cli.tables import print_report
from zerolab.errors import InputError
from zerolab.train import TrainConfig, make_config, train, write_json
from zerolab.train.deepspeed import read_deepspeed
from zerolab.train.states import OffloadSettings, PrecisionSettings


def main(arguments: list[str]) -> int:
    """Train, print the table, write the profile."""
    given = vars(make_parser().parse_args(arguments))
    path = given.pop("deepspeed_config")
    settings = {name: value for name, value in given.items() if value is not None}
    if "WORLD_SIZE" in os.environ and "ranks" not in settings:
        settings["ranks"] = int(os.environ["WORLD_SIZE"])
    if path is not None:
        settings = with_deepspeed(settings, Path(path))
    config = make_config(**settings)
    report = train(config)
    if os.environ.get("RANK", "0") == "0":
        print_report(report)
        if config.profile_json is not None:
            write_json(report, config.profile_json)
            print(f"profile written to {config.profile_json}")
    return 0


def with_deepspeed(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Flags beside a DeepSpeed configuration; one that says something else than the file is refused."""
    ranks = settings.get("ranks", TrainConfig.model_fields["ranks"].default)
    read = read_deepspeed(path, check_ranks(ranks))
    for name, value in settings.items():
        if name in read and str(read[name]) != str(value):
            raise InputError(f"{name} is {value} as a flag and {read[name]} in {path}; leave one of the two out")
    return {**read, **settings}


def check_ranks(ranks: int | str) -> int:
    if not str(ranks).isdecimal() or int(ranks) < 1:
        raise InputError(f"ranks is {ranks!r}; it should be a whole number of at least 1")
    return int(ranks)


def make_parser() -> argparse.ArgumentParser:
    """A flag for each field of `TrainConfig`; values are checked there, in one place."""
    parser = argparse.ArgumentParser(
        prog="zerolab train",
        description="Train a small language model on real text with ZeRO. All ranks run on this machine, or under "
        "torchrun on as many as it brings: torchrun --nproc_per_node 2 -m zerolab train ...",
    )
    parser.add_argument(
        "--deepspeed-config",
        "--deepspeed_config",
        metavar="FILE",
        help="settings from a DeepSpeed configuration (JSON)",
    )
    groups = {
        title: (parser.add_argument_group(title), settings.model_fields)
        for title, settings in (("precision", PrecisionSettings), ("offload", OffloadSettings))
    }
    for name, field in TrainConfig.model_fields.items():
        place = next((group for group, fields in groups.values() if name in fields), parser)
        add_flag(place, name, field)
    return parser


def add_flag(parser: argparse._ActionsContainer, name: str, field: FieldInfo) -> None:
    flag = "--" + name.replace("_", "-")
    default = "none" if field.default is None else field.default
    text = f"{field.description} (default: {default})"
    if field.annotation is bool:
        parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text)
    else:
        # Numbers stay text until pydantic reads them, so that every refusal is worded alike.
        parser.add_argument(flag, dest=name, default=None, metavar=metavar(field.annotation), help=text)


def metavar(annotation: Any) -> str:
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    if isinstance(annotation, UnionType) or isinstance(kinds[0], type):
        return {"int": "N", "float": "X", "Path": "FILE"}.get(kinds[0].__name__, "NAME")
    return "|".join(map(str, kinds))
