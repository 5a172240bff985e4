"""The memory calculator's scene: its table is the planner's, and what it says of a setting, the still picture says."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from cover import NIGHTLY
from javascript import words

from zerolab.apps.plan import SHAPES, footprint, predict_peak
from zerolab.apps.plan.footprint import MemoryFootprint, StepMoment
from zerolab.course.living import memory
from zerolab.course.viz.calculator import GPUS, calculator_text
from zerolab.run import RunSpec

TABLES = memory.record()["tables"]
MEND = "the planner says something else: run `python -m zerolab.course.living.memory`"


def looked_up(model: str, tokens: int, precision: str) -> Iterator[tuple[RunSpec, dict[str, int]]]:
    """Each run of a table, and its bytes by kind there."""
    columns = TABLES[f"{model} {tokens} {memory.SAME.get(precision, precision)}"]
    for at, one in enumerate(memory.settings(precision)):
        row = [values[memory.LETTERS.index(letters[at])] if letters else values[0] for values, letters in columns]
        yield memory.run_of(SHAPES[model], tokens, precision, *one), dict(zip(memory.KINDS, row, strict=True))


def all_tables() -> list[tuple[str, int, str]]:
    return [
        (model, tokens, precision)
        for model, lengths in memory.MODELS.items()
        for tokens in lengths
        for precision in memory.PRECISIONS
    ]


@pytest.mark.timeout(1200 if NIGHTLY else 120)  # at night it plans 22,176 runs, for 160 s on a quiet core
def test_the_table_is_what_the_planner_computes() -> None:
    # By day some tables at one number of ranks, so that each model and each precision has its turn; at night all.
    for number, name in enumerate(all_tables()[:: 1 if NIGHTLY else 17]):
        chosen = [(run, row) for run, row in looked_up(*name) if NIGHTLY or run.ranks == 2 ** (3 * number % 14)]
        for run, row in chosen:
            assert predict_peak(run) == row | {"disk": 0}, MEND


def test_the_browser_says_of_each_setting_what_the_still_picture_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {run: row for name in all_tables() for run, row in looked_up(*name)}

    def from_the_table(run: RunSpec) -> MemoryFootprint:
        row = dict(known[run.but(offload=name_of(run))])
        return MemoryFootprint({"host:": row.pop("host")}, (StepMoment("", row),))

    monkeypatch.setattr(footprint, "predict_memory", from_the_table)
    gpus = cycle(GPUS)
    asked = [(run, next(gpus)) for run in [*known][:: 1 if NIGHTLY else 10]]
    wanted = [list(calculator_text(run, gpu)) for run, gpu in asked]
    said = words("memory", [settings(run) | {"gpu": gpu} for run, gpu in asked], tmp_path)
    got = [[one["verdict"], one["alt"], one["table"]] for one in said]
    assert len(asked) > 2000
    assert [(run, mine, its) for (run, _), mine, its in zip(asked, got, wanted, strict=True) if mine != its][:1] == []


def settings(run: RunSpec) -> dict[str, object]:
    """What the controls are set to."""
    names = ("ranks", "stage", "precision", "seq_len", "checkpoint_activations")
    return {"model": run.model_name, "offload": name_of(run), **{name: getattr(run, name) for name in names}}


def name_of(run: RunSpec) -> str:
    """What the table calls that which rests on the host."""
    return next(name for name in memory.OFFLOADS if memory.OFFLOADS[name] == run.places)
