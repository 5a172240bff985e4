"""Stage 3: who asks for parameters outside their unit's forward gets them, and a view keeps its elements.

On real processes: who reads an emptied storage is ended by the system.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zerolab import ZeroEngine, launch
from zerolab.collectives import Collectives

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]
WIDTH = 6
Use = Callable[["Three", Tensor], Tensor]


class Three(nn.Module):
    def __init__(self, use: Use) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.row = Row()
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def a_view_across_another_visit(model: Three, x: Tensor) -> Tensor:
    view = model.layers[0].weight.t()
    return F.linear(x, model.layers[1].weight).exp() * view.abs().sum() + model.layers[2](x)


def a_view_across_its_unit(model: Three, x: Tensor) -> Tensor:
    view = model.layers[0].weight.t()
    return model.layers[0](x) @ view.exp()


def a_detached_view_behind_its_unit(model: Three, x: Tensor) -> Tensor:
    # Backward comes to the layer first, whose gradients are complete then, and to the product after it.
    view = model.layers[0].weight.detach()
    return model.layers[1](model.layers[0](torch.tanh(model.layers[2](x)) @ view))


def a_view_of_a_view(model: Three, x: Tensor) -> Tensor:
    view = model.layers[0].weight.t()[1:4]
    return model.layers[1](x)[:, 1:4] @ (view * view) + model.layers[0](x)


def a_view_without_gradients_in_a_graph(model: Three, x: Tensor) -> Tensor:
    with torch.no_grad():
        view = model.layers[0].weight.t()
    return model.layers[2](model.layers[1](x) @ view)


def two_units_in_one_operation(model: Three, x: Tensor) -> Tensor:
    low, high = model.layers[0], model.layers[1]
    return model.layers[2](x) @ (low.weight @ high.weight) + torch.cat([low.bias, high.bias]).sum()


def a_sparse_copy(model: Three, x: Tensor) -> Tensor:
    return model.layers[0](x) @ model.layers[1].weight.to_sparse().to_dense()


class Row(nn.Module):
    """Returns a view of its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.ones(2, WIDTH))

    def forward(self) -> Tensor:
        return self.rows[0]


def what_a_unit_returns(model: Three, x: Tensor) -> Tensor:
    row = model.row()
    return model.layers[1](model.layers[0](x) + row) * row.exp()


def run(comm: Collectives, uses: dict[str, Use]) -> dict[str, list[list[Tensor]]]:
    """What each use gives at stages 0 and 3."""
    return {name: [run_one(comm, use, stage) for stage in (0, 3)] for name, use in uses.items()}


def run_one(comm: Collectives, use: Use, stage: int) -> list[Tensor]:
    engine = make_engine(comm, use, stage)
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1 + comm.rank))
    seen = []
    with torch.no_grad():
        # Before any loss, and beside one.
        seen.append(engine(x))
    for _ in range(2):
        loss = engine(x).square().mean()
        view = engine.model.layers[1].weight.t()
        with torch.no_grad():
            # Also between a forward and its backward, and the penalty of that.
            seen.append(engine(x))
        engine.state_dict()
        loss = loss + view[0].square().sum()
        engine.zero_grad()
        engine.backward(loss + engine.model.layers[2].weight.t().square().sum())
        engine.step()
    return [*seen, *engine.state_dict().values()]


def make_engine(comm: Collectives, use: Use, stage: int) -> ZeroEngine:
    model = Three(use)
    units = [*model.layers, model.row]
    return ZeroEngine(model, comm, stage, optimizer=partial(torch.optim.SGD, lr=0.1), units=units)


USES = [
    a_view_across_another_visit,
    a_view_across_its_unit,
    a_detached_view_behind_its_unit,
    a_view_of_a_view,
    a_view_without_gradients_in_a_graph,
    two_units_in_one_operation,
    a_sparse_copy,
    what_a_unit_returns,
]


def test_a_view_keeps_its_elements_and_all_stages_their_bits() -> None:
    for found in launch(run, {use.__name__: use for use in USES}, ranks=2, timeout=100):
        for name, (plain, sharded) in found.items():
            assert all(map(torch.equal, plain, sharded)) and len(plain) == len(sharded) > 3, name


def squared_view(model: Three, x: Tensor) -> Tensor:
    return model.layers[1](x) * model.layers[0].weight.t().square().sum()


def test_a_second_loss_has_the_views_of_its_own_graph() -> None:
    def run(comm: Collectives) -> bool:
        ended = []
        for stage in (0, 3):
            engine = make_engine(comm, squared_view, stage)
            losses = [engine(torch.full((2, WIDTH), at)).sum() for at in (1.0, 2.0)]
            for loss in losses:
                engine.backward(loss)
            engine.step()
            ended.append(engine.state_dict().values())
        return all(map(torch.equal, *ended))

    assert launch(run, ranks=2, timeout=60) == [True, True]


def test_a_unit_stays_for_its_views_no_longer_than_somebody_has_one_or_a_step_comes() -> None:
    def run(comm: Collectives) -> list[list[str]]:
        engine = make_engine(comm, squared_view, 3)
        x, seen = torch.ones(2, WIDTH), []

        def look() -> None:
            here = [u.name for u in engine.units if any(b.whole.untyped_storage().nbytes() for b in u.buckets)]
            seen.append(here)

        loss = engine(x).sum()
        look()
        engine.backward(loss)
        look()
        loss = engine(x).sum()
        view = engine.model.layers[2].weight.t()[0]
        engine.backward(loss)
        look()
        engine.step()
        look()
        return [*seen, list(view.shape)]

    kept = [["layers.0"], [], ["layers.2"], []]
    assert launch(run, ranks=2, world="lockstep", timeout=60) == [[*kept, [WIDTH]]] * 2


@pytest.mark.parametrize("stage", [0, 3])
def test_what_was_written_before_an_error_stays(stage: int) -> None:
    def run(comm: Collectives) -> list[float]:
        engine = make_engine(comm, lambda model, x: model.layers[0](x), stage)
        with suppress(KeyError), engine.summon_full_params():
            engine.model.layers[0].weight.data.fill_(0.5)
            raise KeyError
        with torch.no_grad():
            return [float((engine(torch.ones(1, WIDTH)) - engine.state_dict()["layers.0.bias"])[0, 0])]

    assert launch(run, ranks=2, world="lockstep", timeout=60) == [[WIDTH * 0.5]] * 2
