"""Pictures that move, with a kernel or without one: what each replays, and the module that draws it.

A scene is one file of JavaScript, NAME.js, that exports `render({model, el})` as anywidget calls it, and one of Python,
NAME.py, whose `record()` gives the data that it draws: recorded from real ranks or computed by the library, never in
the browser. A page without a kernel, such as the site's, gives it a model of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from zerolab.course.living.memory import record as record_memory
from zerolab.course.living.reshard import record as record_reshard
from zerolab.course.living.ring import record as record_ring
from zerolab.course.living.shards import record as record_shards
from zerolab.course.living.stages import record as record_stages
from zerolab.course.living.timeline import record as record_timeline

HERE = Path(__file__).parent
SHARED = ("scene.js", "skyline.js")
"""What stands before each scene's own module: controls and the frame; memory over time."""
SCENES: dict[str, Callable[[], dict[str, Any]]] = {
    "memory": record_memory,
    "reshard": record_reshard,
    "ring": record_ring,
    "shards": record_shards,
    "stages": record_stages,
    "timeline": record_timeline,
}
"""By name, what records a scene's data: plain numbers, texts, lists and dicts of them."""


def module(scene: str) -> str:
    """A scene's JavaScript as one ES module, which imports nothing."""
    return "\n".join((HERE / name).read_text() for name in (*SHARED, f"{scene}.js"))


def style() -> str:
    """What all scenes look like, as CSS."""
    return (HERE / "living.css").read_text()


def recorded(scene: str) -> str:
    """A scene's data as JSON."""
    return json.dumps(SCENES[scene](), separators=(",", ":"))


def marked(scene: str, settings: dict[str, Any], still: str) -> str:
    """The HTML of a still picture, marked as the moment of a scene that `settings` name; the site puts the scene in its
    place."""
    return f'<div data-scene="{scene}" data-settings="{escape(json.dumps(settings))}">{still}</div>'
