"""DeepSpeed's learning-rate schedulers and ours.

    WarmupLR        constant after a warm-up
    WarmupDecayLR   linear, to 0 at total_num_steps
    WarmupCosineLR  cosine, to cos_min_ratio of the learning rate at total_num_steps

DeepSpeed's warm-ups follow a logarithm unless warmup_type is "linear". Ours begin two steps ahead: there, the first
two steps have the rate 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zerolab.apps.dialects.keys import Settings, are_same, whole_number
from zerolab.errors import InputError

KINDS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
SHAPES = {"log": "log", "linear": "line"}

COMMON = ("warmup_num_steps", "warmup_type", "last_batch_iteration")
PARAMS = {
    "WarmupLR": ("warmup_min_lr", "warmup_max_lr", *COMMON),
    "WarmupDecayLR": ("warmup_min_lr", "warmup_max_lr", "total_num_steps", *COMMON),
    "WarmupCosineLR": ("warmup_min_ratio", "cos_min_ratio", "total_num_steps", *COMMON),
}
DEFAULTS = {"warmup_num_steps": 1000, "cos_min_ratio": 0.0001}
PEAK = 0.001
"""What DeepSpeed takes where a scheduler does not say it; PEAK is WarmupDecayLR's warmup_max_lr, which to WarmupLR is
the optimizer's lr."""


def read_scheduler(section: Any, run: Mapping[str, Any], auto: Callable[[str, str], None]) -> Settings:
    """The settings of a `scheduler` section. `run` are the settings besides;
    `auto(key, setting)` hears of each "auto". Raises an InputError that begins with the key."""
    if not isinstance(section, dict) or section.get("type") not in KINDS:
        kind = section.get("type") if isinstance(section, dict) else section
        raise InputError(f"scheduler.type is {kind!r}; give {', '.join(KINDS)}, or leave the scheduler out")
    kind, params = section["type"], section.get("params") or {}
    for key in [name for name in section if name not in ("type", "params")]:
        raise InputError(f"scheduler.{key} is no key of a scheduler; give type and params")
    for key in params:
        if key not in PARAMS[kind]:
            raise InputError(f"scheduler.params.{key} is no parameter of {kind}; it has {', '.join(PARAMS[kind])}")
    settings: Settings = {"lr_schedule": KINDS[kind]}

    def number(key: str, setting: str, least: int) -> int | None:
        value = params.get(key, DEFAULTS.get(key))
        if value == "auto":
            auto(f"scheduler.params.{key}", setting)
            return None
        try:
            return whole_number(value, least)
        except InputError as error:
            raise InputError(f"scheduler.params.{key} {error}") from None

    for key in ("warmup_min_lr", "warmup_min_ratio", "last_batch_iteration"):
        wanted = -1 if key == "last_batch_iteration" else 0
        if params.get(key, wanted) not in (wanted, "auto"):
            raise InputError(f"scheduler.params.{key} is {params[key]!r}; give {wanted}, where every run begins")
    if (steps := number("warmup_num_steps", "warmup_steps", 0)) is not None:
        settings["warmup_steps"] = steps
    if (peak := params.get("warmup_max_lr")) == "auto":
        auto("scheduler.params.warmup_max_lr", "lr")
    elif peak is not None:
        settings["lr"] = peak
    if kind != "WarmupLR":
        if "total_num_steps" not in params:
            raise InputError(f"scheduler.params.total_num_steps is missing; {kind} wants it")
        if (total := number("total_num_steps", "max_steps", 1)) is not None:
            settings["decay_steps"] = total
    if kind == "WarmupDecayLR" and peak is None and not are_same(run["lr"], PEAK):
        raise InputError(
            f"scheduler.params.warmup_max_lr is not given, and then {kind} rises to {PEAK} whatever the optimizer's lr "
            f"is, which is {run['lr']} here; give warmup_max_lr"
        )
    if kind == "WarmupCosineLR":
        ratio = params.get("cos_min_ratio", DEFAULTS["cos_min_ratio"])
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
            raise InputError(f"scheduler.params.cos_min_ratio is {ratio!r}; give a number from 0 to 1")
        settings["min_lr"] = ratio * float(run["lr"])
    shape = params.get("warmup_type", "log")
    if shape not in SHAPES:
        raise InputError(f"scheduler.params.warmup_type is {shape!r}; give {' or '.join(SHAPES)}")
    if settings.get("warmup_steps", run["warmup_steps"]):
        settings["warmup_shape"] = SHAPES[shape]
    return settings


def write_scheduler(run: Mapping[str, Any]) -> dict[str, Any]:
    """The `scheduler` section of a run, empty if its learning rate stays as it is. Raises InputError for a schedule
    that DeepSpeed has not."""
    kind, warmup, lr, min_lr = (run[name] for name in ("lr_schedule", "warmup_steps", "lr", "min_lr"))
    if kind == "constant" and not warmup:
        return {}
    name = next(name for name, ours in KINDS.items() if ours == kind)
    if not warmup:
        raise InputError(f"warmup_steps is 0, and DeepSpeed's {name} wants at least 1; give warmup_steps")
    shape = next(name for name, ours in SHAPES.items() if ours == run["warmup_shape"])
    params: dict[str, Any] = {"warmup_num_steps": warmup, "warmup_type": shape}
    if kind == "cosine":
        params |= {"warmup_min_ratio": 0.0, "cos_min_ratio": min_lr / lr}
    else:
        params |= {"warmup_min_lr": 0.0, "warmup_max_lr": lr}
    if kind == "linear" and min_lr:
        raise InputError(f"min_lr is {min_lr}, and DeepSpeed's {name} ends at 0; give lr_schedule cosine, or no min_lr")
    if kind != "constant":
        params["total_num_steps"] = run["decay_steps"] or run["max_steps"]
    return {"type": name, "params": params}
