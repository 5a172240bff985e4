"""Scenes: what they replay is what the still pictures show, and one file of JavaScript draws each."""

import html
import json
import re
from pathlib import Path

import pytest
from cover import NIGHTLY
from javascript import node

from zerolab.course import living, viz
from zerolab.course.viz.film import COLLECTIVES, film
from zerolab.course.widgets import ring_stepper


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_the_ring_replays_each_moment_in_the_words_of_the_still_picture(collective: str, ranks: int) -> None:
    moments = living.SCENES["ring"]()["films"][f"{collective} {ranks}"]
    assert len(moments) == len(film(collective, ranks))
    for step, moment in enumerate(moments):
        held = film(collective, ranks)[step].held
        assert moment["held"] == [[len(hop.ranks) if hop else 0 for hop in row] for row in held]
    for step in (0, len(moments) - 1):
        still = viz.ring_moment(collective, ranks, step)
        said = moments[step]
        assert (said["verdict"], said["alt"], said["table"]) == (still.verdict, still.alt, still.numbers)


def test_a_still_picture_names_its_scene_and_how_its_controls_are_set() -> None:
    bundle = ring_stepper("all_gather", ranks=3, step=1)._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    found = re.match(r'<div data-scene="ring" data-settings="([^"]*)">(.*)</div>$', data["text/html"], re.DOTALL)
    assert json.loads(html.unescape(found[1])) == {"collective": "all_gather", "ranks": 3, "step": 1}
    assert "<img alt=" in found[2]


@pytest.mark.parametrize("scene", living.SCENES)
def test_a_scene_is_one_module_that_asks_for_no_other_and_no_network(scene: str, tmp_path: Path) -> None:
    text = living.module(scene)
    assert not re.search(r"^\s*import\b|\bfetch\(|https?://(?!www\.w3\.org/)", text, re.MULTILINE)
    node(tmp_path, text, "--check")


@pytest.mark.parametrize("scene", [scene for scene in living.SCENES if NIGHTLY or scene != "timeline"])
def test_a_scenes_data_is_json_of_less_than_a_megabyte(scene: str) -> None:
    recorded = living.recorded(scene)
    assert json.loads(recorded) == living.SCENES[scene]() and len(recorded) < 1_000_000
