"""`zerolab launch`: N processes of a script on this machine, as torchrun starts them."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import Flags
from zerolab.errors import InputError
from zerolab.ranks.folders import temporary_folder
from zerolab.ranks.job import MAX_RANKS
from zerolab.run.spec import setting

STANDS_FOR_TRAIN = "train_4d.py"
"""A script that texts start, and that is not here: `zerolab train` understands its flags."""
Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]


class Launch(Flags):
    """Start N processes of a Python script on this machine, as torchrun does: each finds RANK, LOCAL_RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT in its environment, so that torch.distributed.init_process_group() and zerolab.launch()
    join one world. Each line that a rank prints has the rank before it. The first rank that fails ends the others, and
    its status is this command's. What follows -- or --script-args is for the script."""

    file: Annotated[str | None, "SCRIPT"] = setting(None, "the Python file to start")
    module: Annotated[str | None, ("-m",)] = setting(None, "a module in place of a script, as in python -m")
    ranks: Annotated[Ranks | None, ("--nproc-per-node",)] = setting(None, f"processes, 1 to {MAX_RANKS}; none: 2")
    collectives: Literal["ring", "torch", "shared", "auto"] = setting(
        "auto", "what zerolab.launch() and from_process_group() take in the script where they are told nothing"
    )
    backend: Literal["gloo", "nccl"] | None = setting(None, "gloo: ranks see no GPU; nccl: each must have one")
    world_size: Ranks | None = setting(None, "the same as --ranks")
    script: str | None = setting(None, "the same as SCRIPT")


def main(arguments: list[str]) -> int:
    """Run the script; the status is 0 when every rank's is, else that of the first rank that failed."""
    ends = [at for at, word in enumerate(arguments) if word in ("--", "--script-args", "--script_args")]
    end = min(ends, default=len(arguments))
    passed = arguments[end + 1 :]
    given = Launch.read(
        "zerolab launch",
        arguments[:end],
        usage="zerolab launch SCRIPT|-m MODULE --ranks N [--collectives NAME] [-- ARGUMENTS OF THE SCRIPT]",
        hint="put -- before the script's own arguments",
    )
    ranks = one_of("--ranks", given.ranks, "--world-size", given.world_size) or 2
    script = one_of("SCRIPT", given.file, "--script", given.script)
    if (script is None) == (given.module is None):
        what = "no script" if script is None else f"both a script, {script}, and a module, {given.module},"
        raise InputError(f"{what} is given to start; give one, such as: zerolab launch train.py --ranks 2")
    if given.backend == "nccl" and torch.cuda.device_count() < ranks:
        raise InputError(
            f"--backend is nccl, which needs a GPU a rank, but there are {torch.cuda.device_count()} for {ranks} "
            "ranks; give gloo, or leave it out"
        )
    if script is not None and not Path(script).is_file():
        if Path(script).name != STANDS_FOR_TRAIN:
            raise InputError(f"there is no script {script!r}; name a file that is there, or -m and a module")
        from zerolab.apps.cli.train import main as train

        ending.print_error(f"there is no {script} here, so zerolab train runs in its place")
        device = [] if given.backend is None else [f"--device={'cpu' if given.backend == 'gloo' else 'cuda'}"]
        return train([f"--ranks={ranks}", f"--collective-impl={given.collectives}", *device, *passed])
    variables = {"CUDA_VISIBLE_DEVICES": ""} if given.backend == "gloo" else {}
    variables["ZEROLAB_COLLECTIVES"] = given.collectives
    return start([*(["-m", given.module] if script is None else [script]), *passed], ranks, variables)


def start(words: Sequence[Any], ranks: int, variables: Mapping[str, str]) -> int:
    """Run a script or a module in so many processes by torchrun, which takes this process over: its environment, its
    signals and its log. The first rank that fails ends the others, and is named; its status is returned, 128 and the
    number of a signal that ended it."""
    # Else torchrun warns that it sets this itself, to 1.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    prefix = "rank ${rank} | " if ranks > 1 else " "
    os.environ.update(variables, PYTHONUNBUFFERED="1", TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=prefix)
    # What it has to say of a rank that failed is said below.
    logging.disable(logging.CRITICAL)
    with temporary_folder("launch") as logs:
        tempfile.tempdir = str(logs)
        try:
            torchrun(["--standalone", f"--nproc-per-node={ranks}", "--tee=3", *words])
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            how = f"ended with status {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            ending.print_error(f"rank {rank} {how}; all ranks were ended")
            return code if code > 0 else 128 - code
        except SignalException as error:
            ending.print_error(f"{ending.in_words(error.sigval)}; all ranks were ended")
            return 128 + error.sigval
    return 0


def one_of(name: str, value: Any, other: str, its: Any) -> Any:
    """Two names for one thing."""
    if value is not None and its is not None and value != its:
        raise InputError(f"{name} is {value} and {other} is {its}, but they mean the same; leave one of the two out")
    return its if value is None else value
