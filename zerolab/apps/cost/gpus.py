"""What GPUs can do by their makers' data sheets, and how much of it training reaches."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zerolab.errors import InputError

GB = 10**9


@dataclass(frozen=True)
class GPU:
    """A GPU as its data sheet has it, without sparsity; 10^9 bytes a GB.

    memory_gb             its memory
    memory_gbyte_per_s    what that memory reads and writes
    tflop_per_s           10^12 floating-point operations a second in 16 bits, sums kept in fp32
    fp32_tflop_per_s      the same in fp32, as torch computes it unless it is allowed TF32
    link_gbyte_per_s      what it sends to the other GPUs of its machine in one direction: NVLink, or PCIe without it
    host_gbyte_per_s      what it exchanges with the host in one direction: PCIe
    efficiency            the share of `tflop_per_s` that large matrix products reach: of A100 and H100 by published
                          runs (benchmarks/published.py), of the others a guess
    """

    name: str
    memory_gb: int
    memory_gbyte_per_s: float
    tflop_per_s: float
    fp32_tflop_per_s: float
    link_gbyte_per_s: float
    host_gbyte_per_s: float
    efficiency: float = 0.6


# By data sheets; GeForce: the whitepapers of GA102, Ada and Blackwell; B200: an eighth of the DGX B200; an MI250X is
# two devices to torch, and this is one. What NVLinks move in both directions together is halved.
GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("T4", 16, 320, 65, 8.1, 16, 16),
        GPU("V100 16GB", 16, 900, 125, 15.7, 150, 16),
        GPU("V100 32GB", 32, 900, 125, 15.7, 150, 16),
        GPU("A10", 24, 600, 125, 31.2, 32, 32),
        GPU("L4", 24, 300, 121, 30.3, 32, 32),
        GPU("L40S", 48, 864, 362, 91.6, 32, 32),
        GPU("RTX 3090", 24, 936, 71, 35.6, 32, 32),
        GPU("RTX 4090", 24, 1008, 165, 82.6, 32, 32),
        GPU("RTX 5090", 32, 1792, 209.5, 104.8, 64, 64),
        GPU("A100 40GB", 40, 1555, 312, 19.5, 300, 32, 0.66),
        GPU("A100 80GB", 80, 2039, 312, 19.5, 300, 32, 0.66),
        GPU("H100", 80, 3350, 989.4, 67, 450, 64, 0.51),
        GPU("H200", 141, 4800, 989.4, 67, 450, 64, 0.51),
        GPU("B200", 180, 8000, 2250, 75, 900, 64),
        GPU("MI250X", 64, 1638, 191.5, 23.9, 50, 32),
        GPU("MI300X", 192, 5300, 1307.4, 163.4, 448, 64),
    )
}
MEMORY_EFFICIENCY = 0.8
LINK_EFFICIENCY = 0.8
"""What long tensors and long messages reach of the bandwidth of a memory and of a link."""
LAUNCH_SECONDS = 5e-6
"""From the end of one kernel to the begin of the next."""


def normalize_name(name: str) -> str:
    """A name without what people write differently."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def find_gpu(name: str) -> GPU:
    """A GPU by its name, however that is written."""
    names = {normalize_name(known): known for known in GPUS}
    asked = normalize_name(name)
    found = names.get(asked) or next((names[known] for known in names if known.removesuffix("gb") == asked), None)
    if found is None:
        begin = [known for plainly, known in names.items() if plainly.startswith(asked)] if asked else []
        listed = ", ".join(begin or GPUS)
        raise InputError(f"there is no GPU {name!r}; choose one of {listed}, or give --gpu-memory in GB")
    return GPUS[found]
