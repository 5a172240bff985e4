"""Models as people bring them, in plain torch: what `zero_models.py` has not. Each knows its batch and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

ROWS, WIDTH, VOCABULARY = 8, 8, 13
Loss = Callable[[Callable[..., Any], Any], Tensor]


@dataclass(frozen=True)
class Brought:
    """A model, the batch of a step as a tuple or a dict of tensors whose first dimension is that of the rows, and the
    loss that a user computes with a call of the model or the engine.

    by_parts   one process computes the ranks' parts one after the other, since what a row gives depends on the others
    """

    build: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    loss: Loss
    by_parts: bool = False


def seeded(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(step)


def numbers(step: int) -> tuple[Tensor, ...]:
    return (torch.randn(ROWS, WIDTH, generator=seeded(step)),)


def images(step: int) -> tuple[Tensor, ...]:
    return torch.randn(ROWS, 3, 8, 8, generator=seeded(step)), torch.randint(0, 4, (ROWS,), generator=seeded(step))


def sequences(step: int) -> tuple[Tensor, ...]:
    """Source and target tokens."""
    return tuple(torch.randint(0, VOCABULARY, (2, ROWS, 6), generator=seeded(step)))


def squares(call: Callable[..., Any], batch: Any) -> Tensor:
    return call(*batch).square().mean()


def classes(call: Callable[..., Any], batch: Any) -> Tensor:
    return F.cross_entropy(call(batch[0]), batch[1])


def next_tokens(call: Callable[..., Any], batch: Any) -> Tensor:
    source, target = batch
    return F.cross_entropy(call(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())


class Recurrent(nn.Module):
    """Two layers in both directions with a projection, then a GRU, whose last state is used; and a head in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, bidirectional=True, proj_size=3, batch_first=True)
        self.gru = nn.GRU(6, WIDTH, batch_first=True)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, last = self.gru(self.lstm(self.embedding(source))[0])
        state, found = (last[0], torch.zeros_like(last[0])), []
        for step in self.embedding(target).unbind(1):
            state = self.cell(step, state)
            found.append(self.head(state[0]))
        return torch.stack(found, 1)


class Translator(nn.Module):
    """nn.Transformer: an encoder and a decoder, each with a final norm; one embedding for source, target and output."""

    def __init__(self, by_hand: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 2, 2, 2, 12, dropout=0.0, batch_first=True, norm_first=by_hand)
        self.head = None if by_hand else nn.Linear(WIDTH, VOCABULARY, bias=False)
        if self.head is not None:
            self.head.weight = self.embedding.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.transformer(self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True)
        return F.linear(hidden, self.embedding.weight) if self.head is None else self.head(hidden)


class Block(nn.Module):
    """Of a ResNet: two convolutions with batch norm, and a shorter way beside them."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shorter = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        inside += self.shorter(x)
        return self.relu(inside)


def resnet() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    stages = nn.Sequential(nn.Sequential(Block(4, 4, 1), Block(4, 4, 1)), nn.Sequential(Block(4, 6, 2), Block(6, 6, 1)))
    return nn.Sequential(stem, stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


class Shared(nn.Module):
    """One layer under several names, called at each, as ALBERT has it; and one that is called on two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, 2, 12, 0.0, batch_first=True)] * 3)
        self.last = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.twin(x), self.twin(x.flip(1))
        pair = torch.stack([one, other], 1)
        for layer in self.layers:
            pair = layer(pair)
        return self.last[0](pair[:, 0]) * self.last[1](pair[:, 1])


class Borrowing(nn.Module):
    """The weight of a late layer is used before the layers, so its gradient comes after theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.layers[2].weight)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def parametrized() -> nn.Module:
    """Weights computed from others at each use, one of which writes to its buffers as it does."""
    scaled = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
    straight = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH))
    short = parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
    cached = parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH), orthogonal_map="cayley")
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), scaled, nn.Tanh(), straight, nn.Sequential(nn.Tanh(), short), cached)


class Adapted(nn.Module):
    """A frozen linear layer with a trained one of low rank beside it, kept as PEFT keeps them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + 2.0 * self.lora_B["default"](self.lora_A["default"](x))


