"""What every dialect is made of: a table from its keys to the settings of a run.

A *setting* is a field of `zerolab.train.RunSpec`: one vocabulary for train, plan and lessons. A dialect reads its
own keys into settings, and writes settings in its own keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.run.spec import default_batch

Settings = dict[str, Any]
"""Names of `RunSpec`'s fields with their values; what is not in it is left to the run."""

Rule = Callable[[Any], Settings]
"""What a key's value means, or an InputError that says what is wrong with it ("is 3; give ...")."""


def whole_run(settings: Mapping[str, Any]) -> Settings:
    """All settings of a run of which some are given: the others are as `zerolab train` has them by default."""
    defaults = {name: field.default for name, field in RunSpec.model_fields.items()}
    return defaults | {"batch_size": default_batch(settings)} | dict(settings)


def named(setting: str) -> Rule:
    """The key's value as it is, under the name of our setting."""
    return lambda value: {setting: value}


def whole_number(value: Any, least: int = 1) -> int:
    """A number of at least `least`, which may be written as 5e8, as DeepSpeed's users do."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < least or value % 1 != 0:
        raise InputError(f"is {json.dumps(value)}; give a whole number of at least {least}")
    return int(value)


def count(setting: str, least: int = 1) -> Rule:
    return lambda value: {setting: whole_number(value, least)}


def only(wanted: Any, why: str) -> Rule:
    """A key that may only say what zerolab does anyway; `why` goes into the error for any other value."""

    def rule(value: Any) -> Settings:
        if value != wanted:
            raise InputError(f"must be {json.dumps(wanted)}, not {json.dumps(value)}: {why}")
        return {}

    return rule


def are_same(one: Any, other: Any) -> bool:
    """Whether two values are one, of which a flag's may be text."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return str(one) == str(other)
