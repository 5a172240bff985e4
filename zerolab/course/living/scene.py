"""A picture that moves: its controls, and what draws the film of each setting. `player.js` plays it.

On a page without a kernel, such as the site's, the films of all settings are recorded; in a notebook the kernel draws
those that are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from zerolab.course.viz.drawing import Frame, Mark, Style, merged
from zerolab.course.viz.picture import Picture
from zerolab.errors import InputError

HERE = Path(__file__).parent
Films = Callable[..., Sequence[Frame]]


class Control(NamedTuple):
    """A setting: the values for which there are recorded films, and those that only a kernel draws."""

    name: str
    label: str
    values: Sequence[Any]
    more: Sequence[Any] = ()


class Layer(NamedTuple):
    """A part of the picture that hangs on some of the settings only, so that there are fewer films to record."""

    settings: tuple[str, ...]
    film: Films


@dataclass(frozen=True, eq=False)
class Scene:
    """`layers` lie upon each other and their words follow each other. Where the film has several stops, `stop` is the
    control that moves through them, from 0."""

    name: str
    controls: tuple[Control, ...]
    layers: tuple[Layer, ...]
    stop: Control | None = None
    about: str = ""

    def film(self, **settings: Any) -> list[Frame]:
        """The film of a setting. Raises InputError where there is none."""
        parts = [layer.film(**{name: settings[name] for name in layer.settings}) for layer in self.layers]
        return [*parts[0]] if len(parts) == 1 else [merged([part[0] for part in parts])]

    def picture(self, **settings: Any) -> Picture:
        """The still of a setting."""
        at = settings.pop(self.stop.name, 0) if self.stop else 0
        return self.stop_of(self.film(**settings), at, settings).picture()

    def stop_of(self, film: Sequence[Frame], at: Any, settings: dict[str, Any]) -> Frame:
        """A film's stop. Raises InputError where it has none."""
        stops = [frame for frame in film if frame.words]
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < len(stops):
            said = ", ".join(f"{name} {value}" for name, value in settings.items())
            name = self.stop.name if self.stop else ""
            raise InputError(f"with {said} there is no {name} {at!r}; take 0 to {len(stops) - 1}")
        return stops[at]

    def has(self, settings: dict[str, Any]) -> bool:
        """Whether a page without a kernel has these settings."""
        return all(named([settings[one.name]]) in [named([value]) for value in one.values] for one in self.controls)

    def open(self) -> Scene:
        """The scene with all values, as a kernel draws it."""
        return replace(self, controls=tuple(one._replace(values=one.more or one.values) for one in self.controls))

    def described(self) -> dict[str, Any]:
        """What the player makes controls of."""
        return {
            "controls": [{"name": one.name, "label": one.label, "values": [*one.values]} for one in self.controls],
            "stop": self.stop and {"name": self.stop.name, "label": self.stop.label},
            "about": self.about,
            "layers": [[*layer.settings] for layer in self.layers],
        }


def encoded(film: Sequence[Frame], styles: dict[Style, int]) -> dict[str, Any]:
    """A film as plain numbers and texts: of each frame, what has changed since the frame before, and 0 for the same
    words. `styles` numbers the styles, and grows."""
    frames: list[Any] = []
    before: dict[str, Mark] = {}
    said: Any = None
    for frame in film:
        marks = frame.drawing.marks
        changed = [plain(name, mark, styles) for name, mark in marks.items() if before.get(name) != mark]
        gone = [name for name in before if name not in marks]
        frames.append([frame.millis, 0 if frame.words == said else [*frame.words], frame.act, changed, gone])
        before, said = marks, frame.words
    return {"size": [film[0].drawing.width, film[0].drawing.height], "frames": frames}


def plain(name: str, mark: Mark, styles: dict[Style, int]) -> list[Any]:
    at = [int(number) if number == int(number) else number for number in mark.at]
    row = [name, mark.shape, at, styles.setdefault(mark.style, len(styles))]
    return [*row, mark.text] if mark.text else row


def shown(style: Style) -> dict[str, Any]:
    """A style without what it shares with all others."""
    return {name: value for name, value in style._asdict().items() if value != Style._field_defaults[name]}


def named(values: Sequence[Any]) -> str:
    """Values as JavaScript's JSON.stringify writes them, which has no 10.0."""
    plain = [int(one) if isinstance(one, float) and one == int(one) else one for one in values]
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False)


@cache
def record(scene: Scene) -> dict[str, Any]:
    """All films of a scene by layer and setting; where one is that of another setting, that setting's name; where there
    is none, why."""
    styles: dict[Style, int] = {}
    layers = []
    for layer in scene.layers:
        films: dict[str, Any] = {}
        known: dict[str, str] = {}
        for values in settings(scene, layer):
            name = named([*values.values()])
            try:
                film: Any = encoded(layer.film(**values), styles)
            except InputError as error:
                film = {"refused": str(error)}
            films[name] = known.get(text := json.dumps(film), film)
            known.setdefault(text, name)
        layers.append(films)
    return scene.described() | {"styles": [shown(style) for style in styles], "films": layers}


def settings(scene: Scene, layer: Layer) -> Iterator[dict[str, Any]]:
    """All that a layer's controls can be set to."""
    controls = {one.name: one.values for one in scene.controls}
    for values in product(*(controls[name] for name in layer.settings)):
        yield dict(zip(layer.settings, values, strict=True))


def player() -> str:
    """The JavaScript that plays scenes, one ES module that imports nothing."""
    return (HERE / "player.js").read_text()


def style() -> str:
    """What scenes look like, as CSS."""
    return (HERE / "living.css").read_text()


def marked(scene: str, settings: dict[str, Any], still: str) -> str:
    """The HTML of a still picture, marked as the moment of a scene that `settings` name; the site puts the scene in its
    place."""
    return f'<div data-scene="{scene}" data-settings="{escape(json.dumps(settings))}">{still}</div>'
