"""What of an engine is not sharded: the optimizer's groups with their options and step counters, and the loss scale."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from zerolab.checkpoint import plain
from zerolab.errors import CheckpointError
from zerolab.zero import ZeroEngine


def groups_of(engine: ZeroEngine) -> dict[Any, list[str]]:
    """The optimizer's groups by their options as they were given, in the order of `optimizer.param_groups`: the names
    of their parameters."""
    found: dict[Any, list[str]] = {}
    for bucket in engine.buckets:
        if bucket.trainable:
            for slot, key in zip(bucket.layout.slots, bucket.plan.groups, strict=True):
                found.setdefault(key, []).append(slot.name)
    return found


def names_by_group(engine: ZeroEngine) -> list[list[str]]:
    return list(groups_of(engine).values()) or [[]]


def check_complete(engine: ZeroEngine) -> None:
    """Raise a CheckpointError if the optimizer keeps more than a checkpoint has of it."""
    if not engine.state_size.complete:
        raise CheckpointError(
            f"{type(engine.optimizer).__name__} keeps something outside of its state and its options that its next "
            "steps depend on, and a checkpoint has only those two: keep it there, such as a count in group['step'], or "
            "take the weights alone (zerolab.checkpoint.export, load(weights_only=True))"
        )


def counters_of(engine: ZeroEngine) -> list[Any]:
    """The number of each of the optimizer's groups that this rank has something of, and its step counters, as JSON."""
    step, numbers = engine.optimizer_step, {group: number for number, group in enumerate(groups_of(engine))}
    texts = {(numbers[one.group], plain.dump(step.counters(one), "the optimizer's counters")) for one in step.segments}
    return [(number, json.loads(text)) for number, text in sorted(texts)]


def merged(of_ranks: Iterable[Any]) -> dict[int, Any]:
    """The counters of all ranks, by group."""
    found: dict[int, Any] = {}
    for number, said in itertools.chain.from_iterable(of_ranks):
        if found.setdefault(number, said) != said:
            raise CheckpointError(
                f"the steps of the optimizer's group {number} are counted differently ({found[number]} and {said}), "
                "which no checkpoint can say; begin again from a checkpoint"
            )
    return found


def options_of(engine: ZeroEngine) -> list[Any]:
    """For each of the optimizer's groups, whether this rank has something of it, and its options, as JSON."""
    what = "the optimizer's options"
    groups = engine.optimizer.param_groups
    options = ({name: value for name, value in group.items() if name != "params"} for group in groups)
    return [(bool(group["params"]), plain.encode(said, what)) for group, said in zip(groups, options, strict=True)]


def nonparam_text(engine: ZeroEngine, options: list[list[Any]], counters: Mapping[int, Any]) -> str:
    """`optimizer_nonparam.json`: each group's parameters by name, its options and its counters; the loss scaler.
    `options` are those of all ranks. An optimizer may count steps there, and pass over a group that it has nothing of:
    those of a rank that has something of it are kept."""
    groups = []
    for number, (names, of_ranks) in enumerate(zip(names_by_group(engine), zip(*options, strict=True), strict=True)):
        kept = next((said for owns, said in of_ranks if owns), of_ranks[0][1])
        groups.append({"parameters": names, "options": kept, "counters": counters.get(number, {})})
    scaler = None if engine.scaler is None else engine.scaler.state()
    return json.dumps({"groups": groups, "loss_scaler": scaler}, indent=1) + "\n"
