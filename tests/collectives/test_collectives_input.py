"""Calls that differ between ranks are named, and bad calls are refused before anything is sent."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from collective_cases import WORLDS, every_case, run, run_program

from zerolab.collectives import (
    Collectives,
    Link,
    LocalCollectives,
    LocalTransport,
    build,
    wire_bytes,
)
from zerolab.collectives.transport import Transport
from zerolab.errors import InputError, MismatchError, RankError

pytestmark = [pytest.mark.timeout(150), pytest.mark.filterwarnings("ignore:.*(quantize|nested)")]


def other_size(comm: Collectives) -> None:
    comm.barrier()
    comm.all_reduce(torch.ones(4 + (comm.rank == 1)))


def other_dtype(comm: Collectives) -> None:
    comm.barrier()
    comm.reduce_scatter(torch.ones(6, dtype=torch.float64 if comm.rank == 2 else torch.float32))


def other_call(comm: Collectives) -> None:
    comm.barrier()
    if comm.rank == 0:
        comm.all_gather(torch.ones(2))
    else:
        comm.all_reduce(torch.ones(6))


def other_label(comm: Collectives) -> None:
    comm.barrier()
    comm.all_gather_async(torch.ones(2), label=f"layer {comm.rank % 2}").wait()


MISMATCHES = [
    (other_size, "all_reduce of 4 float32", "all_reduce of 5 float32"),
    (other_dtype, "reduce_scatter of 6 float32", "reduce_scatter of 6 float64"),
    (other_call, "all_gather of 6 float32", "all_reduce of 6 float32"),
    (other_label, "all_gather of 6 float32 (layer 0)", "all_gather of 6 float32 (layer 1)"),
]


def called(value: Any) -> str:
    return "-".join(value) if isinstance(value, tuple) else getattr(value, "__name__", "")


def everywhere(all_of: list[int], one_of: list[int]) -> list[Any]:
    """Each mismatch in some worlds, by number, and one of them in others, where the same code finds it."""
    cases = [(WORLDS[at], *mismatch) for at in all_of for mismatch in MISMATCHES]
    return cases + [(WORLDS[at], *MISMATCHES[0]) for at in one_of]


@pytest.mark.ranks
@pytest.mark.parametrize(("world", "fn", "one", "other"), everywhere([0], [1, 3]), ids=called)
def test_checked_ranks_that_call_differently_are_named(
    world: tuple[str, str], fn: Callable[[Collectives], None], one: str, other: str
) -> None:
    with pytest.raises(MismatchError) as error:
        run(fn, ranks=3, world=world, check=True)
    assert f"#2 {one}" in str(error.value) and f"#2 {other}" in str(error.value)


@pytest.mark.ranks
@pytest.mark.parametrize(("world", "fn", "one", "other"), everywhere([0, 2], [1]), ids=called)
def test_unchecked_ranks_never_add_up_what_does_not_belong_together(
    world: tuple[str, str], fn: Callable[[Collectives], None], one: str, other: str
) -> None:
    with pytest.raises((MismatchError, RankError)) as error:
        run(fn, ranks=3, world=world)
    assert one in str(error.value) and other in str(error.value)


@pytest.mark.ranks
def test_checking_changes_no_value_and_is_not_counted_as_traffic() -> None:
    def count(comm: Collectives) -> tuple[list[str], dict[str, int]]:
        wrong = run_program(comm, every_case([torch.float32]))
        assert comm.meter is not None
        return wrong, comm.meter.bytes_by_collective()

    for world in (WORLDS[0], WORLDS[3]):
        assert run(count, ranks=3, world=world, check=True) == run(count, ranks=3, world=world)


# Refusals


class Recorded(Transport):
    """Messages that arrive at once, for wrappers to be seen at work."""

    def __init__(self, rank: int = 0, size: int = 2) -> None:
        self.rank, self.size = rank, size

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Any:
        return self

    irecv = isend

    def wait(self) -> None:
        pass


one_rank = LocalCollectives()
flat, square = torch.ones(4), torch.ones(2, 2)
REFUSED: list[tuple[Callable[[], object], list[str]]] = [
    (lambda: one_rank.all_reduce(torch.ones(2, dtype=torch.bool)), ["torch.bool", ".int()"]),
    (lambda: one_rank.all_reduce(torch.ones(2, dtype=torch.int64), average=True), ["torch.int64", ".float()"]),
    (lambda: one_rank.all_reduce(torch.eye(3).to_sparse()), ["sparse", "to_dense"]),
    (lambda: one_rank.broadcast(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)), ["quantized"]),
    (lambda: one_rank.all_reduce(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])), ["nested"]),
    (lambda: one_rank.all_reduce(torch.ones(4, 2).t()), ["not contiguous", ".contiguous()"]),
    (lambda: one_rank.all_reduce(flat.to("meta")), ["meta", "cpu", ".to("]),
    (lambda: one_rank.all_reduce(torch.ones(2, dtype=torch.complex64).conj()), ["conjugate", "resolve_conj"]),
    (lambda: one_rank.reduce_scatter(square), ["(2, 2)", "view(-1)"]),
    (lambda: one_rank.reduce_scatter(flat, out=torch.ones(3)), ["4 torch.float32", "3", "leave it out"]),
    (lambda: one_rank.reduce_scatter(flat, out=torch.ones(4).double()), ["torch.float64"]),
    (lambda: one_rank.reduce_scatter(flat, out=square), ["(2, 2)"]),
    (lambda: one_rank.reduce_scatter(flat, out=torch.ones(8)[::2]), ["contiguous"]),
    (lambda: one_rank.reduce_scatter(flat, out=flat.to("meta")), ["meta", "cpu"]),
    (lambda: one_rank.all_gather(square), ["(2, 2)", "view(-1)"]),
    (lambda: one_rank.all_gather(flat, numel=5), ["shard of 4", "5", "tensor_split"]),
    (lambda: one_rank.all_gather(flat, numel=-4), ["numel is -4"]),
    (lambda: one_rank.all_gather(flat, numel=4.0), ["numel is 4.0"]),  # type: ignore[arg-type]
    (lambda: one_rank.broadcast(flat, src=1), ["rank 1", "0 to 0"]),
    (lambda: one_rank.broadcast(flat, src="0"), ["rank '0'"]),  # type: ignore[arg-type]
    (lambda: one_rank.send(flat, 1), ["rank 1", "ranks=2"]),
    (lambda: one_rank.recv(flat, 0), ["rank 0", "ranks=2"]),
    (lambda: LocalCollectives(Recorded()), ["2", "RingCollectives"]),
    (lambda: build(LocalTransport(), "nccl"), ["'nccl'", "ring"]),
    (lambda: wire_bytes("reduce", 4, 4, 2, 0), ["'reduce'", "all_gather"]),
    (lambda: Link(0.0), ["gbit_per_s is 0.0"]),
    (lambda: Link(float("nan")), ["gbit_per_s is nan"]),
    (lambda: Link("10"), ["gbit_per_s is '10'"]),  # type: ignore[arg-type]
    (lambda: Link(1.0, -1.0), ["latency_us is -1.0"]),
]


@pytest.mark.parametrize(("call", "names"), REFUSED)
def test_a_bad_call_is_refused_by_value_and_with_a_way_out(call: Callable[[], object], names: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert all(name in str(refused.value) for name in names), str(refused.value)


def test_memory_that_one_call_would_both_read_and_overwrite_is_refused() -> None:
    def overlap(comm: Collectives) -> list[str]:
        whole = torch.arange(6.0)
        kept, said = whole.clone(), []
        for call in (
            lambda: comm.reduce_scatter(whole, out=whole[1 + comm.rank : 4 + comm.rank]),
            lambda: comm.all_gather(whole[2 - comm.rank : 5 - comm.rank], out=whole),
        ):
            try:
                call()
            except InputError as error:
                said.append(str(error))
        assert torch.equal(whole, kept)
        return said

    for rank, said in enumerate(run(overlap, ranks=2)):
        assert len(said) == 2 and all(f"begins at {3 * rank}" in one for one in said)


def test_peers_that_do_not_exist_are_refused() -> None:
    def send_to(comm: Collectives, peer: Any) -> None:
        comm.send(torch.ones(1), peer)

    for peer, says in ((2, "no rank 2"), (-1, "no rank -1"), (True, "no rank True")):
        with pytest.raises(RankError, match=says):
            run(send_to, peer, ranks=2)
    with pytest.raises(RankError, match="with itself"):
        run(lambda comm: comm.send(torch.ones(1), comm.rank), ranks=2)


def test_a_wrong_shard_is_refused_before_anything_is_sent() -> None:
    def gather(comm: Collectives) -> tuple[str, dict[str, int]]:
        assert comm.meter is not None
        try:
            comm.all_gather(torch.ones(2 + comm.rank), numel=9)
        except InputError as error:
            return str(error), comm.meter.bytes_by_collective()
        return "", {}

    said, sent = run(gather, ranks=2)[0]
    assert "shard of 2 where 5 are due" in said and sent == {}
