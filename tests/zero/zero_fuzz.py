"""Nets, optimizers and settings drawn from a seed. The stages must end each run with the same bits, whatever was drawn.

python tests/zero/zero_fuzz.py --nets 1000       a soak: in lockstep, most of them
python tests/zero/zero_fuzz.py --only 17 --show  one net again, and what it is
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from zero_cases import VARIANTS, decay_matrices, digest, largest_difference

from zerolab.collectives import Collectives
from zerolab.memory import Stage3Limits
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

O = torch.optim  # noqa: E741
ROWS = 2
OPTIMIZERS: dict[str, Callable[..., O.Optimizer]] = {
    "sgd": partial(O.SGD, lr=0.1),
    "sgd, momentum": partial(O.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd, fused": partial(O.SGD, lr=0.05, momentum=0.9, fused=True),
    "adam, amsgrad": partial(O.Adam, lr=1e-2, amsgrad=True),
    "adam, fused": partial(O.Adam, lr=1e-2, fused=True),
    "adamw": partial(O.AdamW, lr=1e-2, foreach=False),
    "adamw, foreach": partial(O.AdamW, lr=1e-2, foreach=True),
    "adamw, fused": partial(O.AdamW, lr=1e-2, fused=True),
    "rmsprop": partial(O.RMSprop, lr=1e-3),
    "rmsprop, centered": partial(O.RMSprop, lr=1e-3, centered=True, momentum=0.5),
    "rmsprop, foreach": partial(O.RMSprop, lr=1e-3, foreach=True),
    "adagrad": partial(O.Adagrad, lr=1e-2),
    "adagrad, fused": partial(O.Adagrad, lr=1e-2, fused=True),
    "adadelta": O.Adadelta,
    "adamax": partial(O.Adamax, lr=1e-3),
    "nadam": partial(O.NAdam, lr=1e-3),
    "radam": partial(O.RAdam, lr=1e-3),
    "asgd": partial(O.ASGD, lr=1e-2),
    "rprop": partial(O.Rprop, lr=1e-3),
}
PRECISIONS = (None, None, None, "bf16", "bf16_fp32_grads", "pure_bf16", "pure_bf16", "fp16", "bf16_fp8_moments")
DTYPES = (torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16)


class In(nn.Module):
    """A layer in a dtype of its own, between layers of fp32; `inside` is cast with it."""

    def __init__(self, inside: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inside = inside.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        # A precision may have cast what is inside. (At stage 3 it has no elements here, but its dtype.)
        dtype = next(self.inside.parameters()).dtype
        return self.inside(x.to(dtype)).to(x.dtype)


class Scaled(nn.Module):
    """A scalar, a vector and a parameter without elements."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.1))
        self.shift = nn.Parameter(torch.randn(width))
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


@dataclass(frozen=True)
class Fuzzed:
    """A run that was drawn: `layers` are (kind, width in, width out, dtype, whether it trains)."""

    seed: int
    ranks: int
    layers: list[tuple[str, int, int, torch.dtype, bool]]
    optimizer: str
    tied: bool
    micro_batches: int
    reduce_each: bool
    steps: int
    engine: dict[str, Any] = field(default_factory=dict)
    grouped: bool = False

    def build(self) -> nn.Module:
        torch.manual_seed(self.seed)
        made: list[nn.Module] = []
        for kind, wide, out, dtype, trains in self.layers:
            layer = KINDS[kind](wide, out)
            made.append(In(layer, dtype).requires_grad_(trains))
        if self.tied:
            linear = [m.inside for m in made if isinstance(m.inside, nn.Linear)]  # type: ignore[union-attr]
            for one in linear[1:]:
                if one.weight.shape == linear[0].weight.shape and one.weight.dtype == linear[0].weight.dtype:
                    one.weight = linear[0].weight
        return nn.Sequential(*made)


KINDS: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": lambda wide, out: nn.Linear(wide, out),
    "no bias": lambda wide, out: nn.Linear(wide, out, bias=False),
    "two": lambda wide, out: nn.Sequential(nn.Linear(wide, 3), nn.Tanh(), nn.Linear(3, out)),
    "norm": lambda wide, out: nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, out)),
    "scaled": lambda wide, out: nn.Sequential(Scaled(wide), nn.Linear(wide, out)),
}


def draw_limits(of: random.Random) -> Stage3Limits:
    """Some or none of stage 3's limits, in elements; all stages are told, since they cut buckets by the first."""
    sizes = (0, 1, 16, 64, 200, 1000, 100_000)
    persistence, reuse = (of.choice(sizes) if of.random() < 0.5 else 0 for _ in range(2))
    ahead, live = (of.choice(sizes) if of.random() < 0.5 else None for _ in range(2))
    return Stage3Limits(persistence, ahead, live, reuse)


