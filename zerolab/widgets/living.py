"""A picture with controls: whoever moves one sees the picture drawn anew, with its numbers beneath it."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from threading import RLock
from typing import Any

from ipywidgets import HTML, Image, Layout, ValueWidget, VBox

from zerolab.errors import InputError
from zerolab.viz.picture import Picture

DRAWING = RLock()
"""JupyterLab hands a kernel the moves of two controls in two threads (subshells). Whoever draws last must have seen the
settings of both, and matplotlib draws in one thread at a time."""


class Living(VBox):
    """`draw(**settings)` with a control for each setting.

    The picture is also part of the cell's stored output, so a notebook that is opened without a kernel shows it. There
    is no Output widget and no global figure behind it; a test sets `controls[name].value` and reads `picture`.
    """

    def __init__(self, draw: Callable[..., Picture], **controls: ValueWidget) -> None:
        self.controls = controls
        self._draw = draw
        self._drawn: dict[str, Any] | None = None
        # At its own size: a column would stretch it.
        self._image = Image(format="png", layout=Layout(max_width="760px", align_self="flex-start"))
        self._text = HTML()
        super().__init__([*controls.values(), self._image, self._text])
        for control in controls.values():
            control.observe(lambda _: self.redraw(), names="value")
        self.picture: Picture
        self.redraw()

    def settings(self) -> dict[str, Any]:
        """What the controls are set to."""
        return {name: control.value for name, control in self.controls.items()}

    def redraw(self) -> None:
        """Draw with the settings of now. Settings that cannot go together leave the picture and say why."""
        with DRAWING:
            settings = self.settings()
            if settings == self._drawn:  # a control that moved another one: both call
                return
            try:
                self.picture = self._draw(**settings)
            except InputError as error:
                self._text.value = f"<p>{escape(str(error))}</p>"
            else:
                self._image.value = self.picture.png()
                self._text.value = f"<pre>{escape(self.picture.table)}</pre>"
            self._drawn = settings

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data.update({"image/png": self.picture.png(), "text/plain": self.picture.table})
        return bundle
