"""Lockstep: the same values as processes, in an order that never changes, on a clock that can be computed."""

import contextlib
import gc
import os
import random
import sys
import threading
import traceback
from itertools import pairwise

import numpy
import psutil
import pytest
import rank_functions as functions
import torch

from zerolab.collectives import Collectives, Link
from zerolab.errors import DeadlockError, InputError, RankError
from zerolab.ranks import SimulatedCompute, launch, spend

pytestmark = pytest.mark.timeout(60)


def lockstep(function, *args, ranks=4, **options):
    return launch(function, *args, ranks=ranks, world="lockstep", timeout=30, **options)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 3])
def test_values_equal_those_of_processes_to_the_bit(ranks):
    here = lockstep(functions.numbers_of_everything, ranks=ranks)
    there = launch(functions.numbers_of_everything, ranks=ranks, timeout=30)
    for mine, other in zip(here, there, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine[:3], other[:3], strict=True))
        assert mine[3] == other[3]


@pytest.mark.ranks
@pytest.mark.parametrize("function", [functions.random_numbers, functions.normal_numbers])
def test_random_numbers_equal_those_of_processes_however_ranks_interleave(function):
    assert lockstep(function, ranks=3) == launch(function, ranks=3, timeout=30)


def test_the_callers_world_is_left_as_it_was():
    random.seed(5)
    numpy.random.randn()

    def state():
        return torch.get_rng_state().tolist(), random.getstate(), [*map(str, numpy.random.get_state())]

    before, threads, output = state(), torch.get_num_threads(), sys.stdout
    lockstep(functions.random_numbers)
    assert state() == before
    assert (torch.get_num_threads(), sys.stdout) == (threads, output)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch looks at the stack to seed a GPU that nobody uses yet")
def test_ranks_are_seeded_without_a_look_at_the_stack(monkeypatch):
    monkeypatch.setattr(traceback, "format_stack", lambda: pytest.fail("this takes most of a short launch's time"))
    lockstep(functions.random_numbers)


def test_the_trace_is_the_same_every_time():
    traces = [lockstep(functions.numbers_of_everything, trace=True).trace for _ in range(3)]
    assert traces[0] == traces[1] == traces[2]
    assert [event.order for event in traces[0]] == list(range(len(traces[0])))
    assert {event.lane for event in traces[0]} == {0, 1}


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_ring_all_reduce_takes_exactly_2_times_n_minus_1_messages_time(ranks):
    link = Link(gbit_per_s=1.0, latency_us=10.0)
    numel = 1200
    seconds = lockstep(_all_reduce_of, numel, ranks=ranks, link=link).seconds
    message = 10e-6 + 4 * numel / ranks * 8 / 1e9
    assert seconds == pytest.approx(2 * (ranks - 1) * message, rel=1e-12)


def _all_reduce_of(comm, numel):
    comm.all_reduce(torch.ones(numel))


def test_a_late_receiver_keeps_the_sender_waiting():
    link = Link(gbit_per_s=1.0, latency_us=0.0)
    clocks = lockstep(_late_receiver, ranks=2, link=link)
    assert clocks == [pytest.approx(2.0 + 1e-3), pytest.approx(2.0 + 1e-3)]


def _late_receiver(comm):
    if comm.rank == 0:
        comm.send(torch.ones(31_250), 1)  # a million bits
    else:
        spend(2.0)
        comm.recv(torch.ones(31_250), 0)
    return comm.transport.now()


@pytest.mark.parametrize(("compute", "expected"), [(0.0, 2e-3), (0.5e-3, 2e-3), (5e-3, 5e-3)])
def test_work_hides_behind_an_asynchronous_collective(compute, expected):
    """Two messages of 1 ms each: what a rank computes meanwhile is free, and waiting brings it to the later of both."""
    clocks = lockstep(_computes_meanwhile, compute, ranks=2, link=Link(gbit_per_s=1.0, latency_us=0.0))
    assert clocks == [pytest.approx(expected)] * 2


def _computes_meanwhile(comm, compute):
    handle = comm.all_reduce_async(torch.ones(62_500))
    spend(compute)
    handle.wait()
    return comm.transport.now()


def test_without_a_link_messages_take_no_time():
    assert lockstep(functions.numbers_of_everything).seconds == 0.0


def test_an_idle_lane_is_no_deadlock():
    assert lockstep(_leaves_its_lane_idle, ranks=3) == [0, 1, 2]


def _leaves_its_lane_idle(comm):
    comm.all_reduce_async(torch.ones(10)).wait()
    comm.barrier()
    return comm.rank


def test_a_deadlock_in_a_lane_is_named():
    with pytest.raises(DeadlockError, match="rank 0 waits for its own communication lane; rank 0 waits to"):
        lockstep(_only_rank_0_calls, ranks=2)


def _only_rank_0_calls(comm):
    if comm.rank == 0:
        comm.all_reduce_async(torch.ones(10)).wait()


def test_an_error_in_a_lane_reaches_who_waits():
    assert lockstep(_fails_in_the_lane, ranks=2) == ["no sum today"] * 2


def _fails_in_the_lane(comm):
    def call():
        raise ValueError("no sum today")

    lane = comm.transport.lane()
    with contextlib.closing(lane):
        request = lane.submit(call)
        try:
            request.wait()
        except ValueError as error:
            return str(error)


def test_a_function_that_catches_everything_still_ends():
    with pytest.raises(DeadlockError, match="rank 1 waits to receive from rank 0"):
        lockstep(_catches_exceptions, ranks=2)


def _catches_exceptions(comm):
    while comm.rank == 1:
        with contextlib.suppress(Exception):
            comm.recv(torch.ones(1), 0)


