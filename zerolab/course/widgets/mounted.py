"""Scenes in a notebook: the module that the site mounts, by anywidget where that is installed (`zerolab[living]`)."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

from ipywidgets import DOMWidget

from zerolab.course.living import SCENES, module, style
from zerolab.course.living.memory import answered, own_record

MOVES = importlib.util.find_spec("anywidget") is not None
"""Whether scenes can be mounted."""


@cache
def scene_class(scene: str) -> Any:
    """The widget of a scene: `data` is what it draws, `settings` how its controls are set."""
    from anywidget import AnyWidget
    from traitlets import Dict

    traits = {name: Dict().tag(sync=True) for name in ("data", "settings")}
    return type(f"{scene.capitalize()}Scene", (AnyWidget,), {"_esm": module(scene), "_css": style(), **traits})


def mounted(scene: str, settings: dict[str, Any]) -> DOMWidget:
    """A scene, set so. What the calculator is asked for and its table lacks is computed here, by the planner."""
    if scene != "memory":
        return scene_class(scene)(data=SCENES[scene](), settings=settings)
    data = own_record()
    data["batches"] = sorted({*data["batches"], settings["micro_batch_size"]})
    made = scene_class(scene)(data=answered(data, settings), settings=settings)
    made.observe(lambda change: setattr(made, "data", answered(made.data, change["new"])), names="settings")
    return made
