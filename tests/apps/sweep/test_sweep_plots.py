"""Pictures of sweeps: what they say in numbers, from rows that nobody had to run (rows 19 and 21)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from zerolab.apps import cli
from zerolab.apps.sweep.plots import MeasuredCrossing, by_stage, crossings, draw, groups_of, plots_of
from zerolab.apps.sweep.rows import LINES, write_rows

RATES = {0: {0.1: 40.0, 1.0: 80.0, 10.0: 90.0, None: 95.0}, 3: {0.1: 20.0, 1.0: 60.0, 10.0: 100.0, None: 110.0}}


def row(stage: int, gbit: float | None, rate: float, **settings: Any) -> dict[str, Any]:
    told = {"zero_stage": stage, "ranks": 2, "model_size": "nano", "gbit_per_s": gbit, **settings}
    return {
        "key": f"{stage} {gbit} {settings}", "case": "a case", "status": "done", "error": None, "settings": told,
        "loss": [5.5, 5.25 + stage / 1e4], "parameters_sha256": "a", "step_seconds": 1000 / rate,
        "step_seconds_predicted": 1000 / (rate + 1), "tokens_per_s": rate, "communication_share": 0.5,
        "overlap_share": None if gbit is None else 0.25,
        "state_bytes": 2e6 - 1e5 * stage, "state_bytes_predicted": 2e6 - 1e5 * stage,
        "peak_bytes": 4e6, "peak_bytes_predicted": 3e6,
    }  # fmt: skip


ROWS = [row(stage, gbit, rate) for stage, rates in RATES.items() for gbit, rate in rates.items()]


def test_row_21_stages_cross_where_their_lines_over_the_logarithm_of_bandwidth_do() -> None:
    (found,) = crossings(by_stage(ROWS, "tokens_per_s"))
    # From 20 ahead at 1 Gbit/s to 10 behind at 10: after two thirds of that way.
    assert (found.below, found.above, found.over) == (0, 3, 1.0)
    assert found.gbit_per_s == pytest.approx(10 ** (2 / 3)) and found.value == pytest.approx(80 + 10 * 2 / 3)


def test_lines_that_touch_or_lie_on_each_other_do_not_cross() -> None:
    assert crossings({1: {1.0: 5.0, 2.0: 5.0}, 2: {1.0: 5.0, 2.0: 5.0}}) == []
    assert crossings({1: {1.0: 5.0, 2.0: 5.0, 4.0: 5.0}, 2: {1.0: 4.0, 2.0: 5.0, 4.0: 4.0}}) == []
    (found,) = crossings({1: {1.0: 5.0, math.inf: 5.0}, 2: {1.0: 4.0, math.inf: 6.0}})
    assert found == MeasuredCrossing(1, 2, 1.0, math.inf, 5.0)


def test_row_21_throughput_has_each_number_predicted_and_measured_and_the_crossing_as_text() -> None:
    plot = draw("throughput", ROWS)
    assert "    10          90         100" in plot.text and "    10          91         101" in plot.text
    assert "stages 0 and 3 cross at 4.64 Gbit/s: below it stage 0 is faster, above it stage 3\n" in plot.text
    (axes,) = plot.figure.axes
    drawn = [[*line.get_xdata()] for line in axes.lines]
    assert drawn.count([0.1, 1.0, 10.0]) == 4 and drawn[-1] == [pytest.approx(10 ** (2 / 3))]


def test_row_19_communication_and_what_is_hidden_of_it_are_drawn_by_stage() -> None:
    plot = draw("communication", ROWS)
    assert len(plot.figure.axes) == 2 and plot.text.count("no link") == 1, "without a link nothing was hidden"
    assert "   0.1        0.25        0.25" in plot.text


def test_row_21_memory_and_losses_are_told_to_the_digit() -> None:
    assert "stage 3, states: 1.700 / 1.700\nstage 3, peak of a step: 3.000 / 4.000" in draw("memory", ROWS).text
    text = draw("loss", ROWS).text
    assert "no step two losses are further apart than 0.0003" in text and "the same to the bit" in text
    assert "not the same to the bit" in draw("loss", [*ROWS, {**ROWS[0], "parameters_sha256": "b"}]).text


def test_rows_of_a_virtual_world_are_left_out_of_the_losses_since_it_computes_none() -> None:
    virtual = [{**row(stage, None, 1.0, world="virtual"), "loss": [None, None], "parameters_sha256": None}
               for stage in (0, 3)]  # fmt: skip
    assert [plot.name for plot in plots_of(virtual)] == ["memory"]
    computed = [{**one, "settings": {**one["settings"], "world": "lockstep"}} for one in ROWS]
    plots = {plot.name: plot for plot in plots_of([*computed, *virtual])}
    assert plots["loss"].text == draw("loss", computed).text and "same to the bit" in plots["loss"].text


def test_groups_are_named_by_what_differs_between_them() -> None:
    both = [*ROWS, *(row(0, gbit, 1.0, ranks=4) for gbit in (1.0, 2.0)), {"status": "failed", "settings": {}}]
    assert [*groups_of(both)] == ["ranks 2", "ranks 4"] and [*groups_of(ROWS)] == [""]
    assert [plot.name for plot in plots_of(both)] == [
        "throughput-ranks-2", "communication-ranks-2", "throughput-ranks-4", "communication-ranks-4", "memory",
        "loss-ranks-2", "loss-ranks-4",
    ]  # fmt: skip


def test_row_21_the_command_writes_pictures_with_their_numbers_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sweep", "--plot", str(tmp_path)]) == 2
    assert "has no finished row; name the --out of a sweep" in capsys.readouterr().err
    assert cli.main(["sweep", "--plot", str(tmp_path), "--stages", "0"]) == 2
    assert "--plot draws what is there and runs nothing; leave out stages" in capsys.readouterr().err
    write_rows(tmp_path, ROWS[:2])
    assert (tmp_path / LINES).exists() and cli.main(["sweep", "--plot", str(tmp_path)]) == 0
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {
        f"{name}.{kind}" for name in ("throughput", "communication", "memory", "loss") for kind in ("png", "txt")
    }
    assert (tmp_path / "plots" / "memory.png").read_bytes().startswith(b"\x89PNG")
