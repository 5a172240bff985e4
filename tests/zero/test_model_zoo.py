"""Models as people bring them train as in plain torch: two ranks, three steps, the same bits at every stage."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from model_zoo import PLAIN, Brought, Mixture, half_free
from torch import Tensor
from zero_cases import largest_difference, sgd
from zoo_runs import built, compare, part

from zerolab.collectives import Collectives
from zerolab.errors import MismatchError
from zerolab.memory import Stage3Limits
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine
from zerolab.zero.units import Presence

TOLERANCE = 2e-6
"""Of losses and parameters, which are about 1: the same sums in another order."""


def hold(brought: Brought) -> None:
    found = compare(brought)
    assert found.digests == 1
    assert found.loss_away < TOLERANCE
    assert found.parameters_away < TOLERANCE
    assert found.moved > 1e-4


@pytest.mark.parametrize("name", PLAIN)
def test_a_model_of_plain_torch_trains_as_in_one_process_with_the_same_bits_at_every_stage(name: str) -> None:
    hold(PLAIN[name])


@pytest.mark.parametrize("summoned", [False, True])
def test_a_gradient_from_outside_a_unit_may_come_late_where_nothing_tells_of_its_use(summoned: bool) -> None:
    """Where parameters are whole for everybody: those that stay at stage 3, and all inside summon_full_params."""
    borrowing = PLAIN["a late layer's weight, used early"]

    def fit(comm: Collectives) -> dict[str, Tensor]:
        limits = Stage3Limits() if summoned else Stage3Limits(persistence_numel=100)
        engine = ZeroEngine(built(borrowing), comm, 3, optimizer=sgd(), limits=limits)
        with engine.summon_full_params() if summoned else nullcontext():
            loss = borrowing.loss(engine, part(borrowing.batch(0), comm.rank))
        engine.backward(loss)
        engine.step()
        return engine.consolidate()

    model = built(borrowing)
    borrowing.loss(model, borrowing.batch(0)).backward()
    expected = {name: (p - 0.1 * p.grad).detach() for name, p in model.named_parameters()}
    for state in launch(fit, ranks=2, world="lockstep", timeout=60):
        assert largest_difference(state, expected) < TOLERANCE


@pytest.mark.parametrize("name", ["experts", "experts, checkpoint"])
def test_layers_with_unused_experts_leave_in_their_turn_of_backward(name: str) -> None:
    """At its end those are gone, whether a rank used all of their experts or not."""
    experts = PLAIN[name]

    def here(comm: Collectives) -> set[str]:
        engine = ZeroEngine(built(experts), comm, 3, lr=0.1)
        loss = experts.loss(engine, part(experts.batch(0), comm.rank))
        found: set[str] = set()
        engine.model.first.weight.register_hook(
            lambda _: found.update(unit.name for unit in engine.units if unit.presence is Presence.GATHERED)
        )
        engine.backward(loss)
        return found

    for found in launch(here, ranks=2, world="lockstep", timeout=60):
        assert "first" in found and not found & {"layers.1", "layers.2", "layers.3", "head"}


def test_idle_experts_in_a_reentrant_checkpoint_are_a_mismatch_that_is_named_at_stage_3() -> None:
    def fit(comm: Collectives) -> None:
        engine = ZeroEngine(Mixture(reentrant=True), comm, 3, optimizer=sgd())
        (x,) = half_free(1)
        engine.backward(engine(part(x, comm.rank)).square().mean())

    with pytest.raises(MismatchError, match="same collectives in the same order"):
        launch(fit, ranks=2, world="lockstep")


def rows_of(section: str) -> list[str]:
    """The models that a section of docs/models.md names."""
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text().split(f"\n## {section}\n")[1]
    table = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    return [line.split("|")[1].strip() for line in table[2:]]


def test_the_page_of_models_names_those_that_are_tried() -> None:
    assert rows_of("Plain torch") == list(PLAIN)
