"""Stage 3: ranks that run other units of one size never take each other's weights, whatever carries them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zero_cases import sgd

from zerolab.collectives import Collectives, Request, build
from zerolab.collectives.transport import Transport, WrappedTransport
from zerolab.errors import MismatchError
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = [pytest.mark.timeout(100), pytest.mark.ranks]

WIDTH = 6


class Ordered(nn.Module):
    """Layers of one size, called in an order that the caller gives."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in "abcd":
            setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def units(self) -> list[nn.Module]:
        return list(self.children())

    def forward(self, x: Tensor, order: str) -> Tensor:
        for name in order:
            x = getattr(self, name)(x)
        return x


class Tagless(WrappedTransport):
    """Messages as NCCL has them: in order, and for whoever receives next."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.queues, self.posts_ahead = True, False

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Request:
        return super().isend(tensor, dst, 7)

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Request:
        return super().irecv(tensor, src, 7)

    def exchange(self, outgoing: Tensor, dst: int, incoming: Tensor, src: int, tag: int = 0) -> None:
        super().exchange(outgoing, dst, incoming, src, 7)


MADE: dict[str, Callable[[Transport], Collectives]] = {
    "torch": partial(build, impl="torch"),
    "tagless ring": lambda transport: build(Tagless(transport), "ring"),
    "ring": partial(build, impl="ring"),
    "shared": partial(build, impl="shared"),
}
ALIKE = [("abcd", "abcd"), ("acbd", "acbd"), ("abcd", "abcd"), ("dcba", "dcba")]


def run(
    transport: Transport, made: str, orders: list[tuple[str, str]], training: bool, prefetch: bool
) -> tuple[float, list[Tensor]]:
    """The largest error of a forward, beside the whole model's, and the parameters at the end."""
    comm = MADE[made](transport)
    engine = ZeroEngine(Ordered(), comm, 3, optimizer=sgd(), prefetch=prefetch)
    error = 0.0
    with torch.set_grad_enabled(training):
        for at, order in enumerate(orders):
            x = torch.ones(2, WIDTH)
            whole = Ordered()
            if at:
                whole.load_state_dict(engine.consolidate())
            out = engine(x, order[comm.rank])
            error = max(error, (out - whole(x, order[comm.rank])).abs().max().item())
            if training:
                engine.backward(out.square().mean())
                engine.step()
    ended = list(engine.consolidate().values())
    comm.close()
    return error, ended


def launched(*args: Any) -> list[tuple[float, list[Tensor]]]:
    return list(launch(run, *args, ranks=2, collectives="transport", device="cpu", timeout=40))


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("made", ["torch", "tagless ring"])
def test_an_order_that_changes_on_all_ranks_alike_is_right_in_every_pass(made: str, prefetch: bool) -> None:
    for training in (True, False):
        (error, one), (other_error, other) = launched(made, ALIKE, training, prefetch)
        assert max(error, other_error) < 1e-6
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


PARTED: dict[str, list[tuple[str, str]]] = {
    "at first": [("abcd", "acbd")],
    "later": [("abcd", "abcd"), ("abcd", "acbd")],
    "the first unit": [("abcd", "bacd")],
}


@pytest.mark.parametrize("when", PARTED)
@pytest.mark.parametrize("made", MADE)
def test_ranks_that_run_other_units_are_told_and_no_value_is_given(made: str, when: str) -> None:
    orders, training = PARTED[when], (list(MADE).index(made) + list(PARTED).index(when)) % 2 == 0
    with pytest.raises(MismatchError, match=r"other units \(rank 0 [ab], rank 1 [cb]: number|rank 0 is in #"):
        launched(made, orders, training, False)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_rank_runs_forwards_alone_where_none_are_gathered(stage: int) -> None:
    def run(transport: Transport) -> float:
        comm = MADE["torch"](transport)
        engine = ZeroEngine(Ordered(), comm, stage, optimizer=sgd())
        if comm.rank == 0:
            with torch.no_grad():
                engine(torch.ones(2, WIDTH), "abcd")
        loss = engine(torch.ones(2, WIDTH), "abcd").square().mean()
        engine.backward(loss)
        engine.step()
        comm.close()
        return loss.item()

    one, other = launch(run, ranks=2, collectives="transport", device="cpu", timeout=40)
    assert one == other


@pytest.mark.parametrize("made", ["torch", "tagless ring"])
def test_no_step_is_applied_after_other_units_came_back_in_backward(made: str) -> None:
    def swapped(transport: Transport) -> tuple[bool, str]:
        comm = MADE[made](transport)
        engine = ZeroEngine(Ordered(), comm, 3, optimizer=sgd(), prefetch=False)
        engine.backward(engine(torch.ones(2, WIDTH), "abcd").square().mean())
        before = [owned.tensor.clone() for owned in engine.optimizer_step.segments]
        # What a checkpoint would gather again, in an order of its own on each rank.
        for unit in engine.units[:2] if comm.rank else engine.units[1::-1]:
            unit.gather()
            unit.release()
        try:
            engine.step()
            said = ""
        except MismatchError as error:
            said = str(error)
        same = all(torch.equal(a, o.tensor) for a, o in zip(before, engine.optimizer_step.segments, strict=True))
        comm.close()
        return same, said

    for same, said in launch(swapped, ranks=2, collectives="transport", device="cpu", timeout=40):
        assert same and "the ranks gathered other units (rank 0 b, rank 1 a" in said


@pytest.mark.parametrize("made", ["ring", "tagless ring"])
def test_a_rank_that_ran_fewer_units_is_told_of_as_well(made: str) -> None:
    def compare(transport: Transport) -> str:
        comm = MADE[made](transport)
        try:
            comm._labels, comm._hides_labels = ["a", "b", "c"][: 3 - comm.rank], True
            comm.agree()
            said = ""
        except MismatchError as error:
            said = str(error)
        comm.close()
        return said

    for said in launch(compare, ranks=2, collectives="transport", device="cpu", timeout=40):
        assert "the ranks gathered other units (rank 0 c, rank 1 nothing: number 3 since" in said
