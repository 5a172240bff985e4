"""How long operations take on a device: the longer of arithmetic and memory (a roofline), and a launch.

machine = machine_of(find_gpu("A100 80GB"))
machine.seconds(Operation("matmul", flop=2 * 4096**3, nbytes=3 * 2 * 4096**2, itemsize=2))
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from typing import Any, NamedTuple

from zerolab.apps.cost.gpus import GPU, LAUNCH_SECONDS, LINK_EFFICIENCY, MEMORY_EFFICIENCY
from zerolab.errors import InputError
from zerolab.ranks.compute import count_work

MATH = {
    "gelu", "gelu_backward", "silu", "silu_backward", "exp", "tanh", "sigmoid", "pow", "rsqrt", "_softmax",
    "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "native_layer_norm",
    "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward",
}  # fmt: skip


class Operation(NamedTuple):
    """One operation of a device.

    kind      "matmul", "attention", "math" and "tanh" (a CPU does more than read and write), "optimizer" or "memory"
    flop      floating-point operations; 0 for what is priced by its bytes
    nbytes    bytes read and written
    itemsize  of its result: arithmetic of 2 bytes is quicker than of 4
    """

    kind: str
    flop: int
    nbytes: int
    itemsize: int = 4


def operation_of(func: Any, args: Any, kwargs: Any, result: Any) -> Operation | None:
    """What an operation of torch's dispatcher has to do; None for one that touches no number."""
    found = count_work(func, args, kwargs, result)
    if found is None:
        return None
    name, kind = func._overloadpacket.__name__, "memory"
    if "attention" in name:
        kind = "attention"
    elif found.flop:
        kind = "matmul"
    elif name in MATH:
        kind = "tanh" if (kwargs or {}).get("approximate") == "tanh" else "math"
    elif name.startswith("_fused_ada"):
        kind = "optimizer"
    return Operation(kind, *found)


@dataclass(frozen=True)
class Rate:
    """How much a second, by how much there is at once: `points` are (amount, amount a second), the amounts rising.
    Between two points the rate is drawn straight on logarithmic paper."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        amounts = [amount for amount, _ in self.points]
        if not amounts or amounts != sorted(set(amounts)) or min(map(min, self.points)) <= 0:
            raise InputError(f"a rate's points are {self.points!r}; give one at least, amounts rising, all above 0")

    def seconds(self, amount: float) -> float:
        if amount <= 0:
            return 0.0
        at = bisect(self.points, amount, key=lambda point: point[0])
        if at in (0, len(self.points)):
            return amount / self.points[max(at - 1, 0)][1]
        (low, slow), (high, fast) = self.points[at - 1], self.points[at]
        share = log(amount / low) / log(high / low)
        return amount / exp((1 - share) * log(slow) + share * log(fast))


def constant_rate(per_second: float) -> Rate:
    return Rate(((1.0, per_second),))


@dataclass(frozen=True)
class Machine:
    """A device that computes, one operation after the other.

    name        what it is called in tables
    peak        floating-point operations a second by its data sheet, by bytes of an element
    flop        what it reaches of them by kind and bytes of an element; other kinds go as "matmul"
    memory      bytes a second of "memory"; `math` those of "math", `tanh` of GELU by its tanh
    overhead    seconds that each operation takes besides
    host, disk  bytes a second to and from the host's memory and a disk
    optimizer   bytes a second of the optimizer's step; None: as `memory`
    host_step   bytes a second of the optimizer's step where the host computes it
    per_unit_overhead  seconds of each call of the engine's own: a unit gathered, a bucket reduced
    spread      share by which half of the tries took more or less time while all this was measured
    """

    name: str
    flop: Mapping[tuple[str, int], Rate]
    memory: Rate
    math: Rate | None = None
    tanh: Rate | None = None
    overhead: float = 0.0
    host: float = inf
    disk: float = inf
    optimizer: Rate | None = None
    host_step: float = inf
    per_unit_overhead: float = 0.0
    peak: Mapping[int, float] = field(default_factory=dict)
    collective: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of collectives without a link: (seconds a call, seconds a byte of the whole tensor), by name."""
    spread: float = 0.0

    def seconds(self, operation: Operation) -> float:
        kind, flop, nbytes, itemsize = operation
        moving = (getattr(self, kind, None) or self.memory).seconds(nbytes)
        if not flop:
            return self.overhead + moving
        rate = self.flop.get((kind, itemsize)) or self.flop.get(("matmul", itemsize)) or self.flop[("matmul", 4)]
        return self.overhead + max(rate.seconds(flop), moving)

    def local_seconds(self, name: str, nbytes: int) -> float:
        """What a collective over `nbytes` in all takes of the machine itself."""
        call, byte = self.collective.get(name, (0.0, 0.0))
        return call + nbytes * byte

    def at(self, **changes: Any) -> Machine:
        """The same machine with other figures."""
        return replace(self, **changes)


def machine_of(gpu: GPU, efficiency: float | None = None) -> Machine:
    """A GPU as a machine; `efficiency`: as in the table."""
    share = gpu.efficiency if efficiency is None else efficiency
    if not 0 < share <= 1:
        raise InputError(f"efficiency is {share!r}; give a share of the peak above 0, of at most 1")
    half, whole = constant_rate(share * gpu.tflop_per_s * 1e12), constant_rate(share * gpu.fp32_tflop_per_s * 1e12)
    return Machine(
        gpu.name,
        {("matmul", 2): half, ("matmul", 4): whole},
        constant_rate(MEMORY_EFFICIENCY * gpu.memory_gbyte_per_s * 1e9),
        overhead=LAUNCH_SECONDS,
        host=LINK_EFFICIENCY * gpu.host_gbyte_per_s * 1e9,
        disk=3e9,
        host_step=20e9,
        peak={2: gpu.tflop_per_s * 1e12, 4: gpu.fp32_tflop_per_s * 1e12},
    )
