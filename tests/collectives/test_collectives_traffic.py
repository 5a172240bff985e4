"""What collectives cost: bytes by the meter, seconds by the link, spans by the tracer."""

from itertools import product
from typing import Any

import pytest
import torch
from collective_cases import WORLDS, every_size_somewhere, run
from hypothesis import given
from hypothesis import strategies as st

import zerolab.collectives.observe as link_module
from zerolab.collectives import (
    Collectives,
    Link,
    TorchCollectives,
    build,
    overlap_seconds,
    phase,
    wire_bytes,
)
from zerolab.collectives.observe import merge
from zerolab.collectives.transport import Transport
from zerolab.flat import chunk_sizes

pytestmark = pytest.mark.timeout(150)


def count_traffic(comm: Collectives, numel: int) -> tuple[dict[str, int], dict[str, int], dict[str, int], bool]:
    own = torch.ones(numel)
    assert comm.meter is not None
    comm.meter.reset()
    with phase("first"):
        comm.all_reduce(own.clone())
        comm.reduce_scatter(own)
        handle = comm.all_gather_async(own.tensor_split(comm.size)[comm.rank], numel)
    handle.wait()
    with phase("second"):
        comm.all_reduce(own.double())
        comm.all_reduce_async(own.bfloat16()).wait()
    meter = comm.meter
    assert meter is not None
    return (
        meter.bytes_by_collective("first"),
        meter.bytes_by_collective("second"),
        meter.calls_by_collective(),
        meter.nominal,
    )


def moved_bytes(name: str, numel: int, itemsize: int, ranks: int, rank: int) -> int:
    """What a rank takes from peers' memory, or writes to it."""
    own = chunk_sizes(numel, ranks)[rank]
    taken = {"reduce_scatter": (ranks - 1) * own, "all_gather": numel - own, "all_reduce": 2 * (ranks - 1) * own}
    return taken[name] * itemsize


@pytest.mark.parametrize("name", ["reduce_scatter", "all_gather", "all_reduce"])
@given(numel=st.integers(0, 10_000), ranks=st.integers(1, 9))
def test_shared_memory_moves_in_all_what_the_ring_sends(name: str, numel: int, ranks: int) -> None:
    moved = [moved_bytes(name, numel, 4, ranks, rank) for rank in range(ranks)]
    sent = [wire_bytes(name, numel, 4, ranks, rank) for rank in range(ranks)]
    assert sum(moved) == sum(sent)
    assert numel % ranks or moved == sent


@pytest.mark.ranks
@every_size_somewhere
def test_the_meter_counts_what_the_formula_says_to_the_byte(world: tuple[str, str], ranks: int) -> None:
    numels = (0, 3, 1001)
    due = moved_bytes if world[1] == "shared" else wire_bytes
    for rank, counts in enumerate(run(lambda comm: [count_traffic(comm, n) for n in numels], ranks=ranks, world=world)):
        for numel, (first, second, calls, nominal) in zip(numels, counts, strict=True):
            names = ("all_gather", "all_reduce", "reduce_scatter")
            assert sum(first.values()) == sum(due(name, numel, 4, ranks, rank) for name in names)
            for name, counted in first.items():
                assert counted == due(name, numel, 4, ranks, rank)
            assert sum(second.values()) == due("all_reduce", numel, 10, ranks, rank)
            assert calls == {"all_gather": 1, "all_reduce": 3, "reduce_scatter": 1}
            assert nominal == (world[1] == "torch")


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("world", "ranks"), [*((WORLDS[0], ranks) for ranks in (2, 3, 4)), (WORLDS[1], 3), (WORLDS[3], 3)], ids=str
)
def test_a_broadcast_and_a_barrier_cost_what_the_ring_sends(world: tuple[str, str], ranks: int) -> None:
    """From every rank, in lengths that N divides or does not; what torch hides is stated by the same formula."""
    numels = (0, 3, 12, 1001)

    def counted(comm: Collectives) -> dict[tuple[int, int], int]:
        found = {}
        assert comm.meter is not None
        for numel, src in product(numels, range(comm.size)):
            comm.meter.reset()
            comm.broadcast(torch.ones(numel), src)
            found[numel, src] = comm.meter.bytes_by_collective().get("broadcast", 0)
        comm.meter.reset()
        comm.barrier()
        return found | {(-1, 0): comm.meter.bytes_by_collective()["barrier"]}

    for rank, found in enumerate(run(counted, ranks=ranks, world=world)):
        assert found.pop((-1, 0)) == wire_bytes("barrier", 0, 0, ranks, rank) == 2 * (ranks - 1)
        for (numel, src), sent in found.items():
            assert sent == wire_bytes("broadcast", numel, 4, ranks, rank, src)


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_wire_bytes_of_all_ranks_are_n_minus_one_times_the_tensor(numel: int, size: int) -> None:
    for name, rounds in (("reduce_scatter", 1), ("all_gather", 1), ("all_reduce", 2)):
        total = sum(wire_bytes(name, numel, 4, size, rank) for rank in range(size))
        assert total == rounds * (size - 1) * numel * 4
    for src in range(size):
        # Each chunk but rank src's own leaves it once more.
        total = sum(wire_bytes("broadcast", numel, 4, size, rank, src) for rank in range(size))
        assert total == ((size - 1) * numel + numel - chunk_sizes(numel, size)[src]) * 4


