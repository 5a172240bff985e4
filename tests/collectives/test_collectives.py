"""Every implementation keeps the contract, in every world: values, order, traffic, names of calls.

The data are whole numbers small enough to be added without rounding in every dtype, so that sums are compared by
torch.equal; where the order of addition itself is the claim, they are not.
"""

import threading
import time
from collections.abc import Callable
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
    every_size_somewhere,
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

Claim = tuple[Any, Any]
GROUPED = [torch.float32, torch.bfloat16, torch.bool]


@pytest.mark.ranks
@every_size_somewhere
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
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_any_mix_of_calls_in_any_mode_equals_torch_in_lockstep(program: list[Step], ranks: int, place: str) -> None:
    assert run(run_at, place, program, ranks=ranks) == [[]] * ranks


@pytest.mark.ranks
@pytest.mark.parametrize("impl", ["ring", "shared", "torch"])
@given(st.lists(st.tuples(st.sampled_from(PLACES), programs), min_size=8, max_size=8), st.integers(2, 4))
@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_any_mix_of_calls_in_any_mode_equals_torch_in_processes(
    impl: str, placed: list[tuple[str, list[Step]]], ranks: int
) -> None:
    def run_all(comm: Collectives) -> list[str]:
        return [wrong for place, program in placed for wrong in run_at(comm, place, program)]

    assert run(run_all, ranks=ranks, world=("processes", impl)) == [[]] * ranks


# What holds on three ranks in every world: each function is a rank's, and gives what it should beside what it saw


def any_shape_is_taken(comm: Collectives) -> Claim:
    scalar = comm.all_reduce(torch.tensor(float(comm.rank)))
    matrix = comm.all_reduce(torch.full((2, 5), float(comm.rank)), average=True)
    sent = comm.broadcast(torch.full((3, 1), comm.rank), src=2)
    return [3.0, [[1.0] * 5] * 2, [[2]] * 3], [scalar.tolist(), matrix.tolist(), sent.tolist()]


def a_reduce_scatter_leaves_the_rest_of_its_input_as_it_was(comm: Collectives) -> Claim:
    own = torch.arange(11.0) + comm.rank
    kept = own.clone()
    comm.reduce_scatter(own)
    start, stop = chunk_bounds(11, comm.size)[comm.rank]
    intact = torch.equal(own, kept)
    comm.reduce_scatter(own, out=own[start:stop])
    kept[start:stop] = own[start:stop]
    return [True, kept.tolist()], [intact, own.tolist()]


def nobody_leaves_a_barrier_before_everybody_has_entered(comm: Collectives) -> Claim:
    """Rank 0 sends before it enters; whoever has left the barrier must find that the message has passed."""
    happened = []
    if comm.rank == 0:
        sending = comm.isend(torch.ones(1), 1)
        sending.wait()
        happened.append("sent")
    elif comm.rank == 1:
        comm.recv(torch.empty(1), 0)
        happened.append("received")
    comm.barrier()
    return [["sent"], ["received"], []][comm.rank], happened


def calls_run_in_the_order_of_issue(comm: Collectives) -> Claim:
    """Each call reads what the one before it wrote: any other order gives other numbers."""
    x = torch.ones(5)
    first = comm.all_reduce_async(x)
    second = comm.all_reduce_async(x)
    comm.all_reduce(x)  # queues behind both
    third = comm.all_reduce_async(x)
    given = [handle.wait() is x for handle in (third, second, first, third)]
    comm.all_reduce(x)
    return [[True] * 4, [3.0**5] * 5], [given, x.tolist()]


def messages_pass_beside_collectives_under_way(comm: Collectives) -> Claim:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    under_way = [comm.all_reduce_async(torch.ones(50_000)) for _ in range(4)]
    incoming = torch.empty(3)
    receiving = comm.irecv(incoming, left)
    comm.isend(torch.full((3,), float(comm.rank)), right).wait()
    receiving.wait()
    return [[float(left)] * 3, [3.0] * 4], [incoming.tolist(), [float(call.wait().mean()) for call in under_way]]


# And on two


def a_receive_posted_before_the_first_collective_takes_no_message_of_it(comm: Collectives) -> Claim:
    other = 1 - comm.rank
    incoming = torch.zeros(comm.size * 4, dtype=torch.int64)
    receiving = comm.irecv(incoming, other)
    total = comm.all_reduce(torch.ones(3))
    comm.isend(torch.full_like(incoming, comm.rank), other).wait()
    receiving.wait()
    return [[2.0] * 3, [other] * 8], [total.tolist(), incoming.tolist()]


def a_message_may_wait_for_a_call_that_is_under_way(comm: Collectives) -> Claim:
    """Rank 1 ends the call before it sends, so rank 0 must get on with it while it waits for the message."""
    summed, note = torch.ones(5), torch.zeros(1)
    if comm.rank == 0:
        handle = comm.all_reduce_async(summed)
        comm.recv(note, 1)
        handle.wait()
    else:
        comm.all_reduce(summed)
        comm.send(note + 7, 0)
    return [[2.0] * 5, [[7.0], [0.0]][comm.rank]], [summed.tolist(), note.tolist()]


