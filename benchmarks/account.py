"""Where a step's time goes, stage by stage: parts that sum to the step.

    python -m benchmarks.account                                  both workloads, stages 0 to 3, 2 ranks
    python -m benchmarks.account --workload stack --stages 3 --rounds 7

Method. Each rank trains as in `benchmarks.peers`, with `--clip-norm`, so that there is a norm to account for. A clock
stands around the functions in which each part happens, and always runs for the innermost one only: what it has counted
at the end of a step is the step, to the last microsecond. It costs time itself, so steps with the clock and without it
alternate, and the last row is the median over such pairs of the one divided by the other: they must agree within 2 %.

    compute               torch's forward and backward, which no engine can make shorter
    update                the optimizer's own step
    exchange              what collectives read, add up and write in shared memory
    copy of gradients     from where autograd leaves them to their buckets
    waits                 asleep until others come
    memory of units       for a gathered unit, and its release
    hooks, per parameter  Python that runs once for each gradient
    hooks, per unit       Python that runs around a unit's forward and backward
    calls                 Python of collectives: announcing, queueing, polling
    clip                  the norm, and scaling down
    the rest              of the engine and the loop

Figures are medians over the rounds of medians over the steps, of the mean over the ranks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.peers.contenders import adamw
from benchmarks.peers.workload import DEFAULT_ROWS, WORKLOADS
from zerolab.collectives import build
from zerolab.collectives.contract import Collectives
from zerolab.collectives.handle import Handle
from zerolab.collectives.shared import peers
from zerolab.collectives.shared.collectives import SharedMemoryCollectives
from zerolab.collectives.transport import Transport
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, engine, schedule
from zerolab.zero.bucket import DeviceTier
from zerolab.zero.reducer import Reducer
from zerolab.zero.tiers import Tier

WARM_UP = 3
REST, RATIO = "the rest", "sum / step"
PLACES: dict[str, list[tuple[Any, str]]] = {
    "compute": [(torch.Tensor, "backward")],
    "update": [(torch.optim.AdamW, "step")],
    "exchange": [(SharedMemoryCollectives, f"_{name}") for name in ("all_reduce", "reduce_scatter", "all_gather")],
    "copy of gradients": [],
    "waits": [(peers, "wait_for")],
    "memory of units": [(DeviceTier, "resize"), (Tier, "resize")],
    "hooks, per parameter": [(Reducer, "on_gradient")],
    "hooks, per unit": [(schedule.Hook, "__call__"), (schedule.GatherSchedule, "_before_backward")],
    "calls": [(Collectives, "_issue"), (Handle, "wait"), (Handle, "arrived"), (peers.Peers, "poll")],
    "clip": [(engine, "measure"), (torch, "_foreach_mul_")],
    REST: [],
}
"""By part: the functions in which it happens."""


class Clock:
    """Seconds by part, of the innermost that runs."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.runs = False
        self.part, self.since = REST, time.perf_counter()

    def turn_to(self, part: str) -> str:
        """From now on another part runs; returns the one that ran."""
        now, before = time.perf_counter(), self.part
        self.seconds[before] += now - self.since
        self.part, self.since = part, now
        return before

    def around(self, function: Callable[..., Any], part: str, within: str | None = None) -> Callable[..., Any]:
        """`function`, whose time belongs to `part`; if `within` is given, only where it is called from that part."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self.runs or within not in (None, self.part):
                return function(*args, **kwargs)
            before = self.turn_to(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.turn_to(before)

        return timed


def place_clock(model: torch.nn.Module) -> Clock:
    """Put a clock around the functions of each part, in this process."""
    clock = Clock()
    for part, places in PLACES.items():
        for owner, name in places:
            if name in vars(owner) or owner in (peers, engine, torch):
                setattr(owner, name, clock.around(getattr(owner, name), part))
    for name in ("copy_", "add_"):
        setattr(torch.Tensor, name, clock.around(getattr(torch.Tensor, name), "copy of gradients", PARAMETER))
    model.forward = clock.around(model.forward, "compute")  # type: ignore[method-assign]
    return clock


PARAMETER = "hooks, per parameter"


def count(transport: Transport, name: str, rows: int, stage: int, steps: int, clip_norm: float | None) -> list[Any]:
    """This rank's seconds of each pair of steps: one without the clock, one with it, and by part of the latter."""
    work = WORKLOADS[name](rows)
    model = work.model()
    zero = ZeroEngine(model, build(transport, "shared"), stage, optimizer=adamw, clip_norm=clip_norm)
    clock = place_clock(model)
    pairs: list[Any] = []
    for at in range(2 * (WARM_UP + steps)):
        x, y = work.batch(at, transport.rank)
        dist.barrier()
        clock.runs, clock.part = bool(at % 2), REST
        clock.seconds.clear()
        start = clock.since = time.perf_counter()
        loss = zero(x, y)
        zero.backward(loss)
        zero.step()
        loss.item()
        seconds = time.perf_counter() - start
        clock.turn_to(REST)
        if clock.runs:
            pairs[-1] += [seconds, dict(clock.seconds)]
        else:
            pairs.append([seconds])
    dist.barrier()
    return pairs[WARM_UP:]


def measure(name: str, ranks: int, stage: int, rounds: int, steps: int, clip_norm: float | None) -> dict[str, float]:
    """Milliseconds by part, their sum, the step without a clock, and the ratio of the two."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        by_rank = launch(
            count, name, DEFAULT_ROWS[name], stage, steps, clip_norm,
            ranks=ranks, collectives="transport", device="cpu", timeout=300, prints="quiet",
        )  # fmt: skip
        pairs = [pair for rank in by_rank for pair in rank]
        parts = {part: [counted.get(part, 0.0) for _, _, counted in pairs] for part in PLACES}
        parts["sum"] = [sum(counted.values()) for _, _, counted in pairs]
        parts["step"] = [seconds for seconds, _, _ in pairs]
        for part, values in parts.items():
            found[part].append(1e3 * statistics.median(values))
        found[RATIO] += [sum(counted.values()) / seconds for seconds, _, counted in pairs]
    return {part: statistics.median(values) for part, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(DEFAULT_ROWS), nargs="+", default=list(DEFAULT_ROWS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--clip-norm", type=float, default=1.0)
    options = parser.parse_args()
    for name in options.workload:
        print(f"\n{WORKLOADS[name](DEFAULT_ROWS[name]).what}; {options.ranks} ranks; ms\n")
        print("| | " + " | ".join(f"stage {stage}" for stage in options.stages) + " |")
        print("|---" * (1 + len(options.stages)) + "|")
        found = [
            measure(name, options.ranks, stage, options.rounds, options.steps, options.clip_norm)
            for stage in options.stages
        ]
        for part in found[0]:
            digits = 3 if part == RATIO else 1
            print(f"| {part} | " + " | ".join(f"{each[part]:.{digits}f}" for each in found) + " |")


if __name__ == "__main__":
    main()
