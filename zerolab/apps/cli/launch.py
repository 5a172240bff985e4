"""`zerolab launch`: N processes of a script on this machine, as torchrun starts them."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser, with_dashes
from zerolab.errors import InputError
from zerolab.ranks.folders import temporary_folder

MAX_RANKS = 128
STANDS_FOR_TRAIN = "train_4d.py"
"""A script that texts start, and that is not here: `zerolab train` understands its flags."""


def main(arguments: list[str]) -> int:
    """Run the script; the status is 0 when every rank's is, else that of the first rank that failed."""
    own, passed = split(arguments)
    given, unknown = make_parser().parse_known_args(with_dashes(own))
    if unknown:
        raise InputError(f"{' '.join(unknown)} is no flag of zerolab launch; put -- before the script's own arguments")
    ranks = one_of("--ranks", given.ranks, "--world-size", given.world_size) or "2"
    if not ranks.isdecimal() or not 1 <= int(ranks) <= MAX_RANKS:
        raise InputError(f"--ranks is {ranks!r}; give a whole number from 1 to {MAX_RANKS}")
    count = int(ranks)
    script = one_of("SCRIPT", given.script, "--script", given.script_flag)
    if (script is None) == (given.module is None):
        what = "no script" if script is None else f"both a script, {script}, and a module, {given.module},"
        raise InputError(f"{what} is given to start; give one, such as: zerolab launch train.py --ranks 2")
    check_backend(given.backend, count)
    if script is not None and not Path(script).is_file():
        if Path(script).name != STANDS_FOR_TRAIN:
            raise InputError(f"there is no script {script!r}; name a file that is there, or -m and a module")
        ending.say(f"zerolab launch: there is no {script} here, so zerolab train runs in its place")
        return train(count, given.collectives, given.backend, passed)
    variables = {"ZEROLAB_COLLECTIVES": given.collectives}
    if given.backend == "gloo":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return start([*(["-m", given.module] if script is None else [script]), *passed], count, variables)


def start(words: Sequence[str], ranks: int, variables: Mapping[str, str]) -> int:
    """Run a script or a module in so many processes by torchrun. The first that fails ends the others, and is named;
    its status is returned, 128 and the number of a signal that ended it."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    variables = {
        # Else torchrun warns that it sets this itself, to 1.
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        **os.environ,
        **variables,
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "rank ${rank} | " if ranks > 1 else " ",
    }
    with temporary_folder("launch") as logs, kept_as_it_was():
        os.environ.update(variables)
        tempfile.tempdir = str(logs)
        # What it has to say of a rank that failed is said below.
        logging.disable(logging.CRITICAL)
        try:
            torchrun(["--standalone", f"--nproc-per-node={ranks}", "--tee=3", *words])
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            how = f"ended with status {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            ending.say(f"zerolab launch: rank {rank} {how}; all ranks were ended")
            return code if code > 0 else 128 - code
        except SignalException as error:
            why = "interrupted" if error.sigval == signal.SIGINT else f"ended by {error.sigval.name}"
            ending.say(f"zerolab launch: {why}; all ranks were ended")
            return 128 + error.sigval
    return 0


@contextmanager
def kept_as_it_was() -> Iterator[None]:
    """What torchrun changes in this process is at the end as it was: variables, where temporary files go, what is
    logged, and what signals do."""
    variables, folder, level = dict(os.environ), tempfile.tempdir, logging.root.manager.disable
    handlers = {number: signal.getsignal(number) for number in ending.SIGNALS}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        tempfile.tempdir = folder
        logging.disable(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is for the launcher, and what is for the script: all behind `--`, or behind `--script-args`."""
    for index, word in enumerate(arguments):
        if word in ("--", "--script-args", "--script_args"):
            return [*arguments[:index]], [*arguments[index + 1 :]]
    return [*arguments], []


def one_of(name: str, value: str | None, other: str, its: str | None) -> str | None:
    """Two names for one thing."""
    if value is not None and its is not None and value != its:
        raise InputError(f"{name} is {value} and {other} is {its}, but they mean the same; leave one of the two out")
    return its if value is None else value


def check_backend(backend: str | None, ranks: int) -> None:
    """Raise an InputError where NCCL is asked for and cannot serve."""
    if backend == "nccl":
        import torch

        if torch.cuda.device_count() < ranks:
            raise InputError(
                f"--backend is nccl, which needs a GPU a rank, but there are {torch.cuda.device_count()} for {ranks} "
                "ranks; give gloo, or leave it out"
            )


def train(ranks: int, collectives: str, backend: str | None, arguments: list[str]) -> int:
    from zerolab.apps.cli.train import main as train_main

    device = [] if backend is None else [f"--device={'cpu' if backend == 'gloo' else 'cuda'}"]
    return train_main([f"--ranks={ranks}", f"--collective-impl={collectives}", *device, *arguments])


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="zerolab launch",
        usage="zerolab launch SCRIPT --ranks N [--collectives NAME] [-- ARGUMENTS OF THE SCRIPT]\n"
        "       zerolab launch -m MODULE --ranks N [-- ARGUMENTS OF THE MODULE]",
        description="Start N processes of a Python script on this machine, as torchrun does: each finds RANK, "
        "LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, so that "
        "torch.distributed.init_process_group() and zerolab.launch() join one world. Each line that a rank prints has "
        "the rank before it. The first rank that fails ends the others, and its status is this command's.",
    )
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="the Python file to start")
    parser.add_argument("-m", "--module", metavar="MODULE", help="a module in place of a script, as in python -m")
    parser.add_argument("--ranks", "--nproc-per-node", metavar="N", help=f"processes, 1 to {MAX_RANKS} (default: 2)")
    parser.add_argument(
        "--collectives",
        choices=["ring", "torch", "shared", "auto"],
        default="auto",
        metavar="NAME",
        help="what zerolab.launch() and from_process_group() take in the script where they are told nothing: ring, "
        "torch, shared or auto (default: auto)",
    )
    parser.add_argument(
        "--backend", choices=["gloo", "nccl"], help="gloo: ranks see no GPU; nccl: each must have one (default: either)"
    )
    parser.add_argument("--world-size", metavar="N", help="the same as --ranks")
    parser.add_argument("--script", dest="script_flag", metavar="FILE", help="the same as SCRIPT")
    parser.add_argument("--script-args", metavar="...", help="the same as --: all that follows is the script's")
    return parser