def draw(seed: int) -> Fuzzed:
    """The run number `seed`."""
    of = random.Random(seed)
    ranks = of.choice([2, 2, 3, 3, 4])
    precision = of.choice(PRECISIONS)
    widths = [of.choice([1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 40]) for _ in range(of.randint(2, 6))]
    pairs = zip([widths[0], *widths], [*widths, widths[0]], strict=True)
    layers = [(of.choice(list(KINDS)), wide, out, of.choice(DTYPES), of.random() < 0.9) for wide, out in pairs]
    layers[-1] = (*layers[-1][:4], True)
    names = [name for name in OPTIMIZERS if precision != "bf16_fp8_moments" or name.startswith("adam")]
    engine: dict[str, Any] = {
        "precision": precision,
        "bucket_numel": of.choice([None, 1, 2, 7, 33, 64, 100, 300]),
        "align": of.choice([16, 16, 32, 48, 80]),
        "clip_norm": of.choice([None, None, 0.05, 1e6]),
        "norm_type": of.choice([2.0, 2.0, 1.0, float("inf")]),
        "overlap": of.random() < 0.7,
        "prefetch": of.random() < 0.7,
        "overlap_gather": of.random() < 0.3,
        "limits": draw_limits(random.Random(f"limits of {seed}")),
    }
    return Fuzzed(
        seed=seed,
        ranks=ranks,
        layers=layers,
        optimizer=of.choice(names),
        tied=of.random() < 0.3,
        micro_batches=of.choice([1, 1, 2]),
        reduce_each=of.random() < 0.5,
        steps=of.randint(2, 4),
        engine=engine,
        grouped=of.random() < 0.3,
    )


def train(comm: Collectives, run: Fuzzed, stage: int, **variant: Any) -> dict[str, Tensor]:
    """The parameters that a stage ends with."""
    model = run.build()
    options = {**run.engine, **variant, "groups": decay_matrices if run.grouped and can_decay(run) else None}
    engine = ZeroEngine(model, comm, stage, optimizer=OPTIMIZERS[run.optimizer], **options)
    for step in range(run.steps):
        for micro in range(run.micro_batches):
            x = inputs(run, run.micro_batches * step + micro, comm.rank)
            loss = engine(x).float().square().mean() / run.micro_batches
            engine.backward(loss, reduce=run.reduce_each or micro == run.micro_batches - 1)
        engine.step()
    ended = engine.consolidate()
    engine.close()
    return ended


def inputs(run: Fuzzed, at: int, rank: int) -> Tensor:
    return torch.randn(ROWS, run.layers[0][1], generator=torch.Generator().manual_seed(1000 * at + rank))


def can_decay(run: Fuzzed) -> bool:
    return run.optimizer not in ("rprop",)


def train_all(comm: Collectives, runs: list[Fuzzed]) -> list[list[dict[str, Tensor]]]:
    """What each run ended with, at every stage."""
    return [[train(comm, run, stage, **variant) for stage, variant in VARIANTS] for run in runs]


def faults(run: Fuzzed, by_rank: Iterable[list[dict[str, Tensor]]]) -> list[str]:
    """In words, where a stage or a rank ended with other bits than stage 0 on rank 0."""
    by_rank = list(by_rank)
    first, said = by_rank[0][0], []
    for rank, ended in enumerate(by_rank):
        for (stage, variant), state in zip(VARIANTS, ended, strict=True):
            if digest(state) != digest(first):
                how = largest_difference(state, first)
                said.append(f"rank {rank}, stage {stage} {variant}: other bits, by {how:.2e}")
    return said


def check(seeds: Iterable[int], world: str = "lockstep") -> dict[int, list[str]]:
    """Faults by seed; runs of as many ranks share a launch."""
    runs = [draw(seed) for seed in seeds]
    found: dict[int, list[str]] = {}
    for ranks in sorted({run.ranks for run in runs}):
        those = [run for run in runs if run.ranks == ranks]
        results = launch(train_all, those, ranks=ranks, world=world, device="cpu", timeout=100 + 10 * len(those))
        for at, run in enumerate(those):
            if said := faults(run, [of_rank[at] for of_rank in results]):
                found[run.seed] = said
    return found


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--nets", type=int, default=1000, help="how many")
    reader.add_argument("--first", type=int, default=0, help="the seed of the first")
    reader.add_argument("--only", type=int, help="one seed")
    reader.add_argument("--seconds", type=float, default=1e9, help="begin no net after so many seconds")
    reader.add_argument("--processes", action="store_true", help="in processes on shared memory, not in lockstep")
    reader.add_argument("--show", action="store_true", help="print what is drawn")
    given = reader.parse_args()
    torch.set_num_threads(1)
    seeds = [given.only] if given.only is not None else range(given.first, given.first + given.nets)
    begun, done, failed = time.monotonic(), 0, Counter[str]()
    for seed in seeds:
        if time.monotonic() - begun > given.seconds:
            break
        if given.show:
            print(draw(seed))
        try:
            said = check([seed], "processes" if given.processes else "lockstep").get(seed, [])
        except Exception as error:
            said = [f"{type(error).__name__}: {str(error)[:300]}"]
            if given.show:
                traceback.print_exc()
        done += 1
        if said:
            failed[draw(seed).optimizer] += 1
            print(f"net {seed} ({draw(seed).optimizer}, {draw(seed).engine}): {'; '.join(said[:2])}", flush=True)
    print(f"{done} nets in {time.monotonic() - begun:.0f} s, {sum(failed.values())} at fault {dict(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
