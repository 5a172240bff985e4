"""Every implementation keeps the contract, in every world: values, order, traffic, names of calls.

The data are whole numbers small enough to be added without rounding in every dtype, so that sums are compared by
torch.equal; where the order of addition itself is the claim, they are not.
"""

import threading
import time
from typing import Any

import pytest
import torch
from collective_cases import (
    DTYPES,
    PLACES,
    SIZES,
    WORLDS,
    Step,
    every_case,
    every_size,
    every_world,
    groups_at,
    run,
    run_at,
    run_program,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zerolab.collectives import (
    Collectives,
    LocalCollectives,
    LocalTransport,
    RingCollectives,
    torch_,
)
from zerolab.collectives.call import current_call
from zerolab.collectives.handle import Handle, Streamed
from zerolab.errors import InputError
from zerolab.flat import chunk_bounds

pytestmark = pytest.mark.timeout(150)

GROUPED = [torch.float32, torch.bfloat16, torch.bool]


@pytest.mark.ranks
@every_size
@every_world
def test_every_collective_equals_torch_for_every_dtype_and_size(world: tuple[str, str], ranks: int) -> None:
    assert run(run_program, every_case(DTYPES), ranks=ranks, world=world) == [[]] * ranks


@pytest.mark.ranks
@every_world
def test_every_collective_equals_torch_in_groups_of_ranks(world: tuple[str, str]) -> None:
    def run_everywhere(comm: Collectives) -> list[str]:
        return [wrong for place in PLACES[1:] for wrong in run_at(comm, place, every_case(GROUPED))]

    assert run(run_everywhere, ranks=4, world=world) == [[]] * 4


def test_local_collectives_keep_the_same_contract() -> None:
    assert run_program(LocalCollectives(), every_case(DTYPES)) == []


floats = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
steps = st.builds(
    Step,
    name=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "broadcast"]),
    numel=st.sampled_from(SIZES),
    dtype=floats,
    average=st.booleans(),
    asynchronous=st.booleans(),
    given_out=st.sampled_from(["none", "apart", "in place"]),
    src=st.integers(0, 3),
)
programs = st.lists(steps, min_size=1, max_size=12)


@given(programs, st.integers(1, 5), st.sampled_from(PLACES))
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_any_mix_of_calls_in_any_mode_equals_torch_in_lockstep(program: list[Step], ranks: int, place: str) -> None:
    assert run(run_at, place, program, ranks=ranks) == [[]] * ranks


@pytest.mark.ranks
@pytest.mark.parametrize("impl", ["ring", "shared", "torch"])
@given(st.lists(st.tuples(st.sampled_from(PLACES), programs), min_size=8, max_size=8), st.integers(2, 4))
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_any_mix_of_calls_in_any_mode_equals_torch_in_processes(
    impl: str, placed: list[tuple[str, list[Step]]], ranks: int
) -> None:
    def run_all(comm: Collectives) -> list[str]:
        return [wrong for place, program in placed for wrong in run_at(comm, place, program)]

    assert run(run_all, ranks=ranks, world=("processes", impl)) == [[]] * ranks


@pytest.mark.ranks
@every_world
def test_all_reduce_and_broadcast_take_any_shape(world: tuple[str, str]) -> None:
    def shapes(comm: Collectives) -> list[Any]:
        scalar = comm.all_reduce(torch.tensor(float(comm.rank)))
        matrix = comm.all_reduce(torch.full((2, 5), float(comm.rank)), average=True)
        sent = comm.broadcast(torch.full((3, 1), comm.rank), src=2)
        return [scalar.tolist(), matrix.tolist(), sent.tolist()]

    assert run(shapes, ranks=3, world=world) == [[3.0, [[1.0] * 5] * 2, [[2]] * 3]] * 3