def test_messages_of_the_rank_function_count_as_send_and_reset_forgets() -> None:
    def talk(comm: Collectives) -> list[dict[str, int]]:
        meter = comm.meter
        assert meter is not None
        with phase("talk"):
            if comm.rank == 0:
                comm.send(torch.zeros(6), 1)
            else:
                comm.recv(torch.zeros(6), 0)
        counted = meter.bytes_by_collective("talk")
        meter.reset()
        return [counted, meter.bytes_by_collective()]

    assert run(talk, ranks=2) == [[{"send": 24}, {}], [{}, {}]]


# Links and traces


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_on_a_link_a_ring_takes_what_the_formula_says(name: str, ranks: int) -> None:
    link = Link(gbit_per_s=2.0, latency_us=30.0)
    numel = 12_000

    def call(comm: Collectives) -> None:
        numbers = numel if name != "all_gather" else numel // comm.size
        getattr(comm, name)(torch.ones(numbers))

    virtual = run(call, ranks=ranks, link=link).seconds
    rounds = 2 if name == "all_reduce" else 1
    by_hand = rounds * (ranks - 1) * (30e-6 + numel / ranks * 4 * 8 / 2e9)
    assert virtual == pytest.approx(by_hand, rel=1e-9)
    assert link.ring_seconds(name, numel, 4, ranks) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_on_a_link_a_broadcast_takes_what_the_formula_says_from_any_rank(ranks: int) -> None:
    link, numel = Link(gbit_per_s=2.0, latency_us=30.0), 12_000
    by_hand = 2 * (ranks - 1) * (30e-6 + numel / ranks * 4 * 8 / 2e9)
    assert link.ring_seconds("broadcast", numel, 4, ranks) == pytest.approx(by_hand, rel=1e-9)
    for src in range(ranks):
        virtual = run(lambda comm, src: comm.broadcast(torch.ones(numel), src), src, ranks=ranks, link=link).seconds
        assert virtual == pytest.approx(by_hand, rel=1e-9)
    waited = run(lambda comm: comm.barrier(), ranks=ranks, link=link).seconds
    assert waited == pytest.approx(link.ring_seconds("barrier", 0, 0, ranks), rel=1e-9)
    assert waited == pytest.approx(2 * (ranks - 1) * (30e-6 + 8 / 2e9), rel=1e-9)


class Recorded(Transport):
    """Messages that arrive at once, for wrappers to be seen at work."""

    def __init__(self, rank: int = 0, size: int = 2) -> None:
        self.rank, self.size = rank, size

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Any:
        return self

    irecv = isend

    def wait(self) -> None:
        pass


class FakeTime:
    """A clock that only sleep moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(link_module, "time", time)
    return time


@pytest.mark.parametrize("impl", ["ring", "torch"])
def test_a_linked_collective_waits_for_the_links_time_in_real_seconds(
    impl: str, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchCollectives, "_all_reduce", lambda *_: None)
    link = Link(gbit_per_s=1.0, latency_us=5.0)
    build(Recorded(), impl, link=link).all_reduce(torch.ones(1000))
    assert fake_time.now - 100.0 == pytest.approx(2 * (5e-6 + 500 * 4 * 8 / 1e9))


def test_a_linked_rank_sends_and_receives_one_message_after_the_other(fake_time: FakeTime) -> None:
    comm = build(Recorded(size=4), "ring", link=Link(gbit_per_s=1.0))
    message = torch.ones(31_250)  # a million bits, a millisecond
    posted, sending = [], []
    for rank in (1, 2, 3):
        sending.append(comm.isend(message, rank))
        posted.append(1e3 * (fake_time.now - 100.0))
    # What the receiver adds is its own wire's time: they have their messages at 1, 2 and 3 ms.
    assert posted == pytest.approx([0.0, 1.0, 2.0])
    for request in sending:
        request.wait()
    assert 1e3 * (fake_time.now - 100.0) == pytest.approx(3.0)
    begin = fake_time.now
    for request in [comm.irecv(message, rank) for rank in (1, 2, 3)]:
        request.wait()
        # Once more, which costs nothing in any world.
        request.wait()
    assert 1e3 * (fake_time.now - begin) == pytest.approx(3.0)


def test_a_linked_rank_sends_while_it_receives(fake_time: FakeTime) -> None:
    comm = build(Recorded(), "ring", link=Link(gbit_per_s=1.0))
    message = torch.ones(31_250)
    for _ in range(3):
        comm.transport.exchange(message, 1, message, 1)
    assert 1e3 * (fake_time.now - 100.0) == pytest.approx(3.0)


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=6).map(
    lambda starts: [(start, start + length) for start, length in starts]
)


@given(intervals, intervals)
def test_overlap_is_the_time_that_both_cover(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    def covered(spans: list[tuple[int, int]]) -> set[int]:
        return {at for start, stop in spans for at in range(start, stop)}

    assert overlap_seconds(one, other) == overlap_seconds(other, one) == len(covered(one) & covered(other))
    assert sum(stop - start for start, stop in merge(one)) == len(covered(one))
