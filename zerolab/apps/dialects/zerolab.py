"""Settings as a command line of `zerolab train`."""

from __future__ import annotations

from zerolab.apps.dialects.keys import Settings
from zerolab.errors import InputError
from zerolab.run import RunSpec


def write(settings: Settings) -> list[str]:
    """Its words; what has its default is left out. Raises InputError for a name that is no setting."""
    words = ["zerolab", "train"]
    for name, value in settings.items():
        if name not in RunSpec.model_fields:
            raise InputError(f"{name} is no setting of zerolab train; leave it out")
        if value == RunSpec.model_fields[name].default:
            continue
        if value is None:
            raise InputError(f"{name} is None, which no flag of zerolab train says; leave it out")
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{dashed}" if value else f"--no-{dashed}")
        else:
            words += [f"--{dashed}", str(value)]
    return words
