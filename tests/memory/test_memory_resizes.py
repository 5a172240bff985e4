"""A storage that is emptied or filled behind torch's dispatcher counts as it is, from that moment on."""

from itertools import groupby

import pytest
import torch
from zoo.trial import findings

from zerolab.collectives import Collectives, Link
from zerolab.collectives.call import phase
from zerolab.memory import Tracker
from zerolab.ranks import launch, spend

BY_RESIZE = """
class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape, x):
        whole = comm.all_gather(shard, math.prod(shape))
        y = x @ whole.view(shape).t()
        whole.untyped_storage().resize_(0)
        ctx.comm, ctx.whole, ctx.shape = comm, whole, shape
        ctx.save_for_backward(shard, x)
        return y
    @staticmethod
    def backward(ctx, grad):
        shard, x = ctx.saved_tensors
        whole = ctx.whole
        whole.untyped_storage().resize_(shard.element_size() * math.prod(ctx.shape))
        ctx.comm.all_gather(shard, out=whole)
        to_x = grad @ whole.view(ctx.shape)
        whole.untyped_storage().resize_(0)
        to_shard = ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True)
        return None, to_shard, None, to_x
def sharded_linear(comm, shard, shape, x):
    return Gathered.apply(comm, shard, shape, x)
"""


def totals(tracker: Tracker) -> list[int]:
    return [sample.total for sample in tracker.samples]


def test_a_first_shrink_counts_before_what_comes_next() -> None:
    whole = torch.zeros(1000)
    with Tracker(lambda: {"parameters": [whole]}) as tracker:
        whole.untyped_storage().resize_(0)
        other = torch.zeros(100)
        del other
        whole.untyped_storage().resize_(4000)
    assert totals(tracker) == [4000, 0, 400, 4000]
    assert sum(tracker.peak.values()) == 4000


@pytest.mark.parametrize("form", ["untyped", "typed", "legacy"])
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_shrinks_by_any_of_its_names(form: str) -> None:
    with Tracker() as tracker:
        whole = torch.zeros(1000)
        if form == "untyped":
            whole.untyped_storage().resize_(0)
        elif form == "typed":
            whole._typed_storage()._resize_(0)
        else:
            whole.storage().resize_(0)
        other = torch.zeros(100)
    assert totals(tracker) == [4000, 0, 400]
    del other


def test_a_storage_that_a_tensor_leaves_is_gone() -> None:
    with Tracker() as tracker:
        by_data, by_set, swapped, shared = (torch.zeros(1000) for _ in range(4))
        by_data.data = torch.zeros(1)
        by_set.set_(torch.zeros(1))
        small = torch.zeros(1)
        torch.utils.swap_tensors(swapped, small)
        del small
        shared.share_memory_()
        assert sum(tracker.now().values()) == 4 + 4 + 4 + 4000


def test_a_storage_that_grew_before_its_first_use_counts() -> None:
    storage = torch.UntypedStorage(0)
    with Tracker() as tracker:
        storage.resize_(4000)
        assert sum(tracker.now().values()) == 4000


def test_every_tracker_in_force_hears_of_a_resize_and_no_longer() -> None:
    whole = torch.zeros(1000)
    with Tracker(lambda: {"parameters": [whole]}) as outer:
        with Tracker(lambda: {"parameters": [whole]}) as inner:
            whole.untyped_storage().resize_(0)
        assert totals(inner) == [4000, 0]
        whole.untyped_storage().resize_(400)
    assert totals(outer) == [4000, 0, 400]
    assert "resize_" not in vars(torch.UntypedStorage)


def test_a_resize_has_its_own_time_and_phase() -> None:
    def on_rank(comm: Collectives) -> list[tuple[float, str, int]]:
        with Tracker(clock=comm.transport.now) as tracker:
            whole = torch.zeros(1000)
            spend(1.0)
            with phase("release"):
                whole.untyped_storage().resize_(0)
                spend(1.0)
                torch.zeros(1).add_(1)
        return [(sample.time, sample.phase, sample.total) for sample in tracker.samples]

    seen = launch(on_rank, ranks=2, world="lockstep")[0]
    assert seen[:2] == [(0.0, "", 4000), (1.0, "release", 0)] and seen[2] == (2.0, "release", 4)


def test_ranks_in_turn_count_their_own_storages_alone() -> None:
    def on_rank(comm: Collectives) -> list[int]:
        whole = torch.zeros(100 * (comm.rank + 1))
        with Tracker(lambda: {"parameters": [whole]}, clock=comm.transport.now) as tracker:
            coming = comm.all_gather_async(torch.zeros(0))
            whole.untyped_storage().resize_(0)
            # On the lane, too, each rank's trackers are its own.
            coming.wait()
            whole.untyped_storage().resize_(8)
            comm.barrier()
        return [total for total, _ in groupby(totals(tracker))]

    by_rank = launch(on_rank, ranks=3, world="lockstep", link=Link(1.0))
    for rank, seen in enumerate(by_rank):
        assert seen[:3] == [400 * (rank + 1), 0, 8], by_rank


def test_a_right_sharded_linear_by_resize_holds_what_the_model_answer_holds() -> None:
    seen = findings("05_zero_3", "sharded_linear", BY_RESIZE)
    assert not [finding.hint for finding in seen if finding.hint], seen
