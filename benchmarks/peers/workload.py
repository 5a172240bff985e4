"""What every contender trains: a model and the batches of a rank, both functions of seeds alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from zerolab.models import build

LEARNING_RATE = 1e-3
WIDTH, BLOCKS = 512, 8


class Block(nn.Module):
    """A residual pair of linear layers, without attention: nothing but matrices, 2.1 million parameters."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    """Eight blocks, 17 million parameters; or so many units, of one block or of several."""

    def __init__(self, width: int = WIDTH, units: int = BLOCKS, blocks: int = 1) -> None:
        super().__init__()
        made = ([Block(width) for _ in range(blocks)] for _ in range(units))
        self.blocks = nn.ModuleList(unit[0] if blocks == 1 else nn.Sequential(*unit) for unit in made)

    def units(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return F.mse_loss(x, target)


@dataclass(frozen=True)
class Workload:
    """`make()` builds the model, `units(model)` are its layers, `batch(step, rank)` is what a rank sees."""

    what: str
    make: Callable[[], nn.Module]
    units: Callable[[nn.Module], list[nn.Module]]
    batch: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()


def generator(step: int, rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * step + rank)


def stack(rows: int, width: int = WIDTH, units: int = BLOCKS, blocks: int = 1) -> Workload:
    def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(rows, width, generator=generator(step, rank))
        return x, x.roll(1, dims=1)

    what = f"a stack of {units * blocks} blocks, {width} wide, {rows} rows a rank"
    make = partial(Stack, width, units, blocks)
    return Workload(what, make, lambda model: list(model.get_submodule("blocks").children()), batch)


def llama(rows: int, tokens: int = 64) -> Workload:
    def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        text = torch.randint(256, (rows, tokens + 1), generator=generator(step, rank))
        return text[:, :-1], text[:, 1:]

    what = f"LLaMA tiny, {rows} sequences of {tokens} tokens a rank"
    # The embedding and the head share a weight, which FSDP2 wants with the root.
    return Workload(
        what,
        lambda: build("llama", "tiny", max_seq_len=tokens),
        lambda model: list(model.get_submodule("blocks").children()),
        batch,
    )


class Nothing(nn.Module):
    """The smallest model, for the first use of a contender's code."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.layers[1](self.layers[0](x)), target)


def nothing(rows: int) -> Workload:
    def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(rows, 8), torch.zeros(rows, 8)

    return Workload("two small layers", Nothing, lambda model: list(model.get_submodule("layers").children()), batch)


WORKLOADS: dict[str, Callable[..., Workload]] = {"stack": stack, "llama": llama, "nothing": nothing}
DEFAULT_ROWS = {"stack": 32, "llama": 2}
