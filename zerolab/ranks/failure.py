"""Errors of ranks, as the caller sees them."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable
from types import TracebackType

import torch
import torch.distributed as dist

from zerolab.collectives.transport import Transport
from zerolab.errors import DeadlockError, InputError, MismatchError, RankError

_KEPT = {"DeadlockError": DeadlockError, "MismatchError": MismatchError}
_RAISED = re.compile(r"[\w.]*(Error|Exception)\b")
"""How the last line of a traceback begins."""
MOST_FRAMES = 1000
"""Frames of a traceback that are shown at most: as many as Python's own limit of recursion. Where a script has raised
that limit, the text of a million frames would take longer than all else."""


class RankTraceback(Exception):  # noqa: N818 (it is no error, it carries one's text)
    """Carries the text of a rank's own traceback, as the cause of the caller's error."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0]).rstrip()


class RankFailure(RankError):  # noqa: N818 (RankError is its base)
    """A rank raised or died. `rank` is its number, `error` the name of the exception's type (or "" if the process
    died without one) and `traceback` the text of the rank's traceback and of what it wrote to standard error."""

    def __init__(self, message: str, rank: int, error: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.error = error
        self.traceback = traceback
        if traceback:
            self.__cause__ = RankTraceback(traceback)


class PeerLost(RankError):  # noqa: N818 (it never reaches a user: the peer's own failure does)
    """A message could not be sent or received because the other rank is gone."""


class ResultRefused(RankError):  # noqa: N818 (seen only by the parent)
    """What a rank returned cannot travel; the message lacks only the rank's number."""


class RequestLeft(RankError):  # noqa: N818 (seen only by the parent)
    """A rank returned without waiting for a message; the message lacks only the rank's number."""


class OpenRequests:
    """A rank's messages, of all its threads, that nobody has waited for yet. A request that is thrown away takes its
    message with it: torch gives it up, and the other rank waits for ever. So it is kept here until somebody waits for
    it, and it is named when the rank returns."""

    def __init__(self) -> None:
        self._asked: dict[object, tuple[bool, int, int]] = {}

    def add(self, request: object, sends: bool, peer: int, nbytes: int) -> None:
        self._asked[request] = sends, peer, nbytes

    def drop(self, request: object) -> None:
        """Somebody waits for it."""
        self._asked.pop(request, None)

    def check(self) -> None:
        """Raise if the rank function has returned and left requests behind."""
        if not self._asked:
            return
        (sends, peer, nbytes), *more = self._asked.values()
        what = f"{'sending to' if sends else 'receiving from'} rank {peer} ({nbytes} byte{'s' * (nbytes != 1)})"
        others = f", and for {len(more)} more" if more else ""
        raise RequestLeft(
            f"returned before it had waited for what it is {what}{others}; keep the request that "
            f"{'isend' if sends else 'irecv'} returns, and wait() for it before you use the tensor again"
        )


def check_message(transport: Transport, tensor: torch.Tensor, peer: int) -> None:
    """Raise an InputError where a tensor cannot be a message to or from this peer."""
    transport.check_peer(peer)
    if not tensor.is_contiguous():
        raise InputError(
            f"a message of shape {tuple(tensor.shape)} is not contiguous; send tensor.contiguous(), or receive into a "
            "new tensor and copy"
        )


def rank_failure(rank: int, error: str, message: str, traceback: str = "") -> RankError:
    """The caller's error for an exception of rank `rank`. A deadlock or a mismatch that a rank named stays one."""
    kept = _KEPT.get(error.rpartition(".")[2])
    if kept is not None:
        failure: RankError = kept(message)
        failure.__cause__ = RankTraceback(traceback)
        return failure
    if error.endswith((ResultRefused.__name__, RequestLeft.__name__)):
        return RankFailure(f"rank {rank} {message}", rank, error)
    if error == "SystemExit":
        return RankFailure(
            f"rank {rank} called sys.exit({message}) before the others had finished; return instead",
            rank,
            error,
            traceback,
        )
    said = f": {message}" if message else ""
    return RankFailure(f"rank {rank} raised {error}{said}", rank, error, traceback)


def traceback_text(error: BaseException, start: TracebackType | None = None) -> str:
    """The traceback of an exception, from the rank function on: the frames that called it are ours, not the user's. Of
    very many frames it has the last."""
    frame = error.__traceback__ if start is None else start
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith("zerolab.ranks."):
        frame = frame.tb_next
    frame = ahead = frame or error.__traceback__
    for _ in range(MOST_FRAMES):
        ahead = ahead and ahead.tb_next
    while frame is not None and ahead is not None:
        frame, ahead = frame.tb_next, ahead.tb_next
    return "".join(traceback.format_exception(type(error), error, frame))


def said_by(error: BaseException, write: Callable[[BaseException], str] = str) -> str:
    """What `write` makes of an exception. Its class may be the script's own, and have a `__str__` that fails."""
    try:
        return write(error)
    except Exception as broken:
        return f"(it has no text: its {write.__name__} raises {type(broken).__name__})"


def is_secondary(error: BaseException) -> bool:
    """Whether an error says no more than that another rank is gone, which may have returned, or died, and is then what
    to report."""
    lost = isinstance(error, PeerLost | dist.DistBackendError) or _lost_connection(error)
    return lost or isinstance(error.__cause__, BrokenPipeError)


def _lost_connection(error: BaseException) -> bool:
    """Whether a peer went away: while it was spoken to, or, refused, before it was reached."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "SO_ERROR: Connection refused")
    return isinstance(error, RuntimeError) and any(sign in said_by(error) for sign in signs)


def name_of_signal(number: int) -> str:
    """Such as "SIGKILL". Most of the real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def died(rank: int, exit_code: int, noise: str = "") -> RankFailure:
    """The caller's error for a rank whose process ended without a word. A negative code is a signal's number."""
    if exit_code < 0:
        name = name_of_signal(-exit_code)
        hint = "; it may have run out of memory" if name == "SIGKILL" else ""
        return RankFailure(f"rank {rank} was killed by {name}{hint}", rank, name, noise)
    last = noise.rpartition("\n")[2]
    why = f" ({last})" if _RAISED.match(last) else ""
    return RankFailure(
        f"rank {rank} ended with exit code {exit_code} before it returned{why}; look for os._exit in what it runs, or "
        "for a limit on memory, open files or processes",
        rank,
        traceback=noise,
    )
