"""On the virtual clock a rank has one wire out and one wire in: exact times of the shapes that messages take."""

import pytest
import torch

from zerolab.collectives import Collectives, Link
from zerolab.ranks import launch, spend
from zerolab.ranks.lockstep.wires import Wire, Wires

BIT = Link(gbit_per_s=1.0)
MILLION_BITS = 31_250
"""Elements of float32 that take a millisecond."""

pytestmark = pytest.mark.timeout(60)


def milliseconds(way, ranks: int = 4, **settings) -> float:
    return 1e3 * launch(way, ranks=ranks, world="lockstep", link=BIT, timeout=20, **settings).seconds


def scatter(comm: Collectives) -> None:
    """A star: rank 0 sends to everybody at once."""
    if comm.rank == 0:
        for request in [comm.isend(torch.ones(MILLION_BITS), rank) for rank in range(1, comm.size)]:
            request.wait()
    else:
        comm.recv(torch.empty(MILLION_BITS), 0)


def collect(comm: Collectives) -> None:
    """The same star, inward."""
    if comm.rank:
        comm.send(torch.ones(MILLION_BITS), 0)
    else:
        for request in [comm.irecv(torch.empty(MILLION_BITS), rank) for rank in range(1, comm.size)]:
            request.wait()


def exchange_all(comm: Collectives) -> None:
    """Everybody sends to everybody, and receives in step s from the s-th neighbour: no two at once to one rank."""
    others = [(comm.rank + step) % comm.size for step in range(1, comm.size)]
    sending = [comm.isend(torch.ones(MILLION_BITS), other) for other in others]
    for other in reversed(others):
        comm.recv(torch.empty(MILLION_BITS), other)
    for request in sending:
        request.wait()


def circle(comm: Collectives) -> None:
    comm.all_gather(torch.ones(MILLION_BITS))


def both_ways(comm: Collectives) -> None:
    """Two ranks send to each other: the wire is full duplex."""
    receiving = comm.irecv(torch.empty(MILLION_BITS), 1 - comm.rank)
    comm.send(torch.ones(MILLION_BITS), 1 - comm.rank)
    receiving.wait()


@pytest.mark.parametrize("way", [scatter, collect, exchange_all, circle])
@pytest.mark.parametrize("ranks", [2, 5])
def test_a_rank_sends_and_receives_one_message_after_the_other(way, ranks: int) -> None:
    assert milliseconds(way, ranks) == pytest.approx(ranks - 1, rel=1e-9)


def test_a_rank_sends_while_it_receives() -> None:
    assert milliseconds(both_ways, 2) == pytest.approx(1.0, rel=1e-9)


def test_two_pairs_do_not_share_a_wire() -> None:
    def pairs(comm: Collectives) -> None:
        if comm.rank % 2:
            comm.recv(torch.empty(MILLION_BITS), comm.rank - 1)
        else:
            comm.send(torch.ones(MILLION_BITS), comm.rank + 1)

    assert milliseconds(pairs) == pytest.approx(1.0, rel=1e-9)


def test_a_broadcast_by_scatter_and_gather_pays_for_each_part() -> None:
    def broadcast(comm: Collectives) -> None:
        comm.broadcast(torch.ones(4 * MILLION_BITS))

    # Three parts from the source, one after the other, then three steps of the ring.
    assert milliseconds(broadcast) == pytest.approx(3 + 3, rel=1e-9)


def test_a_lane_and_its_rank_share_the_wires() -> None:
    def both(comm: Collectives) -> float:
        handle = comm.all_gather_async(torch.ones(MILLION_BITS))
        if comm.rank:
            comm.recv(torch.empty(MILLION_BITS), 0)
        else:
            comm.send(torch.ones(MILLION_BITS), 1)
        handle.wait()
        return comm.transport.now()

    assert [1e3 * clock for clock in launch(both, ranks=2, world="lockstep", link=BIT)] == pytest.approx([2.0, 2.0])


def test_a_message_that_is_late_in_turn_but_early_on_the_clock_finds_its_gap() -> None:
    def on_rank(comm: Collectives) -> float:
        if comm.rank == 0:
            spend(1.0)
            comm.send(torch.ones(MILLION_BITS), 1)
        elif comm.rank == 1:
            late = comm.irecv(torch.empty(MILLION_BITS), 0)
            early = comm.irecv(torch.empty(MILLION_BITS), 2)
            early.wait()
            clock = comm.transport.now()
            late.wait()
            return clock
        else:
            comm.send(torch.ones(MILLION_BITS), 1)
        return comm.transport.now()

    # The first rank's turn, and its message at second 1, come before the third's message at second 0.
    assert launch(on_rank, ranks=3, world="lockstep", link=BIT) == pytest.approx([1.001, 0.001, 0.001])


def test_a_wire_joins_what_touches_and_fills_gaps_that_are_long_enough() -> None:
    wire = Wire()
    for start, stop in [(0.0, 1.0), (3.0, 4.0), (1.0, 2.0), (6.0, 7.0)]:
        wire.take(start, stop)
    assert wire.busy == [(0.0, 2.0), (3.0, 4.0), (6.0, 7.0)]
    assert [wire.free(0.5, seconds) for seconds in (1.0, 2.0, 3.0)] == [2.0, 4.0, 7.0]
    wire.take(2.0, 3.0)
    assert wire.busy == [(0.0, 4.0), (6.0, 7.0)]


def test_sums_that_differ_by_rounding_leave_no_gap_and_need_none() -> None:
    wires = Wires()
    ends = [wires.carry(0, 1, 0.0, 0.1)[1] for _ in range(1000)]
    assert ends[-1] == pytest.approx(100.0) and len(wires._out[0].busy) == 1
    wires.carry(0, 1, 200.0, 0.3)
    # Three tenths fit exactly before it, however they add up.
    for _ in range(3):
        _, end = wires.carry(0, 1, 200.0 - (0.1 + 0.2), 0.1)
    assert end == pytest.approx(200.0)


def test_a_message_of_no_time_waits_for_no_wire() -> None:
    wires = Wires()
    wires.carry(0, 1, 0.0, 1.0)
    assert wires.carry(0, 1, 0.5, 0.0) == (0.5, 0.5)


def test_only_ranks_that_exchange_messages_have_wires() -> None:
    wires = Wires()
    wires.carry(70_000, 1, 0.0, 1.0)
    assert (list(wires._out), list(wires._in)) == ([70_000], [1])


def test_a_trace_says_when_each_message_was_posted_set_out_and_arrived() -> None:
    trace = launch(scatter, ranks=4, world="lockstep", link=BIT, trace=True).trace
    sends = [event for event in trace if event.kind == "send"]
    assert [1e3 * event.start for event in sends] == [0.0] * 3
    assert [1e3 * event.out for event in sends] == pytest.approx([0.0, 1.0, 2.0])
    assert [1e3 * event.end for event in sends] == pytest.approx([1.0, 2.0, 3.0])
