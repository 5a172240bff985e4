"""Scenes in a notebook: with anywidget the module of the site is mounted, and Python answers what its data lack."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ipywidgets import DOMWidget
from javascript import words

from zerolab.apps.plan import make_gpt
from zerolab.course import living
from zerolab.course.living import memory
from zerolab.course.viz.calculator import calculator_text
from zerolab.course.widgets import memory_sliders, mounted, ring_stepper
from zerolab.run import RunSpec


class AnyWidget(DOMWidget):
    """What a scene needs of anywidget: a widget of ipywidgets with traits of its own."""


@pytest.fixture
def anywidget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", SimpleNamespace(AnyWidget=AnyWidget))
    monkeypatch.setattr(mounted, "MOVES", True)
    mounted.scene_class.cache_clear()
    yield
    mounted.scene_class.cache_clear()


def test_without_anywidget_a_picture_has_its_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounted, "MOVES", False)
    made = ring_stepper()
    assert made.moving is None and len(made.children) == 3


def test_with_anywidget_the_sites_own_module_is_mounted_and_the_stored_output_is_the_still_picture(
    anywidget: None,
) -> None:
    made = ring_stepper("all_gather", ranks=3)
    assert made.children == (made.moving,)
    assert made.moving._esm == living.module("ring") and made.moving._css == living.style()
    assert made.moving.data == living.SCENES["ring"]()
    assert made.moving.settings == {"collective": "all_gather", "ranks": 3, "step": 0}
    assert "<img alt=" in made._repr_mimebundle_()["text/html"]


def test_python_computes_what_the_table_lacks_for_a_size_and_a_batch_of_ones_own(
    anywidget: None, tmp_path: Path
) -> None:
    moving: Any = memory_sliders(model="GPT-2 124M", precision="fp32").moving
    assert moving.data["batches"] == memory.BATCHES
    assert moving.data["tables"].keys() == memory.record()["tables"].keys()
    chosen = moving.settings | {"model": memory.OWN, "layers": 2, "width": 256, "micro_batch_size": 4, "stage": 1}
    moving.settings = chosen
    new = moving.data["tables"].keys() - memory.record()["tables"].keys()
    assert new == {"2 layers of width 256 1024 fp32", "2 layers of width 256 1024 fp32 4"}
    [said] = words("memory", [chosen], tmp_path, moving.data)
    run = RunSpec(make_gpt("2 layers of width 256", 2, 256, 4), ranks=8, stage=1, precision="fp32", micro_batch_size=4)
    assert (said["verdict"], said["alt"], said["table"]) == tuple(calculator_text(run, "80 GB"))
