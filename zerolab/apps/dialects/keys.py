"""What dialects share: a *setting* is a field of `RunSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerolab.errors import InputError
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

Settings = dict[str, Any]
"""By name; what is not in it is left to the run."""

Rule = Callable[[Any], Settings]
"""What a key's value means, or an InputError that says what is wrong with it ("is 3; give ...")."""


@dataclass
class ReadSettings:
    """Settings that were read, and what is to be said of them at the start of a run, a sentence each.

    missing  settings that nobody gives, which have the tool's defaults
    source   by setting, the keys that give it
    """

    settings: Settings = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    source: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, meant: Settings) -> None:
        """Take what a key means. Raises InputError if another one means something else."""
        for setting, value in meant.items():
            if (before := self.settings.setdefault(setting, value)) != value:
                other = f"{self.source[setting]} says {before!r}"
                raise InputError(f"{name} is {value!r}, but {other}; make them equal")
            self.source.setdefault(setting, name)

    def beside(self, flags: Mapping[str, Any]) -> Settings:
        """All settings, with our own flags. Raises InputError where a flag and a key differ."""
        for name, value in flags.items():
            if name in self.source and not are_same(self.settings.get(name), value):
                other = f"{self.source[name]} make it {self.settings.get(name)}"
                flag = f"--{name.replace('_', '-')}"
                raise InputError(f"{flag} is {value}, but {other}; leave one of the two out")
        return {**self.settings, **flags}


def run_of(settings: Settings) -> RunSpec:
    """The run with these settings, whose model may be a folder's."""
    if settings.get("init_from") is not None:
        # Only this takes torch.
        from zerolab.apps.interop.huggingface import with_shape

        settings = with_shape(settings)
    return RunSpec(**settings)


def require(fits: bool, otherwise: str) -> None:
    """Raise an InputError that says what a tool cannot be told, unless it fits."""
    if not fits:
        raise InputError(otherwise)


def require_of(run: RunSpec, names: str, fits: bool, why: str) -> None:
    """The same of settings by name."""
    said = " and ".join(f"{name} is {getattr(run, name)}" for name in names.split())
    require(fits, f"{said}, and {why}")


def check_fp32(precision: Precision, why: str) -> None:
    """Raise an InputError for states of the optimizer that are in less."""
    for state in ("main_params", "exp_avg", "exp_avg_sq"):
        dtype = getattr(precision, state)
        require(dtype == "fp32", f"{state}_dtype is {dtype}, and {why}; choose fp32")


def missing_of(micro: int, steps: int | None, whole: int | None, ranks: int, names: Sequence[str]) -> Settings:
    """What follows from batch = micro-batch x accumulation steps x ranks; `names` are a tool's for the first, the
    second and the whole. Raises InputError where they disagree."""
    if whole is None:
        return {"batch_size": micro * (steps or 1) * ranks}
    if steps is None and whole % (micro * ranks) == 0:
        return {"grad_accum_steps": whole // (micro * ranks)}
    if (product := micro * (steps or 1) * ranks) != whole:
        said = f"{names[0]} {micro} x {names[1]} {steps or 1} x {ranks} ranks are {product}"
        raise InputError(f"{names[2]} is {whole}, but {said}; change one of them")
    return {}


def are_same(one: Any, other: Any) -> bool:
    """Whether two values are one, of which a flag's may be text."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return str(one) == str(other)
