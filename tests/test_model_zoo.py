"""Models as people bring them train as in plain torch: two ranks, three steps, the same bits at every stage."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_zoo import PLAIN, Brought
from zoo_runs import compare

TOLERANCE = 2e-6
"""Of losses and parameters, which are about 1: the same sums in another order."""


def hold(brought: Brought) -> None:
    found = compare(brought)
    assert found.digests == 1
    assert found.loss_away < TOLERANCE
    assert found.parameters_away < TOLERANCE
    assert found.moved > 1e-4


@pytest.mark.parametrize("name", PLAIN)
def test_a_model_of_plain_torch_trains_as_in_one_process_with_the_same_bits_at_every_stage(name: str) -> None:
    hold(PLAIN[name])


def rows_of(section: str) -> list[str]:
    """The models that a section of docs/models.md names."""
    text = (Path(__file__).parents[1] / "docs" / "models.md").read_text().split(f"\n## {section}\n")[1]
    table = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    return [line.split("|")[1].strip() for line in table[2:]]


def test_the_page_of_models_names_those_that_are_tried() -> None:
    assert rows_of("Plain torch") == list(PLAIN)
