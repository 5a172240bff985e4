"""Published runs and their predictions: each with its source, none left out, near enough in the median."""

import re
from pathlib import Path
from statistics import median

import pytest
from cover import nightly

from benchmarks import published
from benchmarks.published import ROWS, SOURCES, predict, share_of, speed_of, table


def test_rows_have_sources_and_shard_data_alone():
    assert len(ROWS) >= 10 and {row.source for row in ROWS} == SOURCES.keys()
    assert all(row.run.stage == 3 and row.speed > 0 and row.ranks > 0 for row in ROWS)
    assert ROWS[0].shape.parameters == 6_658_859_008, "as the source counts MPT 7B"


@nightly("plans each published row")
def test_one_row_of_a_gpu_gives_its_share_and_the_others_are_near_enough_in_the_median():
    """Within 15 % in speed, within 5 % in memory; no small model is further off than the README says."""
    rows = [row for row in ROWS if row.gpu == "A100 80GB"]
    share = share_of(rows[0])
    assert 0.5 < share < 0.8 and abs(speed_of(rows[0], share) / rows[0].speed - 1) < 1e-3
    every = list(predict())
    found = [one for one in every if one.row.gpu == "A100 80GB"]
    assert [one.calibrates for one in found] == [True] + [False] * (len(rows) - 1)
    assert median(abs(one.error) for one in found[1:]) < 0.15
    lines = table(found)
    assert sum(line.startswith(("| M |", "| T |", "| I |")) for line in lines) == len(rows)
    assert any("+38.8%" in line for line in lines), "a bad row is shown like any other"
    errors = [one.memory_error for one in every if one.row.memory]
    assert median(abs(error) for error in errors if error is not None) < 0.05 and None not in errors
    small = [one for one in every if one.row.shape.parameters < 1e9 and not one.calibrates]
    assert f"{max(one.error for one in small):+.0%}" == "+17%"


README = Path(published.__file__).with_name("README.md").read_text(encoding="utf-8")
SAID = {
    "32,768 tokens: +39 % and +64 %.": (("MPT 7B", "8", "2 x 2", "32768"), "speed"),
    "MPT 70B on 64 A100 40GB, two sequences a GPU: +35 %.": (("A100 40GB", "MPT 70B", "64"), "speed"),
    "MPT 1B on 32 A100 40GB: +29 %.": (("MPT 1B", "32"), "speed"),
    "13B on 8 H200: +25 %": (("Llama 3 as 13B",), "speed"),
    "-13 % of its memory": (("Llama 3 as 13B",), "memory"),
    "4 H200: +14 % of its memory": (("Llama 3 8B", "4", "4 x 8"), "memory"),
    "which is off by only +2 %": (("Llama 3 8B", "4", "2 x 4"), "memory"),
    "32 GPUs have -6 %": (("Llama 3 8B", "32"), "memory"),
    "many GPUs: up to +17 %": (("MPT 350M",), "speed"),
}
"""Sentences below the table, the cells of their rows, and the error that they tell."""


@pytest.mark.parametrize("said", SAID)
def test_sentences_below_the_table_tell_the_errors_that_it_has(said):
    cells, what = SAID[said]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in README.splitlines() if line.count("|") == 15]
    errors = [row[9 if what == "speed" else -1] for row in rows if set(cells) <= set(row)]
    assert said in README
    assert re.findall(r"[-+]\d+(?= %)", said) == [f"{float(error.rstrip('%')):+.0f}" for error in errors]
