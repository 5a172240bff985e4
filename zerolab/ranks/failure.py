"""Errors of ranks, as the caller sees them."""

from __future__ import annotations

import re
import signal
import time
import traceback

import torch.distributed as dist

from zerolab.errors import DeadlockError, MismatchError, RankError
from zerolab.ranks.job import LOST, RAISED, Outcome

_KEPT = {"DeadlockError": DeadlockError, "MismatchError": MismatchError}


class RankTraceback(Exception):  # noqa: N818 (it is no error, it carries one's text)
    """Carries the text of a rank's own traceback, as the cause of the caller's error."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]).rstrip()


class RankFailure(RankError):  # noqa: N818 (RankError is its base)
    """A rank raised or died. `error` is the name of the exception's type or the signal, and `traceback` the text of the
    rank's traceback or of what it wrote to standard error."""

    def __init__(self, message: str, rank: int, error: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.error = error
        self.traceback = traceback
        if traceback:
            self.__cause__ = RankTraceback(traceback)


class PeerLost(RankError):  # noqa: N818 (it never reaches a user: the peer's own failure does)
    """A message could not be sent or received because the other rank is gone."""


class Unreturned(RankError):  # noqa: N818 (seen only by the parent)
    """A rank returned what cannot travel, or left messages behind."""


def make_outcome(error: BaseException) -> Outcome:
    """The outcome of a rank that raised."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ in ("builtins", "zerolab.errors") else f"{kind.__module__}.{kind.__name__}"
    return Outcome(
        error=name.removeprefix("__main__."),
        message=str(error),
        traceback=traceback_text(error),
        when=time.monotonic(),
        blame=LOST if is_secondary(error) else RAISED,
    )


def make_failure(rank: int, outcome: Outcome) -> RankError:
    """The caller's error for an exception of rank `rank`."""
    error, message, traceback = outcome.error, outcome.message, outcome.traceback
    if kept := _KEPT.get(error):
        failure: RankError = kept(message)
        failure.__cause__ = RankTraceback(traceback)
        return failure
    if error.endswith(Unreturned.__name__):
        message, traceback = f"rank {rank} {message}", ""
    elif error == "SystemExit":
        message = f"rank {rank} called sys.exit({message}) before the others had finished; return instead"
    else:
        message = f"rank {rank} raised {error}{f': {message}' if message else ''}"
    return RankFailure(message, rank, error, traceback)


def traceback_text(error: BaseException) -> str:
    """The traceback of an exception, from the rank function on: the frames before are ours."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith("zerolab.ranks."):
        frame = frame.tb_next
    frame = frame or error.__traceback__
    return "".join(traceback.format_exception(type(error), error, frame))


def is_secondary(error: BaseException) -> bool:
    """Whether an error says no more than that another rank is gone, which is then what to report."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "SO_ERROR: Connection refused")
    lost = isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
    return lost or isinstance(error, PeerLost | dist.DistBackendError) or isinstance(error.__cause__, BrokenPipeError)


def describe_death(rank: int, exit_code: int, stderr: str = "") -> RankFailure:
    """The caller's error for a rank whose process ended without a word."""
    if exit_code < 0:
        # Most of the real-time signals have no name.
        name = next((it.name for it in signal.Signals if it == -exit_code), f"signal {-exit_code}")
        hint = "; it may have run out of memory" if name == "SIGKILL" else ""
        return RankFailure(f"rank {rank} was killed by {name}{hint}", rank, name, stderr)
    last = stderr.rpartition("\n")[2]
    why = f" ({last})" if re.match(r"[\w.]*(Error|Exception)\b", last) else ""
    message = (
        f"rank {rank} ended with exit code {exit_code} before it returned{why}; look for os._exit in what it runs, or "
        "for a limit on memory, open files or processes"
    )
    return RankFailure(message, rank, traceback=stderr)
