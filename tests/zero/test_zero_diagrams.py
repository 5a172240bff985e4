"""Units change their states as the diagram of `Presence` draws it, and in no other way."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine
from zerolab.zero.units import Unit

WIDTH = 8


class Skipping(nn.Module):
    """Layers in order; a forward may leave out one that the last one ran."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, skip: int | None = None) -> torch.Tensor:
        for at, layer in enumerate(self.layers):
            x = x if at == skip else layer(x)
        return x.square().mean()


@contextmanager
def changes(kind: type, field: str) -> Iterator[set[tuple[str, str]]]:
    """The names of the states between which `field` of objects of this kind goes, on all ranks of this process."""
    seen: set[tuple[str, str]] = set()

    def noted(self: Any, name: str, value: Any) -> None:
        if name == field and name in self.__dict__:
            seen.add((self.__dict__[name].name, value.name))
        object.__setattr__(self, name, value)

    kind.__setattr__ = noted  # type: ignore[assignment]
    try:
        yield seen
    finally:
        del kind.__setattr__


def train(comm: Collectives, stage: int) -> None:
    """Steps with a micro-batch, with two, with one deferred, and with a layer left out; and one that is forgotten."""
    engine, x = ZeroEngine(Skipping(), comm, stage, lr=0.1), torch.ones(2, WIDTH)
    for passes in ([{}], [{}, {}], [{"reduce": False}, {"reduce": False}, {}], [{"skip": 2}]):
        for options in passes:
            skip = options.pop("skip", None)
            engine.backward(engine(x, skip), **options)
        engine.step()
    engine.backward(engine(x), reduce=False)
    engine.zero_grad()


def test_units_go_through_the_states_that_are_drawn() -> None:
    with changes(Unit, "presence") as seen:
        launch(train, 3, ranks=2, world="lockstep")
    drawn = {("SHARDED", "GATHERING"), ("GATHERING", "GATHERED"), ("GATHERED", "SHARDED")}
    left = {("GATHERING", "SHARDED")}
    assert seen == drawn | left
