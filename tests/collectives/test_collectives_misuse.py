"""Several comms, several threads, calls that differ, tensors of every kind: right, or refused by name."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from collective_cases import WORLDS, run
from torch import nn

from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import InputError, MismatchError, RankError, StateError
from zerolab.memory import Tracker
from zerolab.ranks import from_process_group, launch
from zerolab.zero import ZeroEngine

pytestmark = [pytest.mark.timeout(60), pytest.mark.ranks]


# Several comms


@pytest.mark.parametrize(("collectives", "turned"), [("shared", False), ("ring", True), ("torch", True)])
def test_two_comms_of_one_process_group_keep_their_calls_apart(collectives: str, turned: bool) -> None:
    def both(comm: Collectives) -> list[float]:
        one, other = (from_process_group(collectives=collectives) for _ in range(2))
        found = []
        for _ in range(20):
            tensors = [torch.ones(4), torch.full((4,), 2.0), torch.full((4,), 3.0)]
            calls = [its.all_reduce_async(tensor) for its, tensor in zip((one, other, comm), tensors, strict=True)]
            for call in calls[:: -1 if turned and comm.rank else 1]:
                call.wait()
            found += [tensor[0].item() for tensor in tensors]
        one.close()
        other.close()
        return found

    options = {"collectives": collectives, "timeout": 30}
    assert launch(both, ranks=2, **options) == [[2.0, 4.0, 6.0] * 20] * 2


@pytest.mark.parametrize(("collectives", "stage"), [("shared", 3), ("ring", 2), ("torch", 3)])
def test_two_engines_with_a_comm_each_train_as_with_one(collectives: str, stage: int) -> None:
    def train(comm: Collectives, apart: bool) -> float:
        engines = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
            own = from_process_group(collectives=collectives) if apart else comm
            engines.append(ZeroEngine(model, own, stage, lr=0.1))
        for step in range(3):
            x = torch.full((2, 8), float(comm.rank + step))
            engines[1](engines[0](x)).square().sum().backward()
            for engine in engines:
                engine.step()
        return sum(value.double().sum().item() for engine in engines for value in engine.consolidate().values())

    def train_both(comm: Collectives) -> list[float]:
        return [train(comm, False), train(comm, True)]

    values = launch(train_both, ranks=2, collectives=collectives, timeout=30)
    assert len({value for both in values for value in both}) == 1


# Several threads


@pytest.mark.parametrize("collectives", ["shared", "ring"])
def test_threads_may_make_calls_in_groups_of_their_own(collectives: str) -> None:
    def two_threads(comm: Collectives) -> tuple[int, int]:
        group = comm.split(0)
        assert group is not None
        wrong = [0, 0]

        def beside() -> None:
            for _ in range(200):
                wrong[1] += group.all_reduce(torch.full((4,), 2.0)).tolist() != [4.0] * 4

        thread = threading.Thread(target=beside)
        thread.start()
        for _ in range(200):
            wrong[0] += comm.all_reduce(torch.ones(4)).tolist() != [2.0] * 4
        thread.join()
        return wrong[0], wrong[1]

    assert launch(two_threads, ranks=2, collectives=collectives, timeout=40) == [(0, 0)] * 2


# Calls that differ


def differ_in_source(comm: Collectives) -> None:
    comm.broadcast(torch.ones(4), src=comm.rank)


def differ_in_mean(comm: Collectives) -> None:
    comm.all_reduce(torch.ones(4), average=comm.rank == 0)


def differ_unheard(comm: Collectives) -> None:
    comm.all_reduce_async(torch.ones(4 + comm.rank))
    comm.all_reduce_async(torch.ones(4)).wait()


def differ_at_the_end(comm: Collectives) -> None:
    comm.all_reduce_async(torch.ones(4 + comm.rank))


DIFFER = [differ_in_source, differ_in_mean, differ_unheard, differ_at_the_end]


@pytest.mark.parametrize(
    ("world", "differ"),
    [*((world, differ) for world in (WORLDS[0], WORLDS[2]) for differ in DIFFER), (WORLDS[1], differ_unheard)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_calls_that_differ_are_named_whoever_waits(
    differ: Callable[[Collectives], None], world: tuple[str, str]
) -> None:
    with pytest.raises((MismatchError, RankError)) as error:
        run(differ, ranks=2, world=world)
    words = {
        differ_in_source: ["broadcast of 4 float32 from 0", "broadcast of 4 float32 from 1"],
        differ_in_mean: ["all_reduce of 4 float32, averaged"],
    }
    for word in words.get(differ, ["all_reduce of 4 float32", "all_reduce of 5 float32"]):
        assert word in str(error.value)


def test_an_error_that_nobody_waited_for_in_a_group_ends_the_world_all_the_same() -> None:
    def attempt(comm: Collectives) -> bool:
        own = from_process_group(collectives="shared")
        group = own.split(0)
        assert group is not None
        group.all_reduce_async(torch.ones(4 + own.rank))
        with pytest.raises(MismatchError) as said:
            own.close()
        with pytest.raises(StateError):
            own.barrier()
        return "all_reduce of 5" in str(said.value)

    assert launch(attempt, ranks=2, collectives="shared", timeout=30) == [True] * 2


@pytest.mark.parametrize("given", [dist.ReduceOp.SUM, dist.ReduceOp.MAX, "mean", 1, torch.ones(1), None])
def test_what_is_no_bool_is_not_taken_for_average(given: Any) -> None:
    comm = LocalCollectives()
    for call in (comm.all_reduce, comm.all_reduce_async, comm.reduce_scatter, comm.reduce_scatter_async):
        with pytest.raises(InputError, match="average=True for the mean or False for the sum"):
            call(torch.ones(2), given)


# Around calls


def test_waits_are_recorded_of_replicas_too() -> None:
    def train(comm: Collectives) -> bool:
        shard, replicate = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        assert shard is not None and comm.tracer is not None
        comm.tracer.record_waits = True
        engine = ZeroEngine(nn.Linear(8, 8), shard, 2, lr=0.1, replicate=replicate)
        engine.backward(engine(torch.ones(2, 8)).sum())
        engine.step()
        return bool(comm.tracer.spans)

    assert all(run(train, ranks=4, trace=True))


def test_a_tracker_whose_labels_fail_tracks_nothing_afterwards() -> None:
    def labels() -> Any:
        raise KeyError("not yet")

    before = torch._C._len_torch_dispatch_stack()
    with pytest.raises(KeyError, match="not yet"), Tracker(labels):
        pass
    assert torch._C._len_torch_dispatch_stack() == before


def test_calls_after_the_end_and_impossible_sizes_are_refused() -> None:
    def attempt(comm: Collectives) -> list[str]:
        said = []
        with pytest.raises(InputError) as size:
            comm.allocate(-1)
        own = from_process_group(collectives="shared")
        own.all_reduce(torch.ones(2))
        own.close()
        with pytest.raises(StateError) as ended:
            own.all_reduce(torch.ones(2))
        for device in ("banana", *([] if torch.cuda.is_available() else ["cuda"])):
            with pytest.raises(Exception, match=r"banana|CUDA") as place:
                from_process_group(device=device)
            said.append(str(place.value))
        return [str(size.value), str(ended.value), *said]

    said = launch(attempt, ranks=2, collectives="shared", timeout=30)[0]
    assert "numel" in said[0] and "after comm.close()" in said[1]
    assert "banana" in said[2] and all("CUDA" in one for one in said[3:])
