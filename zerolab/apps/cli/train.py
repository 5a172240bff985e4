"""`zerolab train`: flags, and the closing table."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import add_flag, name_flags
from zerolab.apps.cli.parser import Parser
from zerolab.apps.dialects import megatron
from zerolab.apps.dialects.deepspeed import read_deepspeed
from zerolab.apps.dialects.keys import are_same, run_of
from zerolab.apps.dialects.nanogpt import find_nanogpt, read_nanogpt
from zerolab.errors import DiskError, InputError
from zerolab.ranks.folders import reason
from zerolab.ranks.forkserver import start_server
from zerolab.ranks.job import count_gpus, is_torchrun
from zerolab.run import RunSpec
from zerolab.run.spec import GROUPS
from zerolab.train.here import check_here
from zerolab.train.outputs import check_output, most_json_bytes, most_trace_bytes, write_output
from zerolab.train.progress import Stop

if TYPE_CHECKING:
    from zerolab.train import Report

FOREIGN = "megatron "
"""Before the name of one of Megatron-LM's flags among what was parsed."""
Settings = dict[str, Any]


def main(arguments: list[str]) -> int:
    # A RANK alone may be left from anything.
    speaks = not is_torchrun() or os.environ["RANK"] == "0"
    say: Callable[[object], None] = ending.print_error if speaks else lambda text: None
    nano, arguments = find_nanogpt(arguments)
    settings, foreign = read_flags(arguments)
    path = settings.pop("deepspeed_config", None)
    flags, notes, missing = set(settings), list[str](), set[str]()
    if nano is not None:
        meant = read_nanogpt(nano, read_ranks(settings, 1), lambda: count_gpus() > 0)
        settings, notes = meant.beside(settings), [*meant.notes]
    if settings.get("resume") == "":
        settings["resume"] = settings.get("save_folder")
        if not settings["resume"]:
            raise InputError("--resume has no folder, and there is no --save-folder; name one")
    if path is not None:
        settings, said, missing = add_deepspeed(settings, Path(path))
        notes = [*notes, *said]
    try:
        config = run_of(settings)
        check_here(config)
        # What nobody gives is the checkpoint's where the run resumes.
        config.model_fields_set.difference_update(missing)
        profile, trace = config.profile_json, config.trace
        if trace is not None and trace == profile:
            raise InputError(f"profile_json and trace are both {trace}; name a file for each")
        if speaks and profile is not None:
            check_output("--profile-json", profile, most_json_bytes(config))
        if speaks and trace is not None:
            check_output("--trace", trace, most_trace_bytes(config))
        if config.world == "processes" and not is_torchrun():
            # The server of ranks imports what they need while this process does.
            start_server()
        # All of the rest takes torch.
        from zerolab.apps.interop.huggingface import weights_of
        from zerolab.apps.interop.huggingface.whole import export
        from zerolab.train.debug import start_line
        from zerolab.train.model import load_data, with_vocabulary
        from zerolab.train.resume import find_start
        from zerolab.train.run import train

        corpus = load_data(config)
        config = with_vocabulary(config, corpus)
        if config.warmup_steps >= config.max_steps:
            why = f"since warmup_steps is {config.warmup_steps}; give fewer, or more max_steps"
            notes.append(f"the learning rate rises in all {config.max_steps} steps, {why}")
        start = find_start(config, corpus, weights_of(config), export)
        # Of a run that can be: what is refused is one sentence.
        for note in [*notes, *start.notes]:
            say(note)
        if start.step >= config.max_steps:
            return 0
        if config.zero_debug or foreign & megatron.SHARDING:
            say(start_line(config))
        if nano is not None and config.zero_stage == 1:
            alone = "use_zero1 is on, but one process shards nothing: a plain optimizer steps"
            shared = f"ZeRO-1 is on: the optimizer's states are sharded over {config.ranks} ranks"
            say(f"{alone}; give --ranks" if config.ranks == 1 else shared)
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
        saved = f"ended by SIGTERM, after a save of step {report.step} to {config.save_folder}"
        say(f"{saved}; to go on, give the same command with --resume")
        return 128 + signal.SIGTERM
    if speaks:
        hand_over(report)
    return 0


