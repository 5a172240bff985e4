"""`zerolab train`: flags, and the closing table."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser, add_flag, name_flags, with_dashes
from zerolab.apps.cli.tables import text_of
from zerolab.apps.dialects import megatron
from zerolab.apps.dialects.deepspeed import read_deepspeed
from zerolab.apps.dialects.keys import are_same
from zerolab.apps.dialects.nanogpt import find_nanogpt, read_nanogpt
from zerolab.apps.interop.huggingface import weights_of, with_shape
from zerolab.apps.interop.huggingface.whole import export
from zerolab.errors import DiskError, InputError
from zerolab.ranks.folders import reason
from zerolab.ranks.join import is_torchrun
from zerolab.run import RunSpec
from zerolab.run.spec import GROUPS
from zerolab.train import Report, train
from zerolab.train.debug import start_line
from zerolab.train.here import check_here
from zerolab.train.model import load_data, with_vocabulary
from zerolab.train.outputs import check_output, write_output
from zerolab.train.progress import Stop
from zerolab.train.resume import find_start
from zerolab.train.run import json_of, most_json_bytes, most_trace_bytes, trace_of

EXAMPLES = """\
examples:
  zerolab train --zero-stage 3 --ranks 4 --max-steps 20
  zerolab train --zero-stage 2 --bf16 --save-folder runs/a --save-every 50 --resume
  zerolab train --deepspeed-config ds.json
  zerolab train train_gpt2.py --use_zero1=True
  zerolab train --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads
  torchrun --nproc_per_node 2 -m zerolab train --zero-stage 3
"""
FOREIGN = "megatron "
"""Before the name of one of Megatron-LM's flags among what was parsed."""


def main(arguments: list[str]) -> int:
    """Train, print the table, write the profile. The status is 143 where a SIGTERM ended the run after a save."""
    nano, arguments = find_nanogpt(arguments)
    settings, foreign = read_flags(arguments)
    path = settings.pop("deepspeed_config", None)
    # A RANK alone may be left from anything; a rank of others has been told where they meet, too.
    speaks = not is_torchrun() or os.environ["RANK"] == "0"
    flags, notes, missing = set(settings), list[str](), set[str]()
    if nano is not None:
        meant = read_nanogpt(nano, check_ranks(settings.get("ranks", 1)), torch.cuda.is_available())
        settings, notes = meant.beside(settings), [*meant.notes]
    if settings.get("resume") == "":
        if "save_folder" not in settings:
            raise InputError("--resume is given without a folder, and there is no --save-folder; name one of the two")
        settings["resume"] = settings["save_folder"]
    if path is not None:
        settings, said, missing = with_deepspeed(settings, Path(path))
        notes = [*notes, *said]
    try:
        config = RunSpec(**with_shape(settings))
        check_here(config)
        # What nobody gives is the checkpoint's where the run resumes.
        config.model_fields_set.difference_update(missing)
        if speaks and config.profile_json is not None:
            check_output("--profile-json", config.profile_json, most_json_bytes(config))
        if config.trace is not None and config.trace == config.profile_json:
            raise InputError(f"profile_json and trace are both {config.trace}; name a file for each")
        if speaks and config.trace is not None:
            check_output("--trace", config.trace, most_trace_bytes(config))
        corpus = load_data(config)
        config = with_vocabulary(config, corpus)
        if config.warmup_steps >= config.max_steps:
            notes.append(
                f"the learning rate rises in all {config.max_steps} steps and never reaches its height, since "
                f"warmup_steps is {config.warmup_steps}; give fewer, or more max_steps"
            )
        start = find_start(config, corpus, weights_of(config), export)
        # Of a run that can be: what is refused is one sentence.
        for note in [*notes, *start.notes] if speaks else ():
            ending.say(f"zerolab train: {note}")
        if start.step >= config.max_steps:
            return 0
        if speaks and (config.zero_debug or foreign & megatron.SHARDING):
            ending.say(start_line(config))
        if speaks and nano is not None and config.zero_stage == 1:
            ending.say(zero1_line(config))
        stop = Stop()
        with nullcontext() if config.save_folder is None else ending.on_first_sigterm(stop.ask):
            report = train(config, corpus, start, stop)
    except InputError as error:
        # What stands in a file has no flag.
        sentence = name_flags(str(error), RunSpec.model_fields.keys() - (settings.keys() - flags))
        for setting, flag in megatron.flags_of(foreign).items():
            sentence = re.sub(rf"--{setting.replace('_', '-')}(?![\w-])", f"--{flag}", sentence)
        raise InputError(sentence) from None
    if report.stopped:
        if speaks:
            ending.say(
                f"zerolab train: ended by SIGTERM, after a save of step {report.step} to {config.save_folder}; "
                "to go on, give the same command with --resume"
            )
        return ending.TERMINATED
    if speaks:
        hand_over(report)
    return 0


def zero1_line(config: RunSpec) -> str:
    """Whether use_zero1 does anything, for the log."""
    if config.ranks == 1:
        return "zerolab train: use_zero1 is on, but one process shards nothing: a plain optimizer steps; give --ranks"
    return f"zerolab train: ZeRO-1 is on: the optimizer's states are sharded over {config.ranks} ranks"


