"""The scenes of flat buffers and of resharding say what the still pictures say, for every setting that they have."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from javascript import words

from zerolab.course.living import reshard, shards
from zerolab.course.viz.reshard import MOST_RANKS, readings, reshard_text
from zerolab.course.viz.shards import shard_text
from zerolab.course.widgets import reshard_sliders, shard_sliders
from zerolab.flat import lay_out

RANKS = range(1, MOST_RANKS + 1)


def test_the_shard_map_says_of_each_layout_what_the_still_picture_says(tmp_path: Path) -> None:
    asked = [
        {"model": model, "ranks": ranks, "align": align}
        for model, ranks, align in product(shards.models(), RANKS, shards.ALIGNS)
    ]
    found = shards.models()
    for one, said in zip(asked, words("shards", asked, tmp_path), strict=True):
        layout = lay_out(found[one["model"]], one["ranks"], one["align"])
        assert (said["verdict"], said["table"]) == shard_text(layout), one


def test_resharding_says_of_each_setting_what_the_still_picture_says(tmp_path: Path) -> None:
    asked = [
        {"model": model, "saved_by": saved_by, "loaded_by": loaded_by, "stage": stage}
        for model, saved_by, loaded_by, stage in product(reshard.models(), RANKS, RANKS, range(4))
    ]
    found = reshard.models()
    for one, said in zip(asked, words("reshard", asked, tmp_path), strict=True):
        saved_by, loaded_by, stage = one["saved_by"], one["loaded_by"], one["stage"]
        before, after = (lay_out(found[one["model"]], ranks, reshard.ALIGN) for ranks in (saved_by, loaded_by))
        text = reshard_text(readings(before, after, stage), saved_by, loaded_by, stage, reshard.BYTES)
        assert (said["verdict"], said["alt"], said["table"]) == text, one


@pytest.mark.parametrize(
    ("made", "scene"),
    [
        (lambda: shard_sliders(shards.NET), "shards"),
        (lambda: shard_sliders({"w": (7,)}), None),
        (lambda: reshard_sliders(shards.NET, align=reshard.ALIGN), "reshard"),
        (lambda: reshard_sliders(shards.NET, align=reshard.ALIGN, nbytes=16), None),
        (lambda: reshard_sliders(shards.SMALL, align=reshard.ALIGN), None),
    ],
)
def test_a_picture_of_what_a_scene_has_is_marked_as_it_and_one_of_others_is_not(made: Any, scene: str | None) -> None:
    found = re.match(
        r'<div data-scene="(\w+)" data-settings="[^"]*the net of lesson 08', made()._repr_mimebundle_()["text/html"]
    )
    assert (found and found[1]) == scene
