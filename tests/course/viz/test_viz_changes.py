"""What changes from stage to stage: the tables that the engine reads, and the calls that follow, each on a screen."""

from pathlib import Path

import pytest
import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.course.grade.cells import read_notebook
from zerolab.course.viz import Changes
from zerolab.course.viz.source import calls_of, described
from zerolab.errors import InputError
from zerolab.ranks import launch
from zerolab.zero import STAGES, ZeroEngine
from zerolab.zero.limits import Stage3Limits
from zerolab.zero.table import make_rows
from zerolab.zero.units import dtypes_of

LESSONS = Path(__file__).resolve().parents[3] / "notebooks"
SCREEN = 58
FP32 = dtypes_of(torch.float32, None)


def changed(before: int, after: int) -> list[str]:
    return [" ".join(line.split()) for line in Changes(before, after).lines if line[0] in "+-"]


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (
            0,
            1,
            [
                "- main, moments whole float32 device",
                "+ main, moments shard float32 device",
                "- reduce all-reduce",
                "+ reduce reduce-scatter",
                "- publish none",
                "+ publish all-gather",
            ],
        ),
        (1, 2, ["- gradients whole float32 device", "+ gradients shard float32 device"]),
        (
            2,
            3,
            [
                "- parameters whole float32 device",
                "+ parameters shard float32 device",
                "- gather none",
                "+ gather all-gather",
                "- publish all-gather",
                "+ publish none",
                "- sent 2Ψ (N-1)/N a step",
                "+ sent 3Ψ (N-1)/N a step",
            ],
        ),
    ],
)
def test_what_changes_is_what_the_lessons_name(before: int, after: int, lines: list[str]) -> None:
    assert changed(before, after) == lines


def test_a_stage_does_not_differ_from_itself_and_one_that_there_is_not_is_refused() -> None:
    assert not changed(2, 2) and Changes(2, 2).lines
    with pytest.raises(InputError, match="there is no ZeRO stage 4"):
        Changes(3, 4)


@pytest.mark.parametrize("stage", STAGES)
def test_the_calls_are_those_that_an_engine_makes(stage: int) -> None:
    def train(comm: Collectives) -> tuple[dict[str, int], int]:
        engine = ZeroEngine(nn.Linear(64, 64, bias=False), comm, stage, lr=0.1)
        comm.meter.reset()
        engine.backward(engine(torch.ones(2, 64, requires_grad=True)).sum())
        engine.step()
        return dict(comm.meter.bytes_by_collective()), engine.plans[0].layout.numel

    sent, numel = launch(train, ranks=2, world="lockstep", collectives="ring", timeout=60)[0]
    calls = calls_of(make_rows([stage], [2], FP32))
    assert {name.replace("_", "-") for name in sent} == set(calls.values()) - {"none"}
    psi = 4 * numel // 2
    assert described(stage, 2)[-1].split()[1] == f"{sum(sent.values()) / psi:g}Ψ"


def test_as_html_each_line_has_its_sign_in_letters_and_nothing_is_markup() -> None:
    html = Changes(1, 2)._repr_html_()
    assert "+ gradients      shard" in html and "stage 1 -&gt; stage 2" in html


def last_cells(lesson: str):  # type: ignore[no-untyped-def]
    (path,) = LESSONS.glob(f"{lesson}_*.ipynb")
    return read_notebook(path).cells


@pytest.mark.parametrize("lesson", ["03", "04", "05"])
def test_a_lesson_of_a_stage_ends_with_what_changed_on_a_screen(lesson: str) -> None:
    cells = last_cells(lesson)
    shown = [cell for cell in cells if cell.source.startswith("viz.Changes(")]
    assert shown and cells[-1] is shown[-1]
    for cell in shown:
        (output,) = cell.outputs
        assert output.data["text/plain"].count("\n") < SCREEN and "<pre" in output.data["text/html"]


@pytest.mark.parametrize(("lesson", "stage"), [("02", 0), ("03", 1), ("04", 2), ("05", 3)])
def test_a_lesson_of_a_stage_shows_its_table(lesson: str, stage: int) -> None:
    table = make_rows([stage], [4], FP32).explain(["4 ranks"])
    shown = [cell for cell in last_cells(lesson) if f"print(make_rows([{stage}], [4]" in cell.source]
    assert [cell.outputs[0].text.rstrip() for cell in shown] == [table]


def test_an_engine_explains_its_tables_equal_ones_once() -> None:
    def explain(comm: Collectives) -> str:
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        return ZeroEngine(model, comm, 3, lr=0.1, limits=Stage3Limits(persistence_numel=16)).explain()

    sharded, stays, units = launch(explain, ranks=2, world="lockstep", timeout=60)[0].split("\n\n")
    assert sharded == "buckets: 2\n" + make_rows([3], [2], FP32).explain(["2 ranks"])
    assert stays == "buckets: 2\n" + make_rows([2], [2], FP32).explain(["2 ranks"])
    assert units.startswith("stage 3, units: 2, guessed\n")
