"""Pictures with controls, and what was measured where the reader's kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from threading import RLock
from typing import Any

from ipywidgets import HTML, Box, DOMWidget, Layout, ValueWidget, VBox

from zerolab.course.viz.picture import Picture, preformatted
from zerolab.errors import InputError

DRAWING = RLock()
"""JupyterLab hands a kernel the moves of two controls in two threads (subshells). Whoever draws last must have seen the
settings of both, and matplotlib draws in one thread at a time."""

RED = "#b00020"
STALE = "The picture below is that of the settings before."
NOTE = "(measured where the cell runs, so not stored: run it to see the figures of your machine)"
WIDE = Layout(width="100%", margin="0")


class Stored(DOMWidget):
    """A widget in whose place a notebook without a kernel shows `stored`: HTML, and the same as text."""

    def stored(self) -> tuple[str, str]:
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        html, text = self.stored()
        # Not super(): anywidget gives a pair.
        return {**DOMWidget._repr_mimebundle_(self, **kwargs), "text/html": html, "text/plain": text}


class Living(Stored, VBox):
    """`draw(**settings)` with a control for each setting: whoever moves one sees the picture drawn anew.

    A test sets `controls[name].value` and reads `picture`. Raises InputError where the first settings have none.
    """

    def __init__(self, draw: Callable[..., Picture], /, **controls: ValueWidget) -> None:
        self.controls = controls
        self.draw, self.picture = draw, draw(**self.settings())
        self.refusal = ""
        """Why the settings of now have no picture; empty where they have."""
        self.note, self.shown = HTML(), HTML(self.picture.html(), layout=WIDE)
        rows = Box([*controls.values()], layout=Layout(display="flex", flex_flow="row wrap", width="100%"))
        super().__init__([rows, self.note, self.shown])
        for control in controls.values():
            control.observe(lambda _: self.redraw(), names="value")

    def settings(self) -> dict[str, Any]:
        """What the controls are set to."""
        return {name: control.value for name, control in self.controls.items()}

    def redraw(self) -> None:
        """Draw with the settings of now. Settings that cannot go together fade the picture and say why above it."""
        with DRAWING:
            try:
                self.picture, self.refusal, said = self.draw(**self.settings()), "", ""
            except InputError as error:
                self.refusal = str(error)
                style = f"color: {RED}; background: #fff; padding: 0.3em; font-weight: bold; line-height: 1.4"
                said = f'<p role="alert" style="{style}">{escape(self.refusal)}.<br>{STALE}</p>'
            self.note.value, self.shown.value = said, self.picture.html(faded=bool(said))

    def stored(self) -> tuple[str, str]:
        text = f"{self.refusal}. {STALE}\n" if self.refusal else ""
        return self.note.value + self.shown.value, text + self.picture.table


class Here(Stored, VBox):
    """A picture, or a text, with timings in it, in `text`. A stored output that held them would be another in each run:
    in its place stands a note, after `elsewhere`, the figures of some other machine."""

    def __init__(self, shown: Picture | str, elsewhere: str = "") -> None:
        self.text = shown.table if isinstance(shown, Picture) else shown
        self.note = f"{elsewhere.rstrip()}\n{NOTE}" if elsewhere else NOTE
        super().__init__([HTML(shown.html() if isinstance(shown, Picture) else preformatted(shown), layout=WIDE)])

    def stored(self) -> tuple[str, str]:
        return preformatted(self.note), self.note
