"""Models of every shape that bit the systems before us; each maps [rows, 6] to numbers, and starts alike everywhere."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zero_cases import VARIANTS, sgd

from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

WIDTH = 6


class Residual(nn.Module):
    """What most of the models below are made of."""

    def __init__(self, inside: int = 5) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, inside)
        self.down = nn.Linear(inside, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def tied_within_a_unit() -> nn.Module:
    block = Residual(WIDTH)
    block.down.weight = block.up.weight
    return nn.Sequential(block, Residual())


def tied_across_units() -> nn.Module:
    there, back = (WIDTH, 7), (7, WIDTH)
    layers = [nn.Linear(*there), nn.Linear(*back), Residual(), nn.Linear(*there), nn.Linear(*back), nn.Linear(*there)]
    model = nn.Sequential(*layers)
    model[3].weight = model[0].weight
    model[5].weight = model[0].weight
    return model


def partly_frozen() -> nn.Module:
    model = nn.Sequential(Residual(), Residual(), Residual(), Residual())
    model[0].requires_grad_(False)
    model[2].up.requires_grad_(False)
    model[3].requires_grad_(False)
    return model


class Unused(nn.Module):
    """A layer that no forward calls, one whose result is dropped, and a parameter that its own layer ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(4))
        self.layers[1].ignored = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.layers[2](x)
        return self.layers[3](self.layers[1](x))


class Awkward(nn.Module):
    """A 0-dim parameter, one without elements, one that takes no gradient because it is whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.none = nn.Parameter(torch.zeros(0, 3))
        self.whole = nn.Parameter(torch.arange(3), requires_grad=False)
        self.flags = nn.Parameter(torch.tensor([True, False]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.none.sum() + self.whole[1] * self.flags[0]


class Twice(nn.Module):
    """One layer called twice in a forward, the others once; with recomputation or without."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(3))
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        for at in (0, 1, 2, 1, 0):
            x = checkpoint(self.layers[at], x, use_reentrant=False) if self.recompute else self.layers[at](x)
        return x


class CheckpointedTogether(nn.Module):
    """Two layers, two units, in one checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for at in (0, 2):
            x = checkpoint(lambda x, at=at: self.layers[at + 1](self.layers[at](x)), x, use_reentrant=False)
        return x


class FrozenBelow(nn.Module):
    """Needs the weight of its first, frozen part after all its gradients are known."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, 5).requires_grad_(False)
        self.up = nn.Linear(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(torch.tanh(self.down(x)))


class ReentrantCheckpoint(nn.Module):
    """Torch's older checkpoint, which runs a backward inside backward; around one layer, or one called twice."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Residual(), FrozenBelow(), FrozenBelow(), Residual()])
        self.times = times
        self.reentrant = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        for _ in range(self.times):
            x = checkpoint(self.layers[1], x, use_reentrant=self.reentrant)
        return self.layers[3](self.layers[2](x))


class TwoDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 5)
        self.wider = nn.Linear(5, 5, dtype=torch.float64)
        self.narrow = nn.Linear(5, WIDTH, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.wider(self.wide(x).double()).bfloat16()).float()


class Direct(nn.Module):
    """Parameters that hang on the model itself, beside its layers; one is handed to a layer as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(0, 1, WIDTH))
        self.layers = nn.ModuleList(nn.Bilinear(WIDTH, WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x, self.shift.expand_as(x))) + self.shift
        return x


@dataclass
class Output:
    hidden: Tensor
    extra: dict[str, list[Tensor]]


class Structured(nn.Module):
    """Gives back a dataclass, takes tensors by keyword in a nest, and changes its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, *, inputs: dict[str, tuple[Tensor, ...]]) -> Output:
        (x,) = inputs["x"]
        x.mul_(0.5)
        return Output(torch.tanh(self.linear(x)), {"gates": [torch.sigmoid(x)]})


class Structures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Structured() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            out = layer(inputs={"x": (x * 1.0,)})
            x = out.hidden * out.extra["gates"][0]
        return x


class ViewOut(nn.Module):
    """Gives back a view of its result, which the caller overwrites in part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(x)).t()