def read_flags(arguments: list[str]) -> tuple[dict[str, Any], set[str]]:
    """The settings that flags give, Megatron-LM's among them, and the names of those of its flags that were given."""
    given = vars(make_parser().parse_args(with_dashes(arguments)))
    settings = {name: value for name, value in given.items() if value is not None}
    foreign = {name: settings.pop(FOREIGN + name) for name in megatron.FLAGS if FOREIGN + name in settings}
    if is_torchrun() and "ranks" not in settings:
        size = os.environ["WORLD_SIZE"]
        if not size.isdecimal() or int(size) < 1:
            raise InputError(
                f"WORLD_SIZE is {size!r} in the environment; it should be the number of ranks, so set it to that, or "
                "unset it to train in one command"
            )
        settings["ranks"] = int(size)
    return with_megatron(settings, foreign) if foreign else settings, {*foreign}


def hand_over(report: Report) -> None:
    """Show the report and write the profile and the trace. What cannot be written is named by the DiskError that is
    raised once all others are."""
    lost: list[str] = []
    files = (
        ("profile", report.config.profile_json, json_of),
        ("trace", report.config.trace, trace_of),
    )
    try:
        ending.show(text_of(report))
    except OSError as error:
        lost.append(f"the report could not be shown ({reason(error)}); --profile-json has all of it")
    except Exception as error:
        # What the run was made for is written all the same.
        lost.append(f"the report could not be drawn ({type(error).__name__}: {error}); --profile-json has all of it")
    for what, path, made_of in files:
        if path is None:
            continue
        try:
            write_output(f"the {what}", path, made_of(report))
            ending.show(f"{what} written to {path}\n")
        except DiskError as error:
            lost.append(str(error))
        except OSError:
            # The report has said it already.
            pass
    if lost:
        raise DiskError("; ".join(lost))


def with_deepspeed(settings: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[str], set[str]]:
    """Flags beside a DeepSpeed configuration, what is to be said of it, and the settings that neither of them gives; a
    flag that says something else than the file is refused."""
    ranks = settings.get("ranks", RunSpec.model_fields["ranks"].default)
    reading = read_deepspeed(path, check_ranks(ranks), settings)
    read, notes = reading.settings, [f"{path}: {note}" for note in reading.notes]
    for name, value in settings.items():
        if name in read and not are_same(read[name], value):
            raise InputError(f"{name} is {value} as a flag and {read[name]} in {path}; leave one of the two out")
    if read.get("zero3_save_16bit_model") and "save_folder" not in settings:
        del read["zero3_save_16bit_model"]
        notes.append("the whole weights in 16 bits are not written, since there is no folder; give --save-folder")
    return {**read, **settings}, notes, reading.missing


def with_megatron(settings: dict[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Our flags beside Megatron-LM's; one that says something else than the others is refused."""
    ranks = settings.get("ranks", RunSpec.model_fields["ranks"].default)
    read = megatron.read(flags, check_ranks(ranks))
    if read.get("fp8"):
        # There one says --bf16 besides; here fp8 says that the states are as in bf16.
        settings = {name: value for name, value in settings.items() if name != "bf16"}
    for name, value in settings.items():
        if name in read and not are_same(read[name], value):
            raise InputError(
                f"--{name.replace('_', '-')} is {value}, but Megatron-LM's flags beside it mean {read[name]}; leave "
                "one of the two out"
            )
    return {**read, **settings}


def check_ranks(ranks: int | str) -> int:
    if not str(ranks).isdecimal() or int(ranks) < 1:
        raise InputError(f"ranks is {ranks!r}; it should be a whole number of at least 1")
    return int(ranks)


def make_parser() -> argparse.ArgumentParser:
    """A flag for each field of `RunSpec`; values are checked there, in one place."""
    parser = Parser(
        prog="zerolab train",
        usage="zerolab train [CONFIG.py] [--FLAG VALUE ...]",
        description="Train a small language model on real text with ZeRO. All ranks run on this\nmachine, or under "
        "torchrun on as many as it brings.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--deepspeed-config",
        metavar="FILE",
        help="settings from a DeepSpeed configuration (JSON)",
    )
    parser.add_argument(
        "--config",
        metavar="FILE.py",
        help="settings from a nanoGPT configuration, which may come first, too; --KEY=VALUE beside it are its keys "
        "(batch_size: a rank's micro-batch), as they are beside a key that is nanoGPT's alone (--use_zero1=True)",
    )
    place: argparse._ActionsContainer = parser
    for name, field in RunSpec.model_fields.items():
        if not field.exclude:
            place = parser.add_argument_group(GROUPS[name]) if name in GROUPS else place
            add_flag(place, name, field, field.default)
    foreign = parser.add_argument_group("Megatron-LM's flags", "the same settings by the names that they have there")
    for name, flag in megatron.FLAGS.items():
        kind: dict[str, Any] = {"action": "store_true"} if flag.takes is None else {"metavar": flag.takes}
        foreign.add_argument(f"--{name}", dest=FOREIGN + name, default=None, help=flag.help, **kind)
    return parser
