"""A server of ranks in a hundredth of a second: a fork of a process that was itself forked from one, with no thread."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from multiprocessing import util
from typing import Any
from unittest.mock import patch

from zerolab.ranks import forkserver

_spawn_passfds = util.spawnv_passfds


def fork_server() -> None:
    """Make the server of this process by a fork of it."""
    with patch.object(util, "spawnv_passfds", _fork_passfds):
        forkserver.start_server()


def _fork_passfds(path: Any, command: Sequence[Any], descriptors: Sequence[int]) -> int:
    """Do in a fork of this process what `command`, a call of Python with "-c", would do in a new one."""
    if pid := os.fork():
        return pid
    preload = sys.modules["zerolab.preload"]
    try:
        util.spawnv_passfds = _spawn_passfds
        close_all_but(0, 1, 2, *descriptors)
        preload.silence()
        exec(os.fsdecode(command[-1]), {})
    finally:
        try:
            forkserver.end_children(os.getpid(), preload.remove_leftovers)
        finally:
            os._exit(1)


def close_all_but(*kept: int) -> None:
    for before, after in itertools.pairwise(sorted({-1, *kept, os.sysconf("SC_OPEN_MAX")})):
        # Python 3.11 takes the empty range from 0 to 0 for all there are.
        if before + 1 < after:
            os.closerange(before + 1, after)
