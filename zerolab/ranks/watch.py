"""What the parent concludes from the board: that ranks can never finish, and why. Pure functions of what was read."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zerolab.collectives.call import mismatch
from zerolab.errors import DeadlockError, MismatchError, RankError
from zerolab.ranks.board import Activity, RankState


def certain_failure(
    earlier: Sequence[RankState], now: Sequence[RankState], finished: Collection[int]
) -> RankError | None:
    """An error if ranks are stuck for good; None as long as that is not certain. `earlier` and `now` are two readings
    of the board, in the order of ranks: only what has not moved between them is trusted."""
    still = {
        rank: now[rank]
        for rank in range(len(now))
        if rank not in finished and now[rank].activities and earlier[rank] == now[rank]
    }
    return different_calls(still) or waits_for_the_finished(still, now, finished)


def different_calls(still: dict[int, RankState]) -> MismatchError | None:
    """Two ranks that sit in collectives of the same group and number, and of another name, size or dtype."""
    first: dict[tuple[int, int], tuple[int, str]] = {}
    for rank, state in still.items():
        for activity in state.activities:
            if not activity.call:
                continue
            other, call = first.setdefault((activity.group, activity.number), (rank, activity.call))
            if call != activity.call:
                return MismatchError(mismatch(other, call, rank, activity.call))
    return None


def waits_for_the_finished(
    still: dict[int, RankState], now: Sequence[RankState], finished: Collection[int]
) -> DeadlockError | None:
    """A rank that waits for one that has already returned."""
    for rank, state in still.items():
        for activity in state.activities:
            for gone in sorted(finished):
                missed = _missed(activity, gone, now[gone])
                unanswered = activity.peer == gone and _unanswered(rank, state, gone, now[gone], activity)
                if missed or unanswered:
                    return DeadlockError(
                        f"rank {rank} {activity}, but rank {gone} has already returned; let every rank take part in "
                        "each collective; each send needs a receive that is posted, and the other way round"
                    )
    return None


def _missed(activity: Activity, gone: int, gone_state: RankState) -> bool:
    """Whether the finished rank never came to this call. The board does not say who is in a group; but a rank that
    another waits for in a group's call belongs to it, and so does one that has entered an earlier call of it."""
    last = gone_state.last_in(activity.group)
    belongs = activity.group == 0 or activity.peer == gone or bool(last)
    return belongs and last is not None and activity.number > last


def _unanswered(rank: int, state: RankState, gone: int, gone_state: RankState, activity: Activity) -> bool:
    """Whether more messages were asked of the finished rank than it ever posted."""
    if activity.wait_kind == "receive from":
        return state.received[gone] > gone_state.sent[rank]
    return state.sent[gone] > gone_state.received[rank]


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
    lines = [f"rank {rank} {_pending(rank, state, finished, frames)}" for rank, state in enumerate(states)]
    hangs = all(rank in finished or state.activities for rank, state in enumerate(states))
    kind = DeadlockError if hangs else RankError
    return kind(f"{what} within {seconds:g} s: {'; '.join(lines)}")


def _pending(rank: int, state: RankState, finished: Collection[int], frames: dict[int, str]) -> str:
    if rank in finished:
        return "has returned"
    return state.describe() or frames.get(rank, "computes")
