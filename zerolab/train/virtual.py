"""What a run of `zerolab train` in a virtual world has, and what it has not: tensors there have no values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.errors import InputError
from zerolab.ranks.job import MAX_RANKS, MAX_VIRTUAL_RANKS
from zerolab.ranks.join import is_torchrun

if TYPE_CHECKING:
    from zerolab.train.config import TrainConfig

READS = {
    "save_folder": "a checkpoint keeps values",
    "resume": "a checkpoint has values",
    "init_from": "weights are values",
    "eval_every": "an evaluation computes a loss",
    "compile": "a compiled graph is made of values",
    "zero_debug": "its log is of all ranks, and one is run",
}
"""Settings that mean nothing without values, or with one rank run, and why."""


def check_world(config: TrainConfig) -> None:
    """Raise an InputError for more ranks than a world has, and for what a virtual one has not."""
    if config.world != "virtual":
        if config.ranks > MAX_RANKS and not is_torchrun():
            raise InputError(
                f"ranks is {config.ranks}; it should be less than or equal to {MAX_RANKS}, or give world virtual, "
                f"which has up to {MAX_VIRTUAL_RANKS}"
            )
        return
    for name, why in READS.items():
        value = getattr(config, name)
        if value not in (None, False):
            raise InputError(f"{name} is {str(value)!r}, and in a virtual world {why}; leave it out, or the world")
    for name in ("collective_impl", "device"):
        if getattr(config, name) not in ("auto", "cpu"):
            raise InputError(
                f"{name} is {getattr(config, name)!r}, and ranks of a virtual world have no messages and no device; "
                "leave it out"
            )


__all__ = ["MAX_RANKS", "MAX_VIRTUAL_RANKS", "check_world"]