def read_flags(arguments: list[str]) -> tuple[Settings, set[str]]:
    """The settings that flags give, and those of Megatron-LM's among them."""
    parsed = vars(make_parser().parse_args(arguments))
    settings = {name: value for name, value in parsed.items() if value is not None}
    given = [name for name in megatron.FLAGS if FOREIGN + name in settings]
    foreign = {name: settings.pop(FOREIGN + name) for name in given}
    if is_torchrun():
        size = os.environ["WORLD_SIZE"]
        if not size.isdecimal():
            raise InputError(f"WORLD_SIZE is {size!r} in the environment; set it to the number of ranks, or unset it")
        settings.setdefault("ranks", size)
    if foreign:
        read = megatron.read(foreign, read_ranks(settings))
        if read.get("fp8"):
            # There one says --bf16 besides; here fp8 says that the states are as in bf16.
            settings.pop("bf16", None)
        settings = merge(settings, read, "Megatron-LM's flags beside it mean")
    return settings, {*foreign}


def merge(flags: Settings, others: Settings, elsewhere: str) -> Settings:
    for name, value in flags.items():
        if name in others and not are_same(others[name], value):
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} is {value}, but {elsewhere} {others[name]}; leave one of the two out")
    return {**others, **flags}


def add_deepspeed(settings: Settings, path: Path) -> tuple[Settings, list[str], set[str]]:
    """Flags and a DeepSpeed configuration, notes on it, and settings that neither gives."""
    reading = read_deepspeed(path, read_ranks(settings), settings)
    read, notes = reading.settings, [f"{path}: {note}" for note in reading.notes]
    if read.get("zero3_save_16bit_model") and "save_folder" not in settings:
        del read["zero3_save_16bit_model"]
        notes.append("16-bit weights are not written without a folder; give --save-folder")
    return merge(settings, read, f"in {path} it is"), notes, reading.missing


def read_ranks(settings: Settings, default: int = RunSpec.model_fields["ranks"].default) -> int:
    ranks = str(settings.get("ranks", default))
    if not ranks.isdecimal() or int(ranks) < 1:
        raise InputError(f"ranks is {ranks!r}; it should be a whole number of at least 1")
    return int(ranks)


def hand_over(report: Report) -> None:
    """Show the report, write profile and trace; what cannot be is a DiskError at the end."""
    from zerolab.apps.cli.tables import text_of
    from zerolab.train.run import json_of, trace_of

    lost: list[str] = []
    try:
        ending.print_output(text_of(report))
    except OSError as error:
        lost.append(f"the report could not be shown ({reason(error)}); --profile-json has all of it")
    except Exception as error:
        # What the run was made for is written all the same.
        why = f"{type(error).__name__}: {error}"
        lost.append(f"the report could not be drawn ({why}); --profile-json has all of it")
    files = {"profile": (report.config.profile_json, json_of), "trace": (report.config.trace, trace_of)}
    for what, (path, make) in files.items():
        if path is not None:
            try:
                write_output(f"the {what}", path, make(report))
                # Where that cannot be, the report has said so.
                with suppress(OSError):
                    ending.print_output(f"{what} written to {path}\n")
            except DiskError as error:
                lost.append(str(error))
    if lost:
        raise DiskError("; ".join(lost))


def make_parser() -> Parser:
    parser = Parser(
        "zerolab train",
        "Train a small language model on real text with ZeRO.",
        usage="zerolab train [CONFIG.py] [--FLAG VALUE ...]",
    )
    parser.add_argument("--deepspeed-config", metavar="FILE", help="a DeepSpeed configuration (JSON)")
    nano = "a nanoGPT configuration; --KEY=VALUE beside it are its keys"
    parser.add_argument("--config", metavar="FILE.py", help=nano)
    place: Any = parser
    for name, field in RunSpec.model_fields.items():
        if not field.exclude:
            place = parser.add_argument_group(GROUPS[name]) if name in GROUPS else place
            add_flag(place, name, field, field.default)
    foreign = parser.add_argument_group("Megatron-LM's flags", "the same by other names")
    for name, flag in megatron.FLAGS.items():
        kind: dict[str, Any] = {"action": "store_true"} if flag.takes is None else {"metavar": flag.takes}
        foreign.add_argument(f"--{name}", dest=FOREIGN + name, default=None, help=flag.help, **kind)
    return parser
