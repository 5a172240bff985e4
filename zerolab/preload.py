"""What every rank needs, and nothing that starts a thread or a GPU: imported once, by the server that forks ranks and
the processes that run learners' answers.

A session of its own keeps that server and all ranks out of reach of the terminal's Ctrl-C and of a kernel's
interrupt: the parent alone receives it, and ends the ranks in order.
"""

import gc
import os
import signal
import sys
from types import FrameType

# None of the many objects that are made now is garbage, and to look for it again and again takes a quarter of the time.
searched = gc.isenabled()
gc.disable()

import torch  # noqa: E402

# Torch imports its compiler, for a second or more, when a process makes its first optimizer.
import torch._dynamo  # noqa: E402

# What checks of exercises use, so that a learner does not wait for it; and most of what rank functions use.
import zerolab.grading.worker  # noqa: E402
import zerolab.train  # noqa: E402, F401


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
    # A rank that looks for garbage leaves these objects alone, and their pages shared.
    gc.freeze()
if searched:
    gc.enable()
