"""`zerolab launch`: N processes of a script on this machine, as torchrun starts them."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import Flags
from zerolab.errors import InputError
from zerolab.ranks.folders import temporary_folder
from zerolab.ranks.job import MAX_RANKS, count_gpus
from zerolab.run.spec import flag

STANDS_FOR_TRAIN = "train_4d.py"
"""A script that texts start; `zerolab train` understands its flags."""
USAGE = "zerolab launch SCRIPT|-m MODULE --ranks N [--FLAG VALUE ...] [-- ARGUMENTS]"
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]


class LaunchFlags(Flags):
    """Start N processes of a script, as torchrun does, with RANK ... MASTER_PORT in their environment."""

    file: Annotated[str | None, "SCRIPT"] = flag("the Python file to start")
    module: Annotated[str | None, ("-m",)] = flag("a module in its place")
    ranks: Annotated[Ranks | None, ("--nproc-per-node",)] = flag("how many (default: 2)")
    collectives: Literal["ring", "torch", "shared", "auto"] = flag(
        "what zerolab.launch() takes in the script where it is told nothing", "auto"
    )
    backend: Literal["gloo", "nccl"] | None = flag("gloo: no GPU is seen; nccl: one a rank")
    world_size: Ranks | None = flag("the same as --ranks")
    script: str | None = flag("the same as SCRIPT; --script-args: as --")


def main(arguments: list[str]) -> int:
    marks = ("--", "--script-args", "--script_args")
    end = next((at for at, word in enumerate(arguments) if word in marks), len(arguments))
    passed, hint = arguments[end + 1 :], "put -- before the script's own arguments"
    given = LaunchFlags.read("zerolab launch", arguments[:end], usage=USAGE, hint=hint)
    ranks = take_one("--ranks", given.ranks, "--world-size", given.world_size) or 2
    script = take_one("SCRIPT", given.file, "--script", given.script)
    if (script is None) == (given.module is None):
        both = f"both a script, {script}, and a module, {given.module},"
        raise InputError(f"{both if script else 'no script'} is given to start; give one")
    is_there = script is None or Path(script).is_file()
    if script is not None and not is_there and Path(script).name != STANDS_FOR_TRAIN:
        raise InputError(f"there is no script {script!r}; name a file, or -m and a module")
    if given.backend == "nccl" and (gpus := count_gpus()) < ranks:
        raise InputError(f"--backend is nccl, but there are {gpus} GPUs for {ranks} ranks; give gloo")
    if not is_there:
        from zerolab.apps.cli.train import main as train

        ending.print_error(f"there is no {script} here, so zerolab train runs in its place")
        own = [f"--ranks={ranks}", f"--collective-impl={given.collectives}"]
        own += {"gloo": ["--device=cpu"], "nccl": ["--device=cuda"]}.get(given.backend or "", [])
        return train([*own, *passed])
    if given.backend == "gloo":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["ZEROLAB_COLLECTIVES"] = given.collectives
    return start([*(["-m", given.module] if script is None else [script]), *passed], ranks)


def start(words: list[Any], ranks: int) -> int:
    """Run ranks by torchrun, which takes this process over; returns the first failure's status."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    # Else torchrun warns that it sets this itself, to 1.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    os.environ["PYTHONUNBUFFERED"] = "1"
    prefix = "rank ${rank} | " if ranks > 1 else " "
    os.environ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = prefix
    # What it has to say of a rank that failed is said below.
    logging.disable(logging.CRITICAL)
    with temporary_folder("launch") as logs:
        tempfile.tempdir = str(logs)
        try:
            torchrun(["--standalone", f"--nproc-per-node={ranks}", "--tee=3", *words])
            return 0
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            by_signal = "" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            how = f"rank {rank} {by_signal or f'ended with status {code}'}"
            status = code if code > 0 else 128 - code
        except SignalException as error:
            how, status = ending.in_words(error.sigval), 128 + error.sigval
    ending.print_error(f"{how}; all ranks were ended")
    return status


def take_one(name: str, value: Any, other: str, its: Any) -> Any:
    if value is not None and its is not None and value != its:
        said = f"{name} is {value} and {other} is {its}, but they mean the same"
        raise InputError(f"{said}; leave one of the two out")
    return its if value is None else value
