"""What the parent concludes from the board: that ranks can never finish, and why. Pure functions of what was read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zerolab.collectives.call import mismatch
from zerolab.errors import DeadlockError, MismatchError, RankError
from zerolab.ranks.board import GROUPS, Activity, RankState


def certain_failure(
    earlier: Sequence[RankState], now: Sequence[RankState], finished: Collection[int]
) -> RankError | None:
    """An error if ranks are stuck for good; None as long as that is not certain. `earlier` and `now` are two readings
    of the board, in the order of ranks: only what has not moved between them is trusted."""
    still = {rank: now[rank] for rank in range(len(now)) if rank not in finished and earlier[rank] == now[rank]}
    if found := different_calls(still):
        return found
    for rank, state in still.items():
        for activity in state.activities:
            for gone in sorted(finished):
                if _never_comes(rank, state, activity, gone, now[gone]):
                    return DeadlockError(
                        f"rank {rank} {activity}, but rank {gone} has already returned; let every rank take part in "
                        "each collective; each send needs a receive that is posted, and the other way round"
                    )
    return None


def different_calls(still: dict[int, RankState]) -> MismatchError | None:
    """Two ranks that sit in collectives of the same group and number, and of another name, size or dtype."""
    first: dict[tuple[int, int], tuple[int, str]] = {}
    for rank, state in still.items():
        for activity in state.activities:
            if activity.call:
                other, call = first.setdefault((activity.group, activity.number), (rank, activity.call))
                if call != activity.call:
                    return MismatchError(mismatch(other, call, rank, activity.call))
    return None


def _never_comes(rank: int, state: RankState, activity: Activity, gone: int, gone_state: RankState) -> bool:
    """Whether a rank waits for one that has returned: in a call that this one never entered, or for more messages than
    it ever posted. The board does not say who is in a group; but a rank that another waits for in a group's call
    belongs to it, and so does one that has entered an earlier call of it."""
    waited_for = activity.peer == gone
    known = len(gone_state.groups) < GROUPS or activity.group in gone_state.groups
    last = gone_state.groups.get(activity.group, 0)
    if known and activity.number > last and (activity.group == 0 or waited_for or last):
        return True
    if activity.wait_kind == "receive from":
        return waited_for and state.received[gone] > gone_state.sent[rank]
    return waited_for and state.sent[gone] > gone_state.received[rank]


class Hangs:
    """Finds what a thread of a rank has been in for `seconds`: one collective, or one wait for a message."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[tuple[int, Activity, int], float] = {}

    def found(self, states: Sequence[RankState], now: float) -> bool:
        """Whether there is such a thread. `states` is the board as read at time `now`, in seconds; each call goes on
        from the one before."""
        # A rank has each collective once; a message may be like the one before, and then the rank has noted more since.
        keys = [
            (rank, activity, 0 if activity.call else state.changes)
            for rank, state in enumerate(states)
            for activity in state.activities
        ]
        self._since = {key: self._since.get(key, now) for key in keys}
        return any(now - since >= self.seconds for since in self._since.values())


def overdue(
    states: Sequence[RankState],
    finished: Collection[int],
    frames: dict[int, str],
    seconds: float,
    what: str = "the ranks did not finish",
) -> RankError:
    """The report of a launch that did not end in time, or of `what` did not. `frames` says where ranks that wait for
    nobody compute."""
    does = {rank: state.describe() for rank, state in enumerate(states)} | dict.fromkeys(finished, "has returned")
    lines = [f"rank {rank} {does[rank] or frames.get(rank, 'computes')}" for rank in does]
    return (DeadlockError if all(does.values()) else RankError)(f"{what} within {seconds:g} s: {'; '.join(lines)}")