def a_call_follows_one_that_writes_what_it_reads(comm: Collectives) -> Claim:
    """Nobody waits in between: a shard is reduced and gathered, and then its place is written once more."""
    found = []
    for _ in range(5):
        whole, shard = comm.allocate(6).fill_(comm.rank + 1.0), comm.allocate(3)
        comm.reduce_scatter_async(whole, out=shard)
        gathered = comm.all_gather_async(shard)
        comm.reduce_scatter_async(comm.allocate(6).fill_(5.0), out=shard)
        last = comm.all_reduce_async(whole)
        found.append([*gathered.wait().tolist(), *last.wait()[:1].tolist(), *shard[:1].tolist()])
    return [[3.0] * 6 + [3.0, 10.0]] * 5, found


def the_later_of_two_calls_that_write_one_place_is_what_stays(comm: Collectives) -> Claim:
    """Rank 1 comes late, so that rank 0 could have finished its share of the second before the first is over."""
    found = []
    for _ in range(3):
        place, ready = torch.ones(6), comm.allocate(6).fill_(4.0)
        comm.all_reduce_async(place)
        if comm.rank == 1:
            time.sleep(0.05)
        comm.reduce_scatter_async(ready, out=place[:3])
        comm.barrier()
        found.append(place.tolist())
    return [[8.0] * 3 + [2.0] * 3] * 3, found


def a_result_that_has_arrived_is_the_result(comm: Collectives) -> Claim:
    found = []
    for make in (torch.empty, comm.allocate):
        tensor = make(8).fill_(comm.rank + 1)
        if comm.rank == 1:
            time.sleep(0.2)
        call = comm.all_reduce_async(tensor)
        found.append(call.arrived().tolist())
        call.wait()
    return [[3.0] * 8] * 2, found


def tensors_of_inference_mode_are_added_inside_and_outside(comm: Collectives) -> Claim:
    with torch.inference_mode():
        losses = [torch.ones(3) * (comm.rank + 1) for _ in range(3)]
        comm.all_reduce(losses[0])
        comm.all_reduce_async(losses[1]).wait()
        gathered = comm.all_gather_async(losses[0][:1].clone()).wait()
    comm.all_reduce(losses[2])
    comm.broadcast(losses[2])
    return [3.0] * 5, [*(loss[0].item() for loss in losses), *gathered.tolist()]


def closing_finishes_what_others_still_wait_for(comm: Collectives) -> Claim:
    x = torch.ones(3)
    handles = [comm.all_reduce_async(x) for _ in range(3)]
    if comm.rank == 0:
        comm.close()
    return [8.0] * 3, handles[-1].wait().tolist()


CLAIMS: dict[int, list[Callable[[Collectives], Claim]]] = {
    3: [
        any_shape_is_taken,
        a_reduce_scatter_leaves_the_rest_of_its_input_as_it_was,
        nobody_leaves_a_barrier_before_everybody_has_entered,
        calls_run_in_the_order_of_issue,
        messages_pass_beside_collectives_under_way,
    ],
    2: [
        a_receive_posted_before_the_first_collective_takes_no_message_of_it,
        a_message_may_wait_for_a_call_that_is_under_way,
        a_call_follows_one_that_writes_what_it_reads,
        the_later_of_two_calls_that_write_one_place_is_what_stays,
        a_result_that_has_arrived_is_the_result,
        tensors_of_inference_mode_are_added_inside_and_outside,
        closing_finishes_what_others_still_wait_for,
    ],
}


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 3])
@every_world
def test_each_claim_holds(world: tuple[str, str], ranks: int) -> None:
    claims = CLAIMS[ranks]
    for seen in run(lambda comm: [claim(comm) for claim in claims], ranks=ranks, world=world):
        for claim, (expected, found) in zip(claims, seen, strict=True):
            assert found == expected, claim.__name__


@pytest.mark.ranks
def test_a_barrier_holds_the_early_until_the_late_has_come() -> None:
    def clocks(comm: Collectives) -> tuple[float, float]:
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
@pytest.mark.parametrize(("world", "ranks"), [(WORLDS[0], 2), (WORLDS[0], 3), (WORLDS[0], 4), (WORLDS[1], 4)])
def test_the_ring_adds_in_its_documented_order_to_the_bit(world: tuple[str, str], ranks: int) -> None:
    def sums(comm: Collectives) -> list[bool]:
        groups = [comm, *groups_at("a group of some", comm)]
        dtypes = (torch.float32, torch.bfloat16)
        return [same for group in groups for dtype in dtypes for same in ring_sums(group, 10_001, dtype)]

    assert all(all(same) for same in run(sums, ranks=ranks, world=world))


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
