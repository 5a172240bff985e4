"""What the tests of ZeRO share: small models, batches cut for any N, and a training run told by a `Case`."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives, Handle
from zerolab.models import GPT2, GPT2Config, Llama, LlamaConfig
from zerolab.zero import StepResult, ZeroEngine
from zerolab.zero.bucket import Bucket

ROWS, LENGTH, VOCABULARY = 24, 8, 31
VARIANTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (0, {}),
    (1, {"reduction": "all_reduce"}),
    (1, {"reduction": "reduce_scatter"}),
    (2, {}),
    (3, {}),
)
"""Every stage, in both of stage 1's ways."""

Groups = Callable[[str, nn.Parameter], dict[str, Any]]


def llama(checkpoint: bool = False) -> nn.Module:
    torch.manual_seed(0)
    shape = LlamaConfig(VOCABULARY, max_seq_len=LENGTH, dim=12, layers=2, heads=2, kv_heads=1, ffn_dim=20)
    return Llama(shape, checkpoint=checkpoint)


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    return GPT2(GPT2Config(VOCABULARY, max_seq_len=LENGTH, dim=12, layers=2, heads=2))


def batches(steps: int, micro_batches: int = 1) -> Iterable[list[torch.Tensor]]:
    """Per step, the micro-batches of token ids; the same rows in the same order however they are cut."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
        yield list(rows.chunk(micro_batches))


def part_of(rows: torch.Tensor, comm: Collectives) -> torch.Tensor:
    return rows.chunk(comm.size)[comm.rank]


def decay_matrices(name: str, parameter: nn.Parameter) -> dict[str, Any]:
    return {"weight_decay": 0.1 if parameter.dim() >= 2 else 0.0}


def adamw(lr: float = 1e-3, **options: Any) -> Callable[..., torch.optim.Optimizer]:
    return partial(torch.optim.AdamW, lr=lr, **{"fused": True, **options})


def sgd(lr: float = 0.1, **options: Any) -> Callable[..., torch.optim.Optimizer]:
    return partial(torch.optim.SGD, lr=lr, **options)


@dataclass(frozen=True)
class Case:
    """How a model is trained for a few steps."""

    optimizer: Callable[..., torch.optim.Optimizer] = field(default_factory=adamw)
    micro_batches: int = 1
    reduce_each: bool = True
    clip_norm: float | None = None
    checkpoint: bool = False
    groups: Groups | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    model: Callable[..., nn.Module] = llama
    steps: int = 10

    def build(self) -> nn.Module:
        return self.model(checkpoint=True) if self.checkpoint else self.model()


@dataclass(frozen=True)
class Trained:
    """What came of it: a digest of the bits of all parameters, the parameters, losses, and what each step said."""

    digest: str
    parameters: dict[str, torch.Tensor]
    losses: list[float]
    steps: list[StepResult]


def train(comm: Collectives, case: Case, stage: int, among: Collectives | None = None, **variant: Any) -> Trained:
    """Train with an engine, on this rank's part of each batch, which the ranks of `among` share: those of `comm`, if no
    others are named."""
    engine = ZeroEngine(
        case.build().to(comm.device),
        comm,
        stage,
        optimizer=case.optimizer,
        clip_norm=case.clip_norm,
        groups=case.groups,
        **{**case.engine, **variant},
    )
    losses, steps = [], []
    for micro_batches in batches(case.steps, case.micro_batches):
        for at, rows in enumerate(micro_batches, start=1):
            own = part_of(rows, among or comm).to(comm.device)
            loss = engine(own[:, :-1], own[:, 1:])
            engine.backward(loss / case.micro_batches, reduce=case.reduce_each or at == case.micro_batches)
            losses.append(loss.item())
        steps.append(engine.step())
    parameters = engine.consolidate()
    engine.close()
    return Trained(digest(parameters), parameters, losses, steps)


def train_alone(case: Case) -> dict[str, torch.Tensor]:
    """The same in plain torch: one process, the whole batch, torch's own clipping and groups."""
    model = case.build()
    groups: dict[Any, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        options = case.groups(name, parameter) if case.groups else {}
        groups.setdefault(tuple(options.items()), []).append(parameter)
    optimizer = case.optimizer([{"params": those, **dict(options)} for options, those in groups.items()])
    for micro_batches in batches(case.steps):
        rows = torch.cat(micro_batches)
        model(rows[:, :-1], rows[:, 1:]).backward()
        if case.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm, case.engine.get("norm_type", 2.0))
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


class Late(Handle):
    """New parameters that come when somebody waits for them; until then there are NaNs. `fails`: so many waits."""

    def __init__(self, bucket: Bucket, fails: int = 0) -> None:
        super().__init__(None)
        self.bucket, self.fails, self.new = bucket, fails, bucket.whole.clone()
        bucket.whole.fill_(torch.nan)

    def wait(self) -> None:
        if self.fails:
            self.fails -= 1
            raise KeyboardInterrupt
        self.bucket.whole.copy_(self.new)


def digest(state: dict[str, torch.Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(state):
        total.update(name.encode() + state[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    differences = (one[name].double() - other[name].double() for name in one)
    return max(difference.abs().max().item() for difference in differences if difference.numel())
