"""Errors of zerolab. Each message is one sentence: what was wrong, with the value, and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class ZerolabError(Exception):
    """Base of every error that zerolab raises on purpose."""


class InputError(ZerolabError, ValueError):
    """An argument, a flag or a file that cannot be used. Most are found before anything starts, some only in the middle
    of a run, such as a tensor that a collective cannot take."""


class RankError(ZerolabError, RuntimeError):
    """A rank failed, hung or died; the message names the rank and carries its traceback. `printed` is what each rank
    had printed by then, a text by rank."""

    printed: Sequence[str] = ()


class DeadlockError(RankError):
    """Ranks wait for each other in a circle; the message names who waits for whom."""


class MismatchError(RankError):
    """Ranks met in different collectives, or in the same one with different sizes or dtypes."""


class StateError(ZerolabError, RuntimeError):
    """Calls came in an order that cannot work, such as a step before any backward."""


class OffloadError(ZerolabError, RuntimeError):
    """A disk or the host's memory did not do what offloading asked of it; the message names the file or the bytes."""


class DiskError(ZerolabError, RuntimeError):
    """A file could not be written; the message names it, why, and where else it was written."""


class CheckpointError(ZerolabError, RuntimeError):
    """A checkpoint that cannot be written or read; the message names the file and what to do."""


class NoCheckpointError(CheckpointError, InputError):
    """A folder that was named has no checkpoint, or is not there; a command ends with 2, as for any wrong argument."""
