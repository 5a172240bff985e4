"""What of an engine is not sharded: the optimizer's groups with their options and step counters, and the loss scale."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zerolab.checkpoint import plain
from zerolab.errors import CheckpointError
from zerolab.zero import ZeroEngine


def group_keys(engine: ZeroEngine) -> list[Any]:
    """The optimizer's groups by their options as they were given, in the order of `optimizer.param_groups`."""
    keys = [group for bucket in engine.buckets if bucket.trainable for group in bucket.plan.groups]
    return list(dict.fromkeys(keys))


def names_by_group(engine: ZeroEngine) -> list[list[str]]:
    """The names of the parameters of each of the optimizer's groups."""
    found: dict[Any, list[str]] = {key: [] for key in group_keys(engine)}
    for bucket in engine.buckets:
        if bucket.trainable:
            for slot, key in zip(bucket.layout.slots, bucket.plan.groups, strict=True):
                found[key].append(slot.name)
    return list(found.values()) or [[]]


def check_complete(engine: ZeroEngine) -> None:
    """Raise a CheckpointError if the optimizer keeps more than a checkpoint has of it."""
    if not engine.state_size.complete:
        raise CheckpointError(
            f"{type(engine.optimizer).__name__} keeps something outside of its state and its options that its next "
            "steps depend on, and a checkpoint has only those two: keep it there, such as a count in group['step'], or "
            "take the weights alone (zerolab.checkpoint.export, load(weights_only=True))"
        )


def counters_of(engine: ZeroEngine) -> dict[str, Any]:
    """By the number of each of the optimizer's groups that this rank has something of: its step counters, as JSON."""
    step = engine.optimizer_step
    numbers = {group: str(number) for number, group in enumerate(group_keys(engine))}
    found: dict[str, Any] = {}
    for segment in step.segments:
        said = json.loads(plain.dump(step.counters(segment), "the optimizer's counters"))
        number = numbers[segment.group]
        refuse_other(number, found.setdefault(number, said), said)
    return found


def merged(of_ranks: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The counters of all ranks."""
    found: dict[str, Any] = {}
    for counters in of_ranks:
        for number, said in counters.items():
            refuse_other(number, found.setdefault(number, said), said)
    return found


def refuse_other(number: str, one: Any, other: Any) -> None:
    if one != other:
        raise CheckpointError(
            f"the steps of the optimizer's group {number} are counted differently ({one} and {other}), which no "
            "checkpoint can say; begin again from a checkpoint"
        )


def options_of(engine: ZeroEngine) -> list[Any]:
    """For each of the optimizer's groups, whether this rank has something of it, and its options, as JSON."""
    owned = [bool(group["params"]) for group in engine.optimizer.param_groups]
    options = [
        plain.dump({name: value for name, value in group.items() if name != "params"}, "the optimizer's options")
        for group in engine.optimizer.param_groups
    ]
    return list(zip(owned, map(json.loads, options), strict=True))


def nonparam_text(engine: ZeroEngine, options: list[list[Any]], counters: Mapping[str, Any]) -> str:
    """`optimizer_nonparam.json`: each group's parameters by name, its options and its counters; the loss scaler.
    `options` are those of all ranks. An optimizer may count steps there, and pass over a group that it has nothing of:
    those of a rank that has something of it are kept."""
    groups = []
    for number, (names, of_ranks) in enumerate(zip(names_by_group(engine), zip(*options, strict=True), strict=True)):
        kept = next((said for owns, said in of_ranks if owns), of_ranks[0][1])
        groups.append(
            {
                "parameters": names,
                "options": plain.parse(json.dumps(kept)),
                "counters": plain.parse(json.dumps(counters.get(str(number), {}))),
            }
        )
    scaler = None if engine.scaler is None else engine.scaler.state()
    return plain.dump({"groups": groups, "loss_scaler": scaler}, "the optimizer's options")
