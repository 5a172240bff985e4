"""What every dialect is made of. A *setting* is a field of `RunSpec`: one vocabulary for train, plan and lessons.
A dialect reads its own keys into settings, and writes a run in its own keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from zerolab.apps.interop.huggingface.start import with_shape
from zerolab.errors import InputError
from zerolab.run import RunSpec

Settings = dict[str, Any]
"""Names of `RunSpec`'s fields with their values; what is not in it is left to the run."""

Rule = Callable[[Any], Settings]
"""What a key's value means, or an InputError that says what is wrong with it ("is 3; give ...")."""


def run_of(settings: Settings) -> RunSpec:
    """The run with these settings, whose model may be a folder's."""
    return RunSpec(**with_shape(settings))


def whole_number(value: Any, least: int = 1) -> int:
    """A number of at least `least`, which may be written as 5e8, as DeepSpeed's users do."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < least or value % 1 != 0:
        raise InputError(f"is {json.dumps(value)}; give a whole number of at least {least}")
    return int(value)


def are_same(one: Any, other: Any) -> bool:
    """Whether two values are one, of which a flag's may be text."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return str(one) == str(other)
