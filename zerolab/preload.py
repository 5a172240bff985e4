"""What every rank needs, and nothing that starts a thread or a GPU: imported once, by the server that forks ranks and
the processes that run learners' answers.
"""

import atexit
import gc
import glob
import importlib.util
import os
import select
import shutil
import signal
import sys
import threading
from types import FrameType

# None of the many objects that are made now is garbage, and to look for it again and again takes a quarter of the time.
searched = gc.isenabled()
gc.disable()


def pipe_of_the_client() -> int | None:
    """In a server, while it imports this: the pipe that ends when the process that it serves does. Elsewhere None."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "multiprocessing.forkserver" and "alive_r" in frame.f_locals:
            return int(frame.f_locals["alive_r"])
        frame = frame.f_back
    return None


def end_with(client: int, imported: threading.Event) -> None:
    """While this process imports, it hears nothing; if its client ends meanwhile, so does it."""
    while not imported.is_set():
        if select.select([client], [], [], 0.05)[0]:
            remove_leftovers()
            os._exit(0)


def remove_leftovers() -> None:
    """Remove what the client, if it was killed, has left of temporary files."""
    for pattern in os.environ.get("ZEROLAB_LEFTOVERS", "").split(os.pathsep):
        for path in glob.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def silence() -> None:
    """Have this process print nowhere, nor what it forks until that has streams of its own: both may see in the middle
    of something that its client ends."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


client = pipe_of_the_client()
if client is not None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # It was blocked while the server was started, and is not to be in what the server forks.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    imported = threading.Event()
    thread = threading.Thread(target=end_with, args=(client, imported))
    thread.start()

import torch  # noqa: E402

# Torch imports its compiler, for a second or more, when a process makes its first optimizer.
import torch._dynamo  # noqa: E402

from zerolab.ranks.forkserver import end_children  # noqa: E402

# Most of what rank functions use.
for room in ("checkpoint", "collectives", "data", "memory", "models", "ranks", "train", "zero"):
    package = importlib.import_module(f"zerolab.{room}")
    names = [getattr(package, name) for name in dir(package)]

# What checks of exercises use, so that a learner does not wait for it. Named, not imported: the library stands without
# the course.
if importlib.util.find_spec("zerolab.course") is not None:
    importlib.import_module("zerolab.course.grade.worker")

if client is not None:
    torch.set_num_threads(1)
    # A fork shall find one thread only.
    imported.set()
    thread.join()
    silence()
    # Run when the server ends; what it forks ends without.
    atexit.register(end_children, os.getpid(), remove_leftovers)
    # A rank that looks for garbage leaves these objects alone, and their pages shared.
    gc.freeze()
if searched:
    gc.enable()
