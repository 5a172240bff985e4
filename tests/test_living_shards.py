"""The scenes of flat buffers and of resharding say what the still pictures say, for every setting that they have."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from zerolab.course import living
from zerolab.course.living import reshard, shards
from zerolab.course.viz.reshard import MOST_RANKS, readings, reshard_text
from zerolab.course.viz.shards import shard_text
from zerolab.course.widgets import reshard_sliders, shard_sliders
from zerolab.flat import lay_out

RANKS = range(1, MOST_RANKS + 1)


def words(scene: str, asked: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, str]]:
    """What the scene's JavaScript says of each of these settings."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node to run JavaScript with")
    (folder / "scene.mjs").write_text(living.module(scene))
    (folder / "data.json").write_text(living.recorded(scene))
    (folder / "asked.json").write_text(json.dumps(asked))
    (folder / "run.mjs").write_text(
        "import { readFileSync } from 'node:fs';\nimport { textOf } from './scene.mjs';\n"
        "const [data, asked] = ['data', 'asked'].map((name) => JSON.parse(readFileSync(`${name}.json`)));\n"
        "console.log(JSON.stringify(asked.map((one) => textOf(data, one))));\n"
    )
    ran = subprocess.run([node, "run.mjs"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout))


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