@pytest.mark.ranks
@every_world
def test_a_reduce_scatter_leaves_the_rest_of_its_input_as_it_was(world: tuple[str, str]) -> None:
    def scatter(comm: Collectives) -> bool:
        own = torch.arange(11.0) + comm.rank
        kept = own.clone()
        comm.reduce_scatter(own)
        start, stop = chunk_bounds(11, comm.size)[comm.rank]
        intact = torch.equal(own, kept)
        comm.reduce_scatter(own, out=own[start:stop])
        kept[start:stop] = own[start:stop]
        return intact and torch.equal(own, kept)

    assert run(scatter, ranks=3, world=world) == [True] * 3


@pytest.mark.ranks
@every_world
def test_nobody_leaves_a_barrier_before_everybody_has_entered(world: tuple[str, str]) -> None:
    """Rank 0 sends before it enters; whoever has left the barrier must find that the message has passed."""

    def meet(comm: Collectives) -> list[str]:
        happened = []
        if comm.rank == 0:
            sending = comm.isend(torch.ones(1), 1)
            sending.wait()
            happened.append("sent")
        elif comm.rank == 1:
            comm.recv(torch.empty(1), 0)
            happened.append("received")
        comm.barrier()
        return [*happened, "left"]

    assert run(meet, ranks=3, world=world) == [["sent", "left"], ["received", "left"], ["left"]]


@pytest.mark.ranks
def test_a_barrier_holds_the_early_until_the_late_has_come() -> None:
    def clocks(comm: Collectives) -> tuple[float, float]:
        import time

        time.sleep(0.05 * comm.rank)
        entered = time.monotonic()
        comm.barrier()
        return entered, time.monotonic()

    for impl in ("ring", "torch"):
        times = run(clocks, ranks=3, world=("processes", impl))
        assert min(left for _, left in times) >= max(entered for entered, _ in times)


# Order


def sum_in_ring_order(summands: list[torch.Tensor]) -> torch.Tensor:
    """Chunk c is g[c+1] + g[c+2] + ... + g[c], added from the left."""
    size = len(summands)
    chunks = []
    for c in range(size):
        total = summands[(c + 1) % size].tensor_split(size)[c]
        for step in range(2, size + 1):
            total = total + summands[(c + step) % size].tensor_split(size)[c]
        chunks.append(total)
    return torch.cat(chunks)


