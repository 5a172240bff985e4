"""Sliders on the memory calculator."""

from __future__ import annotations

from typing import Any

from ipywidgets import BoundedIntText, Checkbox, Dropdown, Layout, SelectionSlider
from traitlets import TraitError

from zerolab.apps.plan import SHAPES
from zerolab.course.living.memory import LAYERS, TOKENS, WIDTHS, shape_of
from zerolab.course.living.memory import OWN as CUSTOM
from zerolab.course.viz.calculator import GPUS, memory_calculator
from zerolab.course.viz.picture import Picture
from zerolab.course.widgets.living import Living
from zerolab.errors import InputError
from zerolab.precision import PRECISIONS
from zerolab.run import OFFLOADS, RunSpec

RANKS = [2**power for power in range(11)]
WIDE = {"style": {"description_width": "120px"}, "layout": Layout(width="320px")}


def memory_sliders(**start: object) -> Living:
    """The memory calculator with a control for each setting; `start` sets some of them, such as ranks=64. Another
    number of layers, or another width, makes the model one of your own."""
    first = SHAPES["GPT-3 6.7B"]
    controls = {
        "model": Dropdown(options=[*SHAPES, CUSTOM], value=first.name, description="model", **WIDE),
        "layers": SelectionSlider(options=LAYERS, value=first.config.layers, description="layers", **WIDE),
        "width": SelectionSlider(options=WIDTHS, value=first.config.dim, description="width", **WIDE),
        "gpu": Dropdown(options=list(GPUS), value="80 GB", description="memory of a GPU", **WIDE),
        "ranks": SelectionSlider(options=RANKS, value=8, description="ranks", **WIDE),
        "stage": SelectionSlider(options=[0, 1, 2, 3], value=0, description="stage", **WIDE),
        "precision": Dropdown(options=list(PRECISIONS), value="bf16", description="precision", **WIDE),
        "micro_batch_size": BoundedIntText(value=1, min=1, max=4096, description="sequences a rank", **WIDE),
        "seq_len": SelectionSlider(options=TOKENS, value=1024, description="tokens of each", **WIDE),
        "checkpoint_activations": Checkbox(value=False, description="recompute activations", **WIDE),
        "offload": Dropdown(options=list(OFFLOADS), value="nothing", description="on the host", **WIDE),
    }
    link_context(controls["model"], controls["seq_len"])
    link_sizes(controls["model"], controls["layers"], controls["width"])
    for name, value in start.items():
        if name not in controls:
            raise InputError(f"there is no control {name!r}; choose one of {', '.join(controls)}")
        set_control(name, controls[name], value)
    return Living(draw, scene="memory", **controls)


def set_control(name: str, control: Any, value: object) -> None:
    """Set a control's value, or raise an InputError that lists those it takes."""
    try:
        control.value = value
    except TraitError:
        known = ", ".join(map(str, control.options)) if hasattr(control, "options") else "a value of its kind"
        raise InputError(f"{name} is {value!r}; choose one of {known}") from None


def link_sizes(model: Dropdown, layers: SelectionSlider, width: SelectionSlider) -> None:
    """A known model moves the controls of its size; whoever moves those leaves the known models."""

    def follow(change: Any) -> None:
        if shape := SHAPES.get(change["new"]):
            with layers.hold_trait_notifications(), width.hold_trait_notifications():
                layers.value, width.value = shape.config.layers, shape.config.dim

    def leave(_: Any) -> None:
        shape = SHAPES.get(model.value)
        if shape and (layers.value, width.value) != (shape.config.layers, shape.config.dim):
            model.value = CUSTOM

    # Before a Living hears of a change, so that it never draws one size under another's name.
    model.observe(follow, names="value")
    layers.observe(leave, names="value")
    width.observe(leave, names="value")


def link_context(model: Dropdown, tokens: SelectionSlider) -> None:
    """A sequence is never longer than the model's context: the slider goes back to it."""

    def clamp(_: Any) -> None:
        if (shape := SHAPES.get(model.value)) and tokens.value > (longest := shape.config.max_seq_len):
            tokens.value = longest

    # Before a Living hears of a change, so that it never draws a sequence that is too long.
    model.observe(clamp, names="value")
    tokens.observe(clamp, names="value")


def draw(model: str, layers: int, width: int, gpu: str, **settings: object) -> Picture:
    """The picture for these settings of the controls."""
    return memory_calculator(RunSpec(shape_of(model, layers, width), **settings), gpu)  # type: ignore[arg-type]
