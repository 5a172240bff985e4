"""Rows as lines by stage over bandwidth, and where two of them cross."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from zerolab.apps.sweep.rows import DONE, Row

ALONG = ("zero_stage", "gbit_per_s")
Points = dict[float, float]
"""A figure by bandwidth, in gigabits a second; that without a link is at infinity."""


@dataclass(frozen=True)
class MeasuredCrossing:
    """Below `gbit_per_s` the stage `below` has more of a figure, above it the stage `above`; there both have `value`.
    It is infinite between no link and the last bandwidth with rows; the next one below is `over`."""

    below: int
    above: int
    over: float
    gbit_per_s: float
    value: float


def groups_of(rows: Sequence[Row], along: Sequence[str] = ALONG) -> dict[str, list[Row]]:
    """Finished rows that differ in the settings `along` alone, by the settings in which groups differ."""
    done = [row for row in rows if row["status"] == DONE]
    rests = [{name: value for name, value in row["settings"].items() if name not in along} for row in done]
    names = dict.fromkeys(name for rest in rests for name in rest)
    differing = [name for name in names if len({json.dumps(rest.get(name)) for rest in rests}) > 1]
    found: dict[str, list[Row]] = {}
    for row, rest in zip(done, rests, strict=True):
        told = [f"{name} {'none' if rest.get(name) is None else rest[name]}" for name in differing]
        found.setdefault(", ".join(told), []).append(row)
    return found


def by_stage(rows: Sequence[Row], figure: str) -> dict[int, Points]:
    """A figure of the rows that have it, by stage and bandwidth, both ascending."""
    found: dict[int, Points] = {}
    for row in rows:
        stage, gbit = row["settings"]["zero_stage"], row["settings"].get("gbit_per_s")
        if row.get(figure) is not None:
            found.setdefault(stage, {})[math.inf if gbit is None else gbit] = row[figure]
    return {stage: dict(sorted(points.items())) for stage, points in sorted(found.items())}


def crossings(lines: Mapping[int, Points]) -> list[MeasuredCrossing]:
    """Where two stages' lines cross, by bandwidth. Between two of them a line is straight over their logarithms."""
    found = []
    for one, other in combinations(sorted(lines), 2):
        both = sorted(lines[one].keys() & lines[other].keys())
        ahead = [(place, gap) for place in both if (gap := lines[one][place] - lines[other][place])]
        for (left, before), (right, after) in pairwise(ahead):
            if (before > 0) == (after > 0):
                continue
            share = before / (before - after)
            gbit = math.inf if right == math.inf else math.exp((1 - share) * math.log(left) + share * math.log(right))
            value = (1 - share) * lines[one][left] + share * lines[one][right]
            first, second = (one, other) if before > 0 else (other, one)
            found.append(MeasuredCrossing(first, second, left, gbit, value))
    return sorted(found, key=lambda crossing: crossing.gbit_per_s)
