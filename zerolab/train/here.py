"""Whether this machine can carry a run out, asked before any rank starts; and what a virtual world has not."""

from __future__ import annotations

import os
import shutil

from zerolab.errors import InputError
from zerolab.offload.places import check_folder
from zerolab.ranks.job import MAX_RANKS, MAX_VIRTUAL_RANKS, is_torchrun
from zerolab.run import RunSpec
from zerolab.run.spec import MOST_SEQUENCES

READS = {
    "save_folder": "a checkpoint keeps values",
    "resume": "a checkpoint has values",
    "init_from": "weights are values",
    "eval_every": "an evaluation computes a loss",
    "compile": "a compiled graph is made of values",
    "zero_debug": "its log is of all ranks, and one is run",
}
"""Settings that mean nothing without values, or with one rank run, and why."""


def check_here(run: RunSpec) -> None:
    """Raise an InputError for what this machine has not: ranks, values in a virtual world, a compiler, folders."""
    if run.batch_size > MOST_SEQUENCES:
        raise InputError(f"batch_size is {run.batch_size}; it should be less than or equal to {MOST_SEQUENCES}")
    check_world(run)
    if run.compile and run.compile_backend == "inductor" and not _compiler():
        raise InputError(
            "compile is on, but torch.compile finds no C++ compiler (g++) here; install one, or leave it out"
        )
    folder = None if run.save_folder is None else run.save_folder.expanduser()
    if folder is not None and folder.exists() and not folder.is_dir():
        raise InputError(f"save_folder is {str(run.save_folder)!r}, which is no folder; name one")
    if run.places.on_disk:
        check_folder(run.places.folder, 0)


def _compiler() -> str | None:
    wanted = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    return next(filter(None, map(shutil.which, wanted)), None)


def check_world(run: RunSpec) -> None:
    """Raise an InputError for more ranks than a world has, and for what a virtual one has not."""
    if run.world != "processes" and is_torchrun():
        raise InputError(
            f"world is {run.world!r}, which has all ranks in one process, but torchrun has started several; leave "
            "one of the two out"
        )
    if run.ranks > MAX_VIRTUAL_RANKS:
        raise InputError(f"ranks is {run.ranks}; it should be less than or equal to {MAX_VIRTUAL_RANKS}")
    if run.world != "virtual":
        if run.ranks > MAX_RANKS and not is_torchrun():
            raise InputError(
                f"ranks is {run.ranks}; it should be less than or equal to {MAX_RANKS}, or give world virtual, "
                f"which has up to {MAX_VIRTUAL_RANKS}"
            )
        return
    for name, why in READS.items():
        value = getattr(run, name)
        if value not in (None, False):
            raise InputError(f"{name} is {str(value)!r}, and in a virtual world {why}; leave it out, or the world")
    for name in ("collective_impl", "device"):
        if getattr(run, name) not in ("auto", "cpu"):
            raise InputError(
                f"{name} is {getattr(run, name)!r}, and ranks of a virtual world have no messages and no device; "
                "leave it out"
            )
