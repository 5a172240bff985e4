"""Imported once, by the server that forks ranks: what every rank needs, and nothing that starts a thread or a GPU.

A session of its own keeps the server and all ranks out of reach of the terminal's Ctrl-C and of a kernel's
interrupt: the parent alone receives it, and ends the ranks in order.
"""

import os
import signal
import sys
from types import FrameType

import torch

# Every optimizer imports it when it is first used: a second of every rank's time, once here.
import torch._dynamo

import zerolab.ranks.child  # noqa: F401


def _imported_by_the_server() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "multiprocessing.forkserver":
            return True
        frame = frame.f_back
    return False


if _imported_by_the_server():
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()
