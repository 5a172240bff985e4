"""A machine as what JSON can hold, and back: who has calibrated once may keep the figures."""

from __future__ import annotations

from dataclasses import asdict
from math import inf, isinf
from typing import Any

from zerolab.apps.cost.machine import Machine, Rate
from zerolab.errors import InputError

ENDLESS = ("host", "disk", "host_step")
"""Bytes a second, infinite where nobody measured them: JSON has no infinity."""
RATES = ("memory", "math", "optimizer")


def record_of(machine: Machine) -> dict[str, Any]:
    """Lists, dicts and numbers; `machine_from_record` makes an equal machine of them."""
    found = {name: None if name in ENDLESS and isinf(value) else value for name, value in asdict(machine).items()}
    found["flop"] = [[kind, itemsize, rate.points] for (kind, itemsize), rate in machine.flop.items()]
    for name in RATES:
        rate = getattr(machine, name)
        found[name] = None if rate is None else rate.points
    return found | {"peak": [*machine.peak.items()], "collective": dict(machine.collective)}


def machine_from_record(record: dict[str, Any]) -> Machine:
    """The machine of such a record. Raises an InputError for one that is none."""
    try:
        found = dict(record)
        found["flop"] = {(kind, itemsize): rate_of(points) for kind, itemsize, points in found["flop"]}
        found |= {name: None if found[name] is None else rate_of(found[name]) for name in RATES}
        found |= {name: inf if found[name] is None else found[name] for name in ENDLESS}
        found["peak"] = {itemsize: flop for itemsize, flop in found["peak"]}
        found["collective"] = {name: (call, byte) for name, (call, byte) in found["collective"].items()}
        return Machine(**found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"these are no figures of a machine ({why}); take them anew") from None


def rate_of(points: list[list[float]]) -> Rate:
    return Rate(tuple((amount, per_second) for amount, per_second in points))
