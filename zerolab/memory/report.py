"""Predicted beside measured, as text; and what CUDA's own allocator says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from zerolab.errors import InputError

Bytes = Mapping[str, Sequence[int]]
"""{kind: [bytes by rank]}"""


def table(predicted: Bytes, measured: Bytes) -> str:
    """A line for each kind with the bytes of the rank that has most, predicted and measured, and what they differ
    by on the rank where they differ most. A kind that is on one side only has a dash on the other."""
    rows = [("", "predicted", "measured", "MiB", "difference")]
    for kind in [*predicted, *(kind for kind in measured if kind not in predicted)]:
        said, seen = predicted.get(kind), measured.get(kind)
        shown = seen if seen is not None else said
        mib = f"{max(shown) / 2**20:.3f}" if shown else "-"
        rows.append((kind, largest(said), largest(seen), mib, difference(said, seen)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in columns).rstrip()
        for columns in (enumerate(zip(row, widths, strict=True)) for row in rows)
    )


def largest(by_rank: Sequence[int] | None) -> str:
    return f"{max(by_rank):,}" if by_rank else "-"


def difference(said: Sequence[int] | None, seen: Sequence[int] | None) -> str:
    if not said or not seen:
        return "-"
    if len(said) != len(seen):
        raise InputError(f"{len(said)} ranks are predicted and {len(seen)} measured; give both for the same ranks")
    apart = [b - a for a, b in zip(said, seen, strict=True)]
    worst = max(apart, key=abs)
    return f"{worst:+,}" if worst else "equal"


def device_memory(device: torch.device) -> dict[str, int]:
    """Bytes of tensors on a CUDA device by its own counters, now and at the peak since
    `torch.cuda.reset_peak_memory_stats`; empty for a CPU, whose allocator keeps no count."""
    if device.type != "cuda":
        return {}
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "peak_allocated": torch.cuda.max_memory_allocated(device),
    }
