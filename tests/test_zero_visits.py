"""Stage 3: a view of a parameter that was taken outside its unit's forward keeps its elements while it is used.

On real processes: who reads an emptied storage is ended by the system.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zerolab import ZeroEngine, launch
from zerolab.collectives import Collectives

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(120)]
WIDTH = 6


class Three(nn.Module):
    def __init__(self, use: Callable[["Three", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
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


def run(comm: Collectives, use: Callable[[Three, Tensor], Tensor], stage: int) -> list[Tensor]:
    engine = ZeroEngine(Three(use), comm, stage, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1))
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1 + comm.rank))
    seen = []
    with torch.no_grad():
        # Before any loss, and beside one.
        seen.append(engine(x))
    for _ in range(2):
        loss = engine(x).square().mean()
        with torch.no_grad():
            # Also between a forward and its backward, and the penalty of that.
            seen.append(engine(x))
        engine.backward(loss + engine.model.layers[1].weight.t()[0].square().sum())
        engine.step()
    return [*seen, *engine.state_dict().values()]


USES = [
    a_view_across_another_visit,
    a_view_across_its_unit,
    a_detached_view_behind_its_unit,
    a_view_of_a_view,
]


@pytest.mark.parametrize("use", USES)
def test_a_view_keeps_its_elements_and_all_stages_their_bits(use: Callable[[Three, Tensor], Tensor]) -> None:
    plain, sharded = (launch(run, use, stage, ranks=2, timeout=60) for stage in (0, 3))
    for one, other in zip(plain, sharded, strict=True):
        assert all(map(torch.equal, one, other))