def test_the_environment_is_as_it_was_whatever_ranks_do_to_it(monkeypatch):
    monkeypatch.setenv("KEPT", "before")
    before = dict(os.environ)

    def change(comm):
        seen = os.environ["KEPT"], os.environ["GIVEN"]
        os.environ["KEPT"] = "after"
        del os.environ["GIVEN"]
        return seen

    assert lockstep(change, ranks=1, env={"GIVEN": "here"}) == [("before", "here")]
    assert dict(os.environ) == before


def test_each_rank_has_its_own_copy_of_the_arguments():
    shared = [0]
    assert lockstep(_appends, shared) == [[0, rank] for rank in range(4)]
    assert shared == [0]


def _appends(comm, items):
    items.append(comm.rank)
    return items


def test_prints_are_in_rank_order_although_ranks_take_turns(capsys):
    lockstep(_prints_between_turns, ranks=2)
    assert capsys.readouterr().out.splitlines() == ["rank 0 | a", "rank 0 | b", "rank 1 | a", "rank 1 | b"]


def _prints_between_turns(comm):
    print("a")
    comm.barrier()
    print("b")


def test_launch_after_launch_leaks_no_thread_file_or_memory():
    me, weight = psutil.Process(), torch.ones(125_000)

    def held():
        gc.collect()  # What tests before this one left in cycles.
        threads = sorted(thread.name for thread in threading.enumerate())
        return me.num_fds(), threads, sorted(child.pid for child in me.children(recursive=True))

    for at in range(120):
        if at == 20:
            before, nbytes = held(), me.memory_info().rss
        results = lockstep(functions.sum_and_weight, weight, ranks=2)
        assert [total for _, total, _ in results] == [250_000.0] * 2
    assert held() == before
    # What a hundred launches carry is 150 MB.
    assert me.memory_info().rss - nbytes < 30e6


def test_backward_hooks_may_communicate():
    assert lockstep(_reduces_in_backward, ranks=3) == [1.0 + 2.0 + 3.0] * 3


def _reduces_in_backward(comm):
    weight = torch.tensor([1.0], requires_grad=True)

    def reduce(parameter):
        comm.all_reduce(parameter.grad)

    weight.register_post_accumulate_grad_hook(reduce)
    (weight * (comm.rank + 1)).sum().backward()
    return weight.grad.item()


def test_a_lockstep_world_inside_another_is_refused():
    assert all("cannot start another of the two" in text for text in lockstep(_nests, ranks=2))


def _nests(comm):
    try:
        lockstep(functions.who_and_how_many)
    except InputError as error:
        return str(error)


def test_bare_transport_carries_every_dtype_and_shape():
    assert lockstep(functions.messages_by_hand, ranks=3, collectives="transport") == [True] * 3


def test_a_message_goes_to_the_receive_with_its_tag():
    assert lockstep(functions.tags_out_of_order, ranks=2)[1] == {1: 1.0, 2: 2.0, 3: 3.0}


@pytest.mark.parametrize(("peer", "message"), [(0, "with itself"), (7, "no rank 7"), (-1, "no rank -1")])
def test_a_message_to_nobody_is_refused(peer, message):
    with pytest.raises(Exception, match=message):
        lockstep(_sends_to, peer, ranks=2)


def _sends_to(comm, peer):
    comm.transport.isend(torch.ones(1), peer if comm.rank == 0 else 1 - comm.rank)


@pytest.mark.parametrize("seconds", [-1e-3, float("nan"), float("inf")])
def test_nobody_turns_the_clock_back(seconds: float) -> None:
    with pytest.raises(RankError, match="time goes forward"):
        lockstep(lambda comm: spend(seconds), ranks=2)


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the threads of the system")
def test_a_failed_backward_leaves_no_thread_that_could_outlive_the_interpreter() -> None:
    def fails(comm: Collectives) -> None:
        layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

        def hook(parameter: torch.Tensor) -> None:
            if comm.rank == 1:
                raise ValueError("no")
            comm.all_reduce(parameter.grad)

        for parameter in layers.parameters():
            parameter.register_post_accumulate_grad_hook(hook)
        layers(torch.ones(2, 4)).sum().backward()

    for _ in range(20):
        before = set(os.listdir("/proc/self/task"))
        with pytest.raises(RankError):
            launch(fails, ranks=3, world="lockstep")
        assert set(os.listdir("/proc/self/task")) <= before


# The pace


def test_operations_take_the_longer_of_arithmetic_and_traffic() -> None:
    def on_rank(comm: Collectives) -> list[float]:
        one, times = torch.zeros(10, 10), [comm.transport.now()]
        with SimulatedCompute(comm, gflop_per_s=1e-6, gbyte_per_s=1.0) as slow:
            one @ one
        times.append(comm.transport.now())
        with SimulatedCompute(comm, gflop_per_s=1.0, gbyte_per_s=1e-6):
            one @ one
            one.view(-1).detach()
            torch.empty(10)
        times.append(comm.transport.now())
        (span,) = slow.spans
        assert (span.start, span.stop) == (times[0], times[1])
        return [stop - start for start, stop in pairwise(times)]

    # 2 * 10^3 operations at 1,000 a second; then three matrices of 400 bytes at 1,000 bytes a second.
    assert lockstep(on_rank, ranks=2)[0] == pytest.approx([2.0, 1.2])


@pytest.mark.parametrize("speeds", [(0, 1), (1, -1)])
def test_a_pace_that_is_no_speed_is_refused(speeds: tuple) -> None:
    with pytest.raises(InputError, match="give speeds above 0"):
        SimulatedCompute(None, *speeds)  # type: ignore[arg-type]