def ring_sums(comm: Collectives, numel: int, dtype: torch.dtype) -> list[bool]:
    every = [torch.randn(numel, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(comm.size)]
    expected = sum_in_ring_order(every)
    start, stop = chunk_bounds(numel, comm.size)[comm.rank]
    own = every[comm.rank]
    alone = comm.reduce_scatter(own)
    within = comm.all_reduce(own.clone())
    in_line = comm.all_reduce_async(own.clone()).wait()
    return [
        torch.equal(alone, expected[start:stop]),
        torch.equal(within, expected),
        torch.equal(in_line, expected),
        # The claim would be empty if any order gave these bits.
        comm.size < 3 or not torch.equal(expected, sum_in_ring_order(every[::-1])),
    ]


@pytest.mark.ranks
@every_size
@pytest.mark.parametrize("world", WORLDS[:2], ids="-".join)
def test_the_ring_adds_in_its_documented_order_to_the_bit(world: tuple[str, str], ranks: int) -> None:
    def sums(comm: Collectives) -> list[bool]:
        groups = [comm, *groups_at("a group of some", comm)]
        dtypes = (torch.float32, torch.bfloat16)
        return [same for group in groups for dtype in dtypes for same in ring_sums(group, 10_001, dtype)]

    assert all(all(same) for same in run(sums, ranks=ranks, world=world))


@pytest.mark.ranks
@every_world
def test_asynchronous_and_ordinary_calls_run_in_the_order_of_issue(world: tuple[str, str]) -> None:
    """Each call reads what the one before it wrote: any other order gives other numbers."""

    def chain(comm: Collectives) -> list[float]:
        x = torch.ones(5)
        first = comm.all_reduce_async(x)
        second = comm.all_reduce_async(x)
        comm.all_reduce(x)  # queues behind both
        third = comm.all_reduce_async(x)
        for handle in (third, second, first, third):
            assert handle.wait() is x
        comm.all_reduce(x)
        return x.tolist()

    assert run(chain, ranks=3, world=world) == [[3.0**5] * 5] * 3


@pytest.mark.ranks
def test_messages_of_a_rank_function_pass_beside_collectives_under_way() -> None:
    def both(comm: Collectives) -> list[float]:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        under_way = [comm.all_reduce_async(torch.ones(50_000)) for _ in range(4)]
        incoming = torch.empty(3)
        receiving = comm.irecv(incoming, left)
        comm.isend(torch.full((3,), float(comm.rank)), right).wait()
        receiving.wait()
        assert all(bool((handle.wait() == comm.size).all()) for handle in under_way)
        return incoming.tolist()

    for world in WORLDS:
        assert run(both, ranks=3, world=world) == [[2.0] * 3, [0.0] * 3, [1.0] * 3]


@pytest.mark.ranks
@every_world
def test_a_message_may_wait_for_a_call_that_is_under_way(world: tuple[str, str]) -> None:
    """Rank 1 ends the call before it sends, so rank 0 must get on with it while it waits for the message."""

    def depend(comm: Collectives) -> list[float]:
        summed, note = torch.ones(5), torch.zeros(1)
        if comm.rank == 0:
            handle = comm.all_reduce_async(summed)
            comm.recv(note, 1)
            handle.wait()
        else:
            comm.all_reduce(summed)
            comm.send(note + 7, 0)
        return [summed.sum().item(), note.item()]

    assert run(depend, ranks=2, world=world) == [[10.0, 7.0], [10.0, 0.0]]


@pytest.mark.ranks
@every_world
def test_a_receive_posted_before_the_first_collective_takes_no_message_of_it(world: tuple[str, str]) -> None:
    def post_first(comm: Collectives) -> list[float]:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        incoming = torch.zeros(comm.size * 4, dtype=torch.int64)
        receiving = comm.irecv(incoming, left)
        total = comm.all_reduce(torch.ones(3))
        comm.isend(torch.full_like(incoming, comm.rank), right).wait()
        receiving.wait()
        return [total.sum().item(), incoming.float().mean().item()]

    assert run(post_first, ranks=2, world=world) == [[6.0, 1.0], [6.0, 0.0]]


@pytest.mark.ranks
@every_world
def test_a_call_follows_one_that_writes_what_it_reads(world: tuple[str, str]) -> None:
    """Nobody waits in between: a shard is reduced and gathered, and then its place is written once more."""

    def chain(comm: Collectives) -> list[float]:
        whole, shard = comm.allocate(6).fill_(comm.rank + 1.0), comm.allocate(3)
        comm.reduce_scatter_async(whole, out=shard)
        gathered = comm.all_gather_async(shard)
        comm.reduce_scatter_async(comm.allocate(6).fill_(5.0), out=shard)
        last = comm.all_reduce_async(whole)
        return [*gathered.wait().tolist(), *last.wait()[:1].tolist(), *shard[:1].tolist()]

    for _ in range(5):
        assert run(chain, ranks=2, world=world) == [[3.0] * 6 + [3.0, 10.0]] * 2


@pytest.mark.ranks
@every_world
def test_the_later_of_two_calls_that_write_one_place_is_what_stays(world: tuple[str, str]) -> None:
    """Rank 1 comes late, so that rank 0 could have finished its share of the second before the first is over."""

    def write_twice(comm: Collectives) -> list[float]:
        place, ready = torch.ones(6), comm.allocate(6).fill_(4.0)
        comm.all_reduce_async(place)
        if comm.rank == 1:
            time.sleep(0.05)
        comm.reduce_scatter_async(ready, out=place[:3])
        comm.barrier()
        return place.tolist()

    for _ in range(3):
        assert run(write_twice, ranks=2, world=world) == [[8.0] * 3 + [2.0] * 3] * 2


@pytest.mark.ranks
@every_world
def test_closing_finishes_what_others_still_wait_for(world: tuple[str, str]) -> None:
    def leave_early(comm: Collectives) -> float:
        x = torch.ones(3)
        handles = [comm.all_reduce_async(x) for _ in range(3)]
        if comm.rank == 0:
            comm.close()
        return handles[-1].wait()[0].item()

    assert run(leave_early, ranks=2, world=world) == [8.0, 8.0]


class Failing(LocalTransport):
    """A world whose collectives fail on entry."""

    def entered(self, call: Any) -> None:
        raise RuntimeError(f"no way into {call}")


def test_a_failed_asynchronous_call_raises_at_every_wait_and_leaves_no_call_behind() -> None:
    comm = RingCollectives(Failing())
    handle = comm.all_reduce_async(torch.ones(2))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no way into #1 all_reduce of 2 float32"):
            handle.wait()
    with pytest.raises(RuntimeError, match="no way into #2 barrier"):
        comm.barrier()
    assert current_call.get() is None


def test_no_thread_is_started_for_ordinary_calls_or_left_after_close() -> None:
    before = threading.active_count()
    comm = LocalCollectives()
    comm.all_reduce(torch.ones(2))
    assert threading.active_count() == before
    comm.all_reduce_async(torch.ones(2)).wait()
    assert threading.active_count() == before + 1
    comm.close()
    assert threading.active_count() == before


# On a GPU's streams, which this machine need not have


class Seen:
    """Stands for a stream, an event or a tensor, and notes what happens to it."""

    def __init__(self, *_: Any) -> None:
        self.device = None
        self.recorded: list[Any] = []
        self.awaited: list[Any] = []

    def record_stream(self, stream: Any) -> None:
        self.recorded.append(stream)

    def wait_event(self, event: Any) -> None:
        self.awaited.append(event)


@pytest.mark.parametrize("waiting", ["who asked", "another stream", "nobody"])
def test_memory_of_an_awaited_call_is_reused_in_stream_order_and_that_of_a_forgotten_one_is_guarded(
    waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, asking, other, tensor = Seen(), Seen(), Seen(), Seen()
    current = asking if waiting == "who asked" else other
    monkeypatch.setattr(torch.cuda, "Event", Seen)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    streamed = Streamed(stream, asking, [tensor])  # type: ignore[arg-type, list-item]
    done, handle = streamed.done, Handle("result", streamed)
    del streamed
    if waiting != "nobody":
        assert handle.wait() == handle.wait() == "result"
        assert set(current.awaited) == {done}
    del handle
    assert tensor.recorded == {"who asked": [], "another stream": [other], "nobody": [stream]}[waiting]


# What NCCL knows of dtypes, which this machine need not have

NCCL = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64}


def carried_dtypes(comm: Collectives) -> tuple[set[torch.dtype], list[str], str]:
    """The dtypes of what was handed to torch, what came out wrong, and what is said of a sum that nobody makes."""
    handed: set[torch.dtype] = set()

    def noting(call: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            handed.update(value.dtype for value in args if isinstance(value, torch.Tensor))
            return call(*args, **kwargs)

        return noted

    for place, name in (
        (torch_, "_all_gather_single"), (torch_, "_reduce_scatter_single"), (torch_.dist, "broadcast"),
        (torch_.dist, "all_reduce"),
    ):  # fmt: skip
        setattr(place, name, noting(getattr(place, name)))
    wrong = run_program(comm, every_case(DTYPES))
    try:
        said = str(comm.all_reduce(torch.ones(2, dtype=torch.int16)))
    except InputError as error:
        said = str(error)
    return handed, wrong, said


@pytest.mark.ranks
def test_dtypes_that_nccl_lacks_travel_as_bytes_and_their_sums_are_refused_by_name() -> None:
    for handed, wrong, said in run(carried_dtypes, ranks=2, world=("processes", "torch")):
        assert handed <= NCCL and wrong == []
        assert "all_reduce of torch.int16, which NCCL and gloo do not add; convert" in said
