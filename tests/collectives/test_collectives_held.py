"""When a call has ended, its tensors are held by their owners alone: not by lane, issuer or handle."""

import gc
import time
import weakref
from concurrent.futures.thread import _WorkItem
from typing import Any

import pytest
import torch

from zerolab.collectives import Collectives, Handle
from zerolab.collectives.transport import ThreadLane
from zerolab.ranks import launch

# Not torch's own collectives: a thread of gloo's holds a call's tensors a moment longer.
WORLDS = [("lockstep", "ring"), ("processes", "ring"), ("processes", "shared")]
ROUNDS = 15


def doze() -> None:
    """Let each thread of a pool lose its turn right after a call, as a busy machine may."""
    run = _WorkItem.run

    def run_and_doze(self: Any) -> None:
        run(self)
        time.sleep(0.01)

    _WorkItem.run = run_and_doze


def held_in_a_group(comm: Collectives) -> dict[str, int]:
    group = comm.split(0)
    assert group is not None
    return held_after_wait(group)


def held_after_wait(comm: Collectives) -> dict[str, int]:
    """How many tensors of asynchronous calls were still alive right after `wait`, while all handles are kept."""
    kept: list[Handle] = []
    held = {"all_reduce": 0, "reduce_scatter": 0, "all_gather": 0}
    # Only what is held counts, not what waits for a search of circles.
    gc.disable()
    doze()
    for _ in range(ROUNDS):
        for name in held:
            tensor = torch.ones(4 * comm.size)
            reference = weakref.ref(tensor)
            handle: Handle = getattr(comm, f"{name}_async")(tensor)
            del tensor
            handle.wait()
            if name == "all_reduce":
                # Its result is the tensor itself, which goes with the handle.
                del handle
            else:
                kept.append(handle)
            held[name] += reference() is not None
    return held


def held_without_wait(comm: Collectives) -> int:
    """Of calls that nobody waited for, since a later one has ended, which ends them, too."""
    given = [torch.ones(4 * comm.size) for _ in range(ROUNDS)]
    references = [weakref.ref(tensor) for tensor in given]
    kept = [comm.reduce_scatter_async(tensor) for tensor in given]
    kept[-1].wait()
    given.clear()
    return sum(reference() is not None for reference in references) if kept else -1


@pytest.mark.ranks
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("world", "collectives"), WORLDS)
def test_nothing_holds_a_call_s_tensors_once_it_has_ended(world: str, collectives: str) -> None:
    def held(comm: Collectives) -> list[Any]:
        # The last first: `held_after_wait` changes the pools of this process.
        return [held_without_wait(comm), held_after_wait(comm), held_in_a_group(comm)]

    nothing = {"all_reduce": 0, "reduce_scatter": 0, "all_gather": 0}
    seen = launch(held, ranks=2, world=world, collectives=collectives, timeout=40)
    assert seen == [[0, nothing, nothing]] * 2


def test_a_lane_raises_what_its_call_raised_each_time_it_is_waited_for() -> None:
    lane = ThreadLane("test")
    request = lane.submit(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            request.wait()
    lane.close()
