"""Sliders on the memory calculator."""

from __future__ import annotations

from ipywidgets import BoundedIntText, Checkbox, Dropdown, Layout, SelectionSlider

from zerolab.errors import InputError
from zerolab.memory.states import RECIPES
from zerolab.plan import OFFLOADS, SHAPES, Run
from zerolab.viz.calculator import GPUS, memory_calculator
from zerolab.viz.picture import Picture
from zerolab.widgets.living import Living

RANKS = [2**power for power in range(11)]
WIDE = {"style": {"description_width": "150px"}, "layout": Layout(width="440px")}


def memory_sliders(**start: object) -> Living:
    """The memory calculator with a control for each setting; `start` sets some of them, such as ranks=64."""
    controls = {
        "model": Dropdown(options=list(SHAPES), value="GPT-3 6.7B", description="model", **WIDE),
        "gpu": Dropdown(options=list(GPUS), value="80 GB", description="memory of a GPU", **WIDE),
        "ranks": SelectionSlider(options=RANKS, value=8, description="ranks", **WIDE),
        "stage": SelectionSlider(options=[0, 1, 2, 3], value=0, description="stage", **WIDE),
        "recipe": Dropdown(options=list(RECIPES), value="mixed", description="recipe", **WIDE),
        "batch": BoundedIntText(value=1, min=1, max=4096, description="sequences a rank", **WIDE),
        "tokens": SelectionSlider(
            options=[2**power for power in range(6, 12)], value=1024, description="tokens of each", **WIDE
        ),
        "checkpointing": Checkbox(value=False, description="recompute activations", **WIDE),
        "offload": Dropdown(options=list(OFFLOADS), value="nothing", description="on the host", **WIDE),
    }
    for name, value in start.items():
        if name not in controls:
            raise InputError(f"there is no control {name!r}; choose one of {', '.join(controls)}")
        controls[name].value = value
    return Living(draw, **controls)


def draw(model: str, gpu: str, **settings: object) -> Picture:
    """The picture for these settings of the controls."""
    return memory_calculator(Run(SHAPES[model], **settings), gpu)  # type: ignore[arg-type]
