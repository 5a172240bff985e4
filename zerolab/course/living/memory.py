"""The memory calculator's scene: what the planner computes for some 16,000 settings, as a table in memory.json.

`python -m zerolab.course.living.memory` computes the table anew, which takes minutes; a test compares it with the
planner. The browser looks numbers up, and finds with them what would make a run fit, as `zerolab plan` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerolab.apps.plan import SHAPES, Shape, make_gpt, predict_peak
from zerolab.apps.plan.footprint import DEVICE
from zerolab.course.viz.calculator import GPUS
from zerolab.course.viz.looks import MEMORY
from zerolab.errors import InputError
from zerolab.precision import PRECISIONS
from zerolab.run import OFFLOADS, RunSpec

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
"""As many as `zerolab.apps.plan.advice` looks at."""
SAME = {"fp16": "bf16", "fp8": "bf16"}
"""Recipes that take the bytes of another one."""
PLACES = [*((offload, stage) for offload in ("nothing", "optimizer") for stage in range(4)), (list(OFFLOADS)[-1], 3)]
"""What may rest on the host at which stage."""
KINDS = (*DEVICE, "host")
OWN = "a size of your own"
LAYERS = sorted({1, 2, 4, 8, 16, 64, 80, 128, *(shape.config.layers for shape in SHAPES.values())})
WIDTHS = sorted({256, 512, 2048, 8192, 16384, *(shape.config.dim for shape in SHAPES.values())})
HEAD = 64
"""The size of a head in a model of one's own; it divides every width."""
TOKENS = [2**power for power in range(6, 12)]
BATCHES = [2**power for power in range(8)]
LETTERS = "".join(chr(code) for code in (*range(35, 92), *range(93, 127)))
"""What stands for a column's first value, its second, and so on: one letter each, also in JSON."""


def record() -> dict[str, Any]:
    """What memory.json has, and what controls and pictures are called."""
    recorded: dict[str, Any] = json.loads(FILE.read_text())
    return {
        "models": {name: {"tokens": MODELS[name]} for name in MODELS},
        "sizes": {name: SHAPES[name].parameters for name in MODELS},
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


def run_of(
    shape: Shape, tokens: int, precision: str, ranks: int, recomputed: bool, offload: str, stage: int, batch: int = 1
) -> RunSpec:
    return RunSpec(
        shape,
        ranks=ranks,
        stage=stage,
        precision=precision,
        micro_batch_size=batch,
        seq_len=tokens,
        checkpoint_activations=recomputed,
        offload=offload,
    )


def refusals() -> dict[str, str]:
    """Why there is no such run, by "PRECISION STAGE OFFLOAD"."""
    found = {}
    for precision in PRECISIONS:
        for stage in range(4):
            for offload in OFFLOADS:
                try:
                    run_of(SHAPES["GPT-2 124M"], 1024, precision, 8, False, offload, stage)
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


def table(shape: Shape, tokens: int, precision: str, batch: int = 1) -> list[list[Any]]:
    """By kind the column of the bytes of one rank at the peak of a step, for each of `settings`."""
    rows = [predict_peak(run_of(shape, tokens, precision, *one, batch)) for one in settings(precision)]
    return [column([int(row[kind]) for row in rows]) for kind in KINDS]


def compute() -> dict[str, Any]:
    """The table of each model, tokens and precision."""
    return {
        f"{model} {tokens} {precision}": table(SHAPES[model], tokens, precision)
        for model, lengths in MODELS.items()
        for tokens in lengths
        for precision in PRECISIONS
        if precision not in SAME
    }


def own_record() -> dict[str, Any]:
    """What a kernel gives to the scene: as `record`, with all known models, sizes of one's own and other batches, whose
    numbers are computed when they are asked for (`answered`)."""
    known = {
        name: {
            "tokens": [at for at in TOKENS if at <= shape.config.max_seq_len],
            "layers": shape.config.layers,
            "width": shape.config.dim,
        }
        for name, shape in SHAPES.items()
    }
    return record() | {
        "asks": True, "own": OWN, "layers": LAYERS, "widths": WIDTHS, "batches": BATCHES,
        "models": known | {OWN: {"tokens": TOKENS}},
        "sizes": {name: shape.parameters for name, shape in SHAPES.items()},
    }  # fmt: skip


def answered(data: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """`data` with the tables that the scene needs for the settings `chosen`; the same where it has them."""
    shape = shape_of(chosen["model"], chosen["layers"], chosen["width"])
    tokens, precision = chosen["seq_len"], SAME.get(chosen["precision"], chosen["precision"])
    missing = {
        f"{shape.name} {tokens} {precision}{f' {batch}' if batch > 1 else ''}": batch
        for batch in (1, chosen["micro_batch_size"])
    }
    tables = data["tables"]
    new = {name: table(shape, tokens, precision, batch) for name, batch in missing.items() if name not in tables}
    if not new:
        return data
    return data | {"tables": tables | new, "sizes": data["sizes"] | {shape.name: shape.parameters}}


def shape_of(model: str, layers: int, width: int) -> Shape:
    """The shape of a known model, or one of this size."""
    return SHAPES.get(model) or make_gpt(f"{layers} layers of width {width}", layers, width, width // HEAD)


def write() -> None:
    """memory.json, a line for each table, so that a change can be read."""
    lines = [f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in compute().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