def adapted() -> nn.Module:
    """An encoder that is frozen but for the adapters in its feed-forward layers and a new head."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, 0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).requires_grad_(False)
    for each in encoder.layers:
        each.linear1, each.linear2 = Adapted(each.linear1), Adapted(each.linear2)
    return nn.Sequential(nn.Unflatten(1, (2, WIDTH // 2)), nn.Linear(WIDTH // 2, WIDTH), encoder, nn.Linear(WIDTH, 2))


class Experts(nn.Module):
    """A router and experts, of which a row takes one: free rows the first four in turn, the others number 0."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleDict({f"expert_{at}": nn.Linear(WIDTH, WIDTH) for at in range(experts)})

    def forward(self, x: Tensor, free: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        chosen = torch.where(free, torch.arange(len(x)) % 4, 0)
        out = x.clone()
        for at in chosen.unique().tolist():
            rows = (chosen == at).nonzero()[:, 0]
            out = out.index_add(0, rows, weights[rows, at, None] * torch.tanh(self.experts[f"expert_{at}"](x[rows])))
        return out


class Mixture(nn.Module):
    """Layers of experts that rows use on some ranks only, in the first layer one that no row ever uses. With `again`
    they are called twice, and experts that a rank uses the first time it does not use the second."""

    def __init__(self, reentrant: bool | None = None, again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Experts(experts) for experts in (5, 4, 4, 4))
        self.head = nn.Linear(WIDTH, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        free, x = x[:, 0] > 0, self.first(x)
        for free_now in (free, ~free) if self.again else (free,):
            for layer in self.layers:
                reentrant = self.reentrant
                x = layer(x, free_now) if reentrant is None else checkpoint(layer, x, free_now, use_reentrant=reentrant)
        return self.head(x)


def half_free(step: int) -> tuple[Tensor, ...]:
    """Rows whose first number is positive in one half only: in odd steps the first, in even ones the second."""
    x = numbers(step)[0]
    x[:, 0] = x[:, 0].abs() * torch.tensor([1.0, -1.0]).repeat_interleave(ROWS // 2) * (-1) ** (step + 1)
    return (x,)


class Checkpointed(nn.Module):
    """Every layer of a stack in a checkpoint, as gradient_checkpointing_enable() has it; two in one as well."""

    def __init__(self, reentrant: bool, tied: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 2, 12, 0.0, batch_first=True) for _ in range(4))
        if tied:
            self.layers[3].linear1.weight = self.layers[2].linear1.weight
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)[:, None]
        x = checkpoint(lambda x: self.layers[1](self.layers[0](x)), x, use_reentrant=self.reentrant)
        for layer in self.layers[2:]:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


PLAIN: dict[str, Brought] = {
    "nn.LSTM, nn.GRU, nn.LSTMCell": Brought(Recurrent, sequences, next_tokens),
    "nn.Transformer, tied": Brought(Translator, sequences, next_tokens),
    "nn.Transformer, tied by hand": Brought(lambda: Translator(by_hand=True), sequences, next_tokens),
    "ResNet with batch norm": Brought(resnet, images, classes, by_parts=True),
    "layers under several names": Brought(Shared, numbers, squares),
    "a late layer's weight, used early": Brought(Borrowing, numbers, squares),
    "parametrizations": Brought(parametrized, numbers, squares),
    "frozen base with LoRA": Brought(adapted, numbers, squares),
    "experts": Brought(Mixture, half_free, squares),
    "experts, called twice": Brought(lambda: Mixture(again=True), half_free, squares),
    "experts, checkpoint": Brought(lambda: Mixture(reentrant=False), half_free, squares),
    "checkpoint": Brought(lambda: Checkpointed(reentrant=False), numbers, squares),
    "reentrant checkpoint": Brought(lambda: Checkpointed(reentrant=True), numbers, squares),
    "tied layers, reentrant checkpoint": Brought(lambda: Checkpointed(True, tied=True), numbers, squares),
}
