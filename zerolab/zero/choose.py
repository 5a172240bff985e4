"""What an engine is made of, by its settings."""

from __future__ import annotations

import torch

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.offload.formats import check_places
from zerolab.offload.places import Offload
from zerolab.precision.recipe import Precision
from zerolab.zero.sharding import REDUCTIONS
from zerolab.zero.table import Dtypes, check_stage


def effective_stage(
    stage: int, comm: Collectives, reduction: str, precision: Precision | None, offload: Offload
) -> int:
    """The stage whose table an engine has: on one rank 0, if nothing else is to be had of a higher one."""
    check_stage(stage)
    check_places(stage, precision, offload)
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction is {reduction!r}; choose one of {', '.join(REDUCTIONS)}")
    if comm.size == 1 and not offload.moves and not (precision is not None and precision.sharded_main):
        # One rank owns every shard. What the stages do beyond stage 0 would cost copies and save nothing.
        return 0
    return stage


def dtypes_from(precision: Precision | None) -> Dtypes | None:
    """The dtypes that a recipe gives the states of floating-point parameters."""
    if precision is None:
        return None
    of = precision.dtype
    shard = of("main_params") if precision.sharded_main else of("params")
    return Dtypes(of("params"), of("main_params"), of("grads"), of("reduce"), of("main_grads"), shard)


def step_device(device: torch.device, offload: Offload) -> torch.device:
    """Where the optimizer steps: on the ranks' device, or on the host beside its states."""
    return device if offload.optimizer == "device" else torch.device("cpu")
