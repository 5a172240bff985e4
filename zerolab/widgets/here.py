"""What was measured on the reader's own machine: seen while the notebook runs, and not stored in it."""

from __future__ import annotations

from html import escape
from typing import Any

from ipywidgets import HTML, Image, Layout, VBox

from zerolab.viz.picture import Picture

NOTE = "(measured where the cell runs, so not stored: run it to see the figures of your machine)"


class Here(VBox):
    """A picture, or a text, with timings in it. A stored output that held them would be another in each run; in its
    place stands a note. `text` is what the reader sees."""

    def __init__(self, shown: Picture | str) -> None:
        self.text = shown.table if isinstance(shown, Picture) else shown
        parts: list[Any] = [HTML(f"<pre>{escape(self.text)}</pre>")]
        if isinstance(shown, Picture):
            picture = Image(
                value=shown.png(), format="png", layout=Layout(max_width="760px", align_self="flex-start")
            )  # fmt: skip
            parts.insert(0, picture)
        super().__init__(parts)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = NOTE
        return bundle
