"""What was measured on the reader's own machine: seen while the notebook runs, and not stored in it."""

from __future__ import annotations

from typing import Any

from ipywidgets import HTML, Layout, VBox

from zerolab.course.viz.picture import Picture, preformatted

NOTE = "(measured where the cell runs, so not stored: run it to see the figures of your machine)"


class Here(VBox):
    """A picture, or a text, with timings in it. A stored output that held them would be another in each run; in its
    place stands a note, after `elsewhere`: the figures of some other machine, which the text names. `text` is what the
    reader sees."""

    def __init__(self, shown: Picture | str, elsewhere: str = "") -> None:
        self.text = shown.table if isinstance(shown, Picture) else shown
        self.stored = f"{elsewhere.rstrip()}\n{NOTE}" if elsewhere else NOTE
        page = shown.html() if isinstance(shown, Picture) else preformatted(shown)
        super().__init__([HTML(page, layout=Layout(width="100%", margin="0"))])

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data.update({"text/html": preformatted(self.stored), "text/plain": self.stored})
        return bundle
