"""A picture with controls: whoever moves one sees the picture drawn anew, with its numbers beneath it."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from threading import RLock
from typing import Any

from ipywidgets import HTML, Box, Layout, ValueWidget, VBox

from zerolab.course.viz.picture import Picture
from zerolab.errors import InputError

DRAWING = RLock()
"""JupyterLab hands a kernel the moves of two controls in two threads (subshells). Whoever draws last must have seen the
settings of both, and matplotlib draws in one thread at a time."""

RED = "#b00020"
STALE = "The picture below is that of the settings before."


class Living(VBox):
    """`draw(**settings)` with a control for each setting. `busy` is what stands there while a slow one draws.

    The picture is also part of the cell's stored output, so a notebook that is opened without a kernel shows it. There
    is no Output widget and no global figure behind it; a test sets `controls[name].value` and reads `picture`.

    Raises InputError where the first settings cannot be drawn.
    """

    def __init__(
        self,
        draw: Callable[..., Picture],
        /,
        *,
        busy: str = "",
        **controls: ValueWidget,
    ) -> None:
        self.controls = controls
        self.picture = draw(**self.settings())
        self.refusal = ""
        """Why the settings of now have no picture; empty where they have."""
        self._draw = draw
        self._busy = busy
        self._drawn = self.settings()
        self._note = HTML()
        self._shown = HTML(self.picture.html(), layout=Layout(width="100%", margin="0"))
        rows = Box([*controls.values()], layout=Layout(display="flex", flex_flow="row wrap", width="100%"))
        super().__init__([rows, self._note, self._shown])
        for control in controls.values():
            control.observe(lambda _: self.redraw(), names="value")

    def settings(self) -> dict[str, Any]:
        """What the controls are set to."""
        return {name: control.value for name, control in self.controls.items()}

    def redraw(self) -> None:
        """Draw with the settings of now. Settings that cannot go together fade the picture and say why above it."""
        with DRAWING:
            settings = self.settings()
            if settings == self._drawn:  # a control that moved another one: both call
                return
            if self._busy:
                self._note.value = f'<p role="status"><i>{escape(self._busy)}</i></p>'
            try:
                self.picture, self.refusal = self._draw(**settings), ""
            except InputError as error:
                self.refusal = str(error)
            self._note.value = self._said()
            self._shown.value = self.picture.html(faded=bool(self.refusal))
            self._drawn = settings

    def _said(self) -> str:
        if not self.refusal:
            return ""
        text = f"{escape(self.refusal)}.<br>{STALE}"
        return f'<p role="alert" style="color: {RED}; font-weight: bold; line-height: 1.4">{text}</p>'

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            text = f"{self.refusal}. {STALE}\n{self.picture.table}" if self.refusal else self.picture.table
            data.update({"text/html": f"{self._said()}{self._shown.value}", "text/plain": text})
        return bundle