class OverwrittenViews(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ViewOut() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
            x[0].zero_()
            x = x.t().clone()
        return x


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x.view(-1, 2, WIDTH))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x.view(-1, 2, WIDTH))[0])


class Sparse(nn.Module):
    """An embedding whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, WIDTH, sparse=True)
        self.layers = nn.Sequential(Residual(), Residual())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + self.table(x.abs().sum(1).long() % 9))


class Image(nn.Module):
    """A convolution in channels-last order, norms with buffers, and a weight computed from two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(3).eval()
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(9, 2))

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        image = F.pad(x, (0, 0)).view(-1, 2, 1, 3).relu()
        return self.head(self.norm(self.conv(image)).flatten(1))


class FromOutside(nn.Module):
    """Layers whose weights are used without them: factors in lists and nested dicts, a manual tie, a penalty on all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(WIDTH, 2, bias=False) for _ in range(3))
        self.up = nn.ModuleDict({"up": nn.ParameterList(torch.full((WIDTH, 2), 0.1 * at) for at in range(3))})
        self.layers[1].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for layer, down, up in zip(self.layers, self.down, self.up["up"], strict=True):
            x = torch.tanh(layer(x) + F.linear(F.linear(x, down.weight), up)) @ layer.weight.t()
        penalty = sum(parameter.square().sum() for parameter in self.parameters())
        return F.linear(x, self.layers[0].weight[:2]) + 0.01 * penalty


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain sequential": lambda: nn.Sequential(Residual(), nn.ReLU(inplace=True), Residual(), nn.Linear(WIDTH, 1)),
    "fewer elements than ranks": lambda: nn.Sequential(nn.Linear(WIDTH, 1), nn.Linear(1, 1, bias=False)),
    "tied within a unit": tied_within_a_unit,
    "tied across units": tied_across_units,
    "partly frozen": partly_frozen,
    "unused": Unused,
    "scalar, empty, whole numbers": lambda: nn.Sequential(Residual(), Awkward(), Residual()),
    "used twice": Twice,
    "used twice, recomputed": lambda: Twice(recompute=True),
    "two units in one checkpoint": CheckpointedTogether,
    "reentrant checkpoint": ReentrantCheckpoint,
    "two dtypes": lambda: nn.Sequential(Residual(), TwoDtypes(), TwoDtypes()),
    "parameters of the model itself": Direct,
    "structured arguments and outputs": Structures,
    "overwritten views": OverwrittenViews,
    "transformer encoder": Encoder,
    "lstm": Recurrent,
    "sparse gradients": Sparse,
    "image": Image,
    "weights used from outside": FromOutside,
    "one layer": lambda: nn.Linear(WIDTH, 3),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def loss_of(output: Any) -> Tensor:
    return output.float().square().mean()


# A small model at every stage, on two ranks in lockstep.

STAGES = range(4)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Residual(), Residual(7), Residual(), nn.Linear(WIDTH, 3))


def rows(rank: int, at: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * at + rank))


def lockstep(fn: Callable[..., Any], *args: Any, ranks: int = 2) -> list[Any]:
    return list(launch(fn, *args, ranks=ranks, world="lockstep", timeout=60))


def at_every_stage(run: Callable[[Collectives, Callable[..., ZeroEngine]], Any], **options: Any) -> list[Any]:
    """What `run(comm, new_engine)` returns on each of two ranks, at each stage in turn."""

    def all_stages(comm: Collectives) -> list[Any]:
        found = []
        for stage, variant in VARIANTS:
            given = {"optimizer": sgd(), **options, **variant}
            found.append(run(comm, lambda stage=stage, given=given: ZeroEngine(model(), comm, stage, **given)))
        return found

    return [one for of_rank in lockstep(all_stages) for one in of_rank]
