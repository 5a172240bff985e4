"""Whatever writes to shards: nobody reads them at that moment, and a write that fails is heard of by all."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_zero_offload import fault
from torch import nn

from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import OffloadError, StateError
from zerolab.memory import Stage3Limits
from zerolab.offload import Offload
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = [pytest.mark.timeout(60), pytest.mark.ranks]

sgd = partial(torch.optim.SGD, lr=0.1)


def layer() -> nn.Linear:
    made = nn.Linear(16, 16, bias=False)
    nn.init.constant_(made.weight, 1 / 16 + 0.1)
    return made


def read_late(comm: Any, seconds: float) -> None:
    """From here on this rank copies the others' shards late."""
    gather = comm._all_gather

    def late(shard: torch.Tensor, out: torch.Tensor) -> None:
        time.sleep(seconds)
        gather(shard, out)

    comm._all_gather = late


def in_summon(engine: ZeroEngine) -> None:
    with engine.summon_full_params():
        weight = engine.model.get_parameter("weight")
        with torch.no_grad():
            weight.div_(weight.norm())


def by_load(engine: ZeroEngine) -> None:
    with torch.no_grad():
        seen = engine(torch.ones(1, 16))
    engine.load_state_dict({"weight": torch.full((16, 16), 1 / 16)})
    assert torch.allclose(seen, torch.full((1, 16), 2.6)), "a forward before the load has the values from before it"


def by_step(engine: ZeroEngine) -> None:
    engine.backward(engine(torch.ones(1, 16)).sum())
    with torch.no_grad():
        seen = engine(torch.ones(1, 16))
    # The gradient is 1 everywhere, so that the step takes 0.1 of each weight.
    engine.step()
    assert torch.allclose(seen, torch.full((1, 16), 2.6)), "a forward before the step has the values from before it"


@pytest.mark.parametrize("write", [in_summon, by_load, by_step])
def test_a_shard_is_written_when_no_rank_reads_it_any_more(write: Callable[[ZeroEngine], None]) -> None:
    """In shared memory a rank goes on when it has all others' shards; a slow one may still copy."""

    def run(comm: Collectives) -> float:
        engine = ZeroEngine(layer(), comm, 3, optimizer=sgd)
        read_late(comm, 0.3 * comm.rank)
        write(engine)
        return engine.consolidate()["weight"].norm().item()

    assert launch(run, ranks=2, timeout=30) == pytest.approx([1.0, 1.0])


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(9.0).view(3, 3))
        self.waves = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.waves.real.sum()


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda p: p.t(),
    "turned": lambda p: p.flip(0),
    "the same": lambda p: p,
    "its first row everywhere": lambda p: p[:1].expand(3, 3),
}


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("view", VIEWS)
def test_data_may_be_another_view_of_the_same_memory(view: str, stage: int) -> None:
    model = Square()
    expected = VIEWS[view](model.weight.detach().clone()).clone()
    conjugate = model.waves.detach().clone().conj().resolve_conj()
    engine = ZeroEngine(model, LocalCollectives(), stage, optimizer=sgd)
    with engine.summon_full_params():
        model.weight.data = VIEWS[view](model.weight.data)
        model.waves.data = model.waves.data.conj()
    state = engine.consolidate()
    assert torch.equal(state["weight"], expected) and torch.equal(state["waves"], conjugate)


def test_a_load_whose_disk_fails_on_one_rank_is_refused_on_all(tmp_path: Path) -> None:
    """Before the parameters that stay whole are handed around: the others would wait for them."""

    def run(comm: Collectives) -> str:
        torch.manual_seed(0)
        offload = Offload(parameters="disk", path=tmp_path)
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        engine = ZeroEngine(model, comm, 3, optimizer=sgd, offload=offload, limits=Stage3Limits(persistence_numel=20))
        assert any(bucket.persistent for bucket in engine.buckets)
        state = engine.state_dict()
        with fault("pwritev", 0, comm.rank == 1), pytest.raises(OffloadError) as failed:
            engine.load_state_dict(state)
        with pytest.raises(StateError, match="ended half-way"):
            engine(torch.ones(1, 8))
        engine.close()
        return str(failed.value)

    said = launch(run, ranks=2, timeout=30)
    assert said[0] == said[1] and "rank 1 failed to swap" in said[0]


def test_a_gather_that_failed_is_said_once_and_a_later_write_works() -> None:
    def run(comm: Any) -> float:
        engine = ZeroEngine(layer(), comm, 3, optimizer=sgd)
        state, gather = engine.state_dict(), comm._all_gather

        def fail(*_: object) -> None:
            raise OffloadError("it fell out of the window")

        comm._all_gather = fail
        with pytest.raises(OffloadError, match="window"):
            engine(torch.ones(1, 16))
        comm._all_gather = gather
        engine.zero_grad()
        engine.load_state_dict({name: value * 2 for name, value in state.items()})
        engine.backward(engine(torch.ones(1, 16)).sum())
        engine.step()
        return engine.consolidate()["weight"].mean().item()

    assert launch(run, ranks=2, world="lockstep", timeout=30) == pytest.approx([2 / 16 + 0.1] * 2)
