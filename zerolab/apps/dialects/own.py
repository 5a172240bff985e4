"""Settings as the flags of `zerolab train`."""

from __future__ import annotations

from typing import Any

from zerolab.apps.dialects.keys import Settings
from zerolab.errors import InputError
from zerolab.run import RunSpec


def write(settings: Settings) -> list[str]:
    """The words of a command line after `zerolab train`; what has its default is left out. Raises InputError for a name
    that is no setting."""
    words: list[str] = []
    for name, value in settings.items():
        if name not in RunSpec.model_fields:
            raise InputError(f"{name} is no setting of zerolab train; leave it out")
        if value != RunSpec.model_fields[name].default:
            words += flag(name, value)
    return words


def flag(name: str, value: Any) -> list[str]:
    dashed = name.replace("_", "-")
    if value is None:
        raise InputError(f"{name} is None, which no flag of zerolab train says; leave it out")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}", str(value)]
