"""The memory calculator's scene: what the planner computes for some 16,000 settings, as a table in memory.json.

`python -m zerolab.course.living.memory` computes the table anew, which takes minutes; a test compares it with the
planner. The browser looks numbers up, and finds with them what would make a run fit, as `zerolab.plan.advice` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerolab.course.viz.calculator import GPUS
from zerolab.course.viz.looks import MEMORY
from zerolab.errors import InputError
from zerolab.plan import OFFLOADS, SHAPES, RunSpec, needs
from zerolab.plan.needs import DEVICE
from zerolab.precision import PRECISIONS

FILE = Path(__file__).with_suffix(".json")
MODELS = {
    "GPT-2 124M": [1024],
    "GPT-2 1.5B": [1024],
    "GPT-3 6.7B": [1024, 2048],
    "GPT-3 175B": [1024, 2048],
    "Llama 3 8B": [1024, 2048],
    "Llama 3 70B": [1024, 2048],
    "Mixtral 8x7B": [1024, 2048],
}
"""Models of the scene, and the tokens of the one sequence that a rank computes at a time."""
RANKS = [2**power for power in range(14)]
"""As many as `zerolab.plan.advice` looks at."""
SAME = {"fp16": "bf16", "fp8": "bf16"}
"""Recipes that take the bytes of another one."""
PLACES = [*((offload, stage) for offload in ("nothing", "optimizer") for stage in range(4)), (list(OFFLOADS)[-1], 3)]
"""What may rest on the host at which stage."""
KINDS = (*DEVICE, "host")
LETTERS = "".join(chr(code) for code in (*range(35, 92), *range(93, 127)))
"""What stands for a column's first value, its second, and so on: one letter each, also in JSON."""


def record() -> dict[str, Any]:
    """What memory.json has, and what controls and pictures are called."""
    recorded: dict[str, Any] = json.loads(FILE.read_text())
    return {
        "models": {name: {"parameters": SHAPES[name].parameters, "tokens": MODELS[name]} for name in MODELS},
        "ranks": RANKS,
        "precisions": {name: list(precision.stages) for name, precision in PRECISIONS.items()},
        "same": SAME,
        "places": [f"{offload} {stage}" for offload, stage in PLACES],
        "offloads": list(OFFLOADS),
        "gpus": GPUS,
        "looks": {kind: MEMORY[kind]._asdict() for kind in DEVICE},
        "kinds": list(KINDS),
        "letters": LETTERS,
        "refusals": refusals(),
        "tables": recorded,
    }


def settings(precision: str) -> Iterator[tuple[int, bool, str, int]]:
    """Ranks, whether activations are recomputed, what rests on the host and the stage, in the order of the table."""
    for ranks in RANKS:
        for recomputed in (False, True):
            for offload, stage in PLACES:
                if stage in PRECISIONS[precision].stages:
                    yield ranks, recomputed, offload, stage


def run_of(model: str, tokens: int, precision: str, ranks: int, recomputed: bool, offload: str, stage: int) -> RunSpec:
    return RunSpec(
        SHAPES[model], ranks, stage, precision, seq_len=tokens, checkpoint_activations=recomputed, offload=offload
    )


def refusals() -> dict[str, str]:
    """Why there is no such run, by "PRECISION STAGE OFFLOAD"."""
    found = {}
    for precision in PRECISIONS:
        for stage in range(4):
            for offload in OFFLOADS:
                try:
                    run_of("GPT-2 124M", 1024, precision, 8, False, offload, stage)
                except InputError as error:
                    found[f"{precision} {stage} {offload}"] = str(error)
    return found


def column(values: list[int]) -> list[Any]:
    """The different values, and a letter for each place that says which of them it has; none where all are one."""
    different = sorted(set(values))
    if len(different) == 1:
        return [different, ""]
    places = dict(zip(different, LETTERS, strict=False))
    return [different, "".join(places[value] for value in values)]


def compute() -> dict[str, Any]:
    """The columns of each model, tokens and precision: by kind the bytes of one rank at the peak of a step."""
    tables = {}
    for model, all_tokens in MODELS.items():
        for tokens in all_tokens:
            for precision in PRECISIONS:
                if precision not in SAME:
                    rows = [needs(run_of(model, tokens, precision, *one)) for one in settings(precision)]
                    columns = [column([int(row[kind]) for row in rows]) for kind in KINDS]
                    tables[f"{model} {tokens} {precision}"] = columns
    return tables


def write() -> None:
    """memory.json, a line for each table, so that a change can be read."""
    lines = [f"{json.dumps(name)}: {json.dumps(table, separators=(',', ':'))}" for name, table in compute().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
