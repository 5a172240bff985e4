"""A scene in a notebook: the player that the site has, and a kernel that draws each setting when it is asked for."""

from __future__ import annotations

from typing import Any

from anywidget import AnyWidget
from traitlets import Dict

from zerolab.course.living.scene import Scene, encoded, marked, named, player, shown, style
from zerolab.course.viz.drawing import Frame, Style
from zerolab.course.viz.picture import Picture
from zerolab.course.widgets.living import DRAWING, Stored
from zerolab.errors import InputError


class Moving(Stored, AnyWidget):
    """A scene, set so. Its still is part of the cell's stored output, so a notebook that is opened without a kernel
    shows it, and the site puts the scene in its place, if it has these settings.

    Raises InputError for a setting that the scene has not.
    """

    _esm, _css = player(), style()
    scene = Dict().tag(sync=True)
    settings = Dict().tag(sync=True)
    answer = Dict().tag(sync=True)

    def __init__(self, scene: Scene, **settings: Any) -> None:
        self.kept, self.drawn = scene, scene.open()
        for one in self.drawn.controls:
            if settings[one.name] not in one.values:
                said = ", ".join(map(str, one.values))
                raise InputError(f"{one.name} is {settings[one.name]!r}; choose one of {said}")
        self.film = self.drawn.film(**self.controls(settings))
        self.stop(settings)  # one that is not there is refused at once
        super().__init__(scene=self.drawn.described() | {"asks": True}, settings=settings)
        self.answer = self.answered(settings)
        self.observe(self.follow, names="settings")

    def controls(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {one.name: settings[one.name] for one in self.drawn.controls}

    def stop(self, settings: dict[str, Any]) -> Frame:
        stop = self.drawn.stop
        return self.drawn.stop_of(self.film, settings[stop.name] if stop else 0, self.controls(settings))

    @property
    def picture(self) -> Picture:
        """The still of the settings of now; of settings that cannot be, that of those before. A film that has become
        shorter stands at its end."""
        last = sum(bool(frame.words) for frame in self.film) - 1
        stop = self.drawn.stop
        return self.stop(self.settings | ({stop.name: min(self.settings[stop.name], last)} if stop else {})).picture()

    def follow(self, change: Any) -> None:
        """Draw what a reader has set. Of two moves at once, in two threads, the last to draw sees both."""
        with DRAWING:
            if self.name(self.settings) != self.answer["name"]:
                self.answer = self.asked(self.settings)

    def name(self, settings: dict[str, Any]) -> str:
        """What the player calls settings."""
        return ",".join(named([settings[name] for name in layer.settings]) for layer in self.drawn.layers)

    def asked(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The film of these settings, or why there is none."""
        try:
            self.film = self.drawn.film(**self.controls(settings))
        except InputError as error:
            return {"name": self.name(settings), "refused": str(error)}
        return self.answered(settings)

    def answered(self, settings: dict[str, Any]) -> dict[str, Any]:
        styles: dict[Style, int] = {}
        films = [encoded(self.film, styles)]
        return {"name": self.name(settings), "films": films, "styles": [*map(shown, styles)]}

    def stored(self) -> tuple[str, str]:
        picture = self.picture
        html = picture.html()
        return marked(self.kept.name, self.settings, html) if self.kept.has(self.settings) else html, picture.table
