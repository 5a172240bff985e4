"""Pictures that move: the player shows and says what Python has drawn and said, and computes nothing."""

import gzip
import html
import json
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from cover import NIGHTLY
from javascript import answers

from zerolab.apps.plan import SHAPES
from zerolab.course import living
from zerolab.course.living import SCENES, scenes
from zerolab.course.living.scene import Scene, encoded, named, plain, record, settings, shown
from zerolab.course.viz.calculator import along, at_stage, bars, gpu_bytes, memory_calculator
from zerolab.course.viz.drawing import Drawing, Frame, Style
from zerolab.course.viz.film import film
from zerolab.course.viz.shards import shard_map
from zerolab.course.viz.skyline import peak_name, step_frames
from zerolab.course.viz.step import StepRun, watch_flow, watch_step
from zerolab.course.widgets import (
    memory_sliders,
    reshard_sliders,
    ring_stepper,
    shard_sliders,
    stage_stepper,
    step_timeline,
)
from zerolab.errors import InputError
from zerolab.flat import lay_out
from zerolab.run import RunSpec

QUICK = ["ring", "shards"]
"""Scenes whose films are all recorded by day."""
BY_NIGHT = {"overlap": False, "gbit_per_s": 25.0} if NIGHTLY else {}
CALLS = {
    "ring": lambda: ring_stepper("all_gather", ranks=3, step=1),
    "stages": lambda: stage_stepper(1, moment=14),
    "timeline": step_timeline,
    "shards": lambda: shard_sliders(scenes.block("llama"), ranks=3),
    "reshard": lambda: reshard_sliders(scenes.NET, align=32),
    "memory": lambda: memory_sliders(model="GPT-3 175B", stage=3),
}
"""How lessons call them."""


def few(name: str, most: int) -> list[dict[str, Any]]:
    """Some settings of a scene, all of its values among them if they are as few."""
    scene = SCENES[name]
    every = [*product(*(one.values for one in scene.controls))]
    return [
        dict(zip((one.name for one in scene.controls), values, strict=True))
        for values in every[:: -(-len(every) // most)]
    ]


@pytest.mark.parametrize("name", SCENES if NIGHTLY else [*QUICK, "reshard", "memory"])
def test_the_player_shows_and_says_what_python_drew(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    for chosen in few(name, 3):
        styles: dict[Style, int] = {}
        layers = [layer.film(**{one: chosen[one] for one in layer.settings}) for layer in scene.layers]
        data = [encoded(one, styles) for one in layers]
        spread = "unrolled(data).map(({ words, marks }) => ({ words, marks: [...marks] }))"
        for frame, got in zip(scene.film(**chosen), answers(spread, tmp_path, data=data), strict=True):
            assert not frame.words or got["words"] == [*frame.words]
            assert {key: mark for key, mark in got["marks"]} == {
                key: plain(key, mark, styles)[1:] for key, mark in frame.drawing.marks.items()
            }


def test_the_player_calls_each_setting_as_python_does(tmp_path: Path) -> None:
    asked = [[*one.values()] for scene in SCENES.values() for layer in scene.layers for one in settings(scene, layer)]
    asked = asked[:: 1 if NIGHTLY else 50]
    assert answers("asked.map((one) => JSON.stringify(one))", tmp_path, asked=asked) == [named(one) for one in asked]


def test_the_player_is_one_module_that_asks_for_no_other_and_no_network() -> None:
    assert not re.search(r"^\s*import\b|\bfetch\(|https?://(?!www\.w3\.org/)", living.player(), re.MULTILINE)


@pytest.mark.parametrize("name", SCENES if NIGHTLY else QUICK)
def test_a_scenes_films_are_at_most_150_kilobytes_on_the_wire(name: str) -> None:
    data = json.dumps(record(SCENES[name]), separators=(",", ":")).encode()
    assert len(gzip.compress(data)) < 150_000


def test_a_film_is_recorded_by_what_changes_and_the_same_film_once() -> None:
    def films(size: int, shade: bool) -> list[Frame]:
        if size > 2:
            raise InputError("that is too large")
        drawn = [Drawing(10, 10), Drawing(10, 10)]
        for at, drawing in enumerate(drawn):
            drawing.box(at, 0, size, 1, Style("red"), "one")
            drawing.box(0, 0, 1, 1, Style("blue"), "other")
        return [Frame(drawing, ("said", "said", "1")) for drawing in drawn]

    controls = (scenes.Control("size", "size", (1.0, 2, 3)), scenes.Control("shade", "shade", (True, False)))
    found = record(Scene("made", controls, (scenes.Layer(("size", "shade"), films),)))["films"][0]
    assert found["[1,true]"]["frames"] == [
        [1100, ["said", "said", "1"], "", [["one", "rect", [0, 0, 1, 1], 0], ["other", "rect", [0, 0, 1, 1], 1]], []],
        [1100, 0, "", [["one", "rect", [1, 0, 1, 1], 0]], []],
    ]
    assert found["[1,false]"] == "[1,true]" and found["[3,true]"] == {"refused": "that is too large"}


# What a reader does in the player

RING = "modelOf({ scene, settings: { collective: 'all_gather', ranks: 3, step: 0 }, answer: {} })"
CONTROL = {"name": "size", "label": "size", "values": [1, 2, 3]}
ASKED = """(() => {
    const said = (words, at) => [0, [words, words, ""], "", [["d", "disc", [at, 0, 1], 0]], []];
    const film = (name) => ({ size: [9, 9], frames: [said(`${name} begins`, 0), said(`${name} ends`, 1)] });
    const scene = { asks: true, controls: [sizes], stop: { name: "at", label: "at" }, layers: [["size"]] };
    const answer = (size) => ({ name: `[${size}]`, films: [film(size)], styles: [{}] });
    const model = modelOf({ scene, settings: { size: 1, at: 0 }, answer: answer(1) });
    const view = viewOf(model), other = viewOf(model);
    %s
})()"""
"""A scene that a kernel draws, in two views of one widget."""


@pytest.fixture(scope="module")
def ring() -> dict[str, Any]:
    controls = tuple(one._replace(values=one.values[1:3]) for one in SCENES["ring"].controls)
    return record(replace(SCENES["ring"], controls=controls))


@pytest.mark.parametrize("until", ["view.wait(9e9)", "view.press('pause')"])
def test_a_film_that_has_ended_or_is_paused_tells_the_kernel_its_stop(ring: Any, tmp_path: Path, until: str) -> None:
    plays = f"const model = {RING}, view = viewOf(model); view.press('play'); view.wait(1); view.wait(1200);"
    program = f"(() => {{ {plays} {until}; return [model.get('settings').step, view.said()]; }})()"
    step, said = answers(program, tmp_path, scene=ring)
    assert step == (2 if "9e9" in until else 1) and f"after {step} " in said


def test_with_little_motion_a_playing_film_shows_its_stops_only(ring: Any, tmp_path: Path) -> None:
    shown = "(() => { calm.matches = %s; const view = viewOf(" + RING + "), seen = new Set(); view.press('play'); "
    shown += "for (let at = 0; at < 99; at += 1) { view.wait(100); seen.add(view.discs()); } return seen.size; })()"
    assert answers(shown % "true", tmp_path, scene=ring) == 2 < answers(shown % "false", tmp_path, scene=ring)


def test_two_views_of_a_widget_show_what_either_is_set_to(tmp_path: Path) -> None:
    does = """const seen = () => [view.said(), other.said(), other.input("size").value, other.input("at").value];
    view.slide("size", 1);
    const waiting = seen();
    model.set("answer", answer(2));
    const drawn = seen();
    view.press("one step on");
    return [waiting, drawn, seen(), model.get("settings")];"""
    waiting, drawn, stepped, settings = answers(ASKED % does, tmp_path, sizes=CONTROL)
    assert waiting[:3] == ["The kernel draws this setting ..."] * 2 + [1]
    assert drawn == ["2 begins", "2 begins", 1, 0]
    assert (stepped, settings) == (["2 ends", "2 ends", 1, 1], {"size": 2, "at": 1})


@pytest.mark.parametrize("answer", [{}, {"name": "[2]", "refused": "2 is too large"}])
def test_no_stop_is_shown_while_a_setting_is_awaited_or_refused(answer: Any, tmp_path: Path) -> None:
    program = """view.slide("size", 1);
    model.set("answer", given);
    const moves = [() => view.slide("at", 1), () => view.press("one step on"), () => view.press("play")];
    return [() => {}, ...moves].map((does) => {
        does();
        view.wait(1);
        view.wait(5000);
        return view.said();
    });"""
    before, *after = answers(ASKED % program, tmp_path, sizes=CONTROL, given=answer)
    assert after == [before] * 3 and ("2 is too large" in before) == bool(answer)


def test_the_still_stays_where_the_scene_has_no_film(ring: Any, tmp_path: Path) -> None:
    program = f"(() => {{ const view = viewOf({RING}); return [view.error, view.el.textContent]; }})()"
    error, text = answers(program, tmp_path, scene=ring | {"films": [{}]})
    assert error and text == "the still"


# In a notebook


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", CALLS)
def test_a_lessons_scene_is_marked_for_the_site_with_its_still_in_its_place(name: str) -> None:
    made = CALLS[name]()
    data = made._repr_mimebundle_()
    found = re.match(rf'<div data-scene="{name}" data-settings="([^"]*)">(.*)</div>$', data["text/html"], re.DOTALL)
    assert found and json.loads(html.unescape(found[1])) == made.settings
    assert "<img alt=" in found[2] and data["text/plain"] == made.picture.table
    layers = SCENES[name].layers
    asked = [{one: made.settings[one] for one in layer.settings} for layer in layers]
    assert all(one in [*settings(SCENES[name], layer)] for one, layer in zip(asked, layers, strict=True))


@pytest.mark.parametrize(
    "made",
    [
        lambda: shard_sliders({"w": (7,)}),
        lambda: reshard_sliders(scenes.NET, align=32, nbytes=16),
        lambda: step_timeline(prefetch=1),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_what_is_not_recorded_is_a_still_on_the_site(made: Any) -> None:
    assert made()._repr_mimebundle_()["text/html"].startswith("<figure")


def test_parameters_of_another_order_are_others() -> None:
    here = {"b": (3,), "w": (6,)}
    assert shard_sliders(here, ranks=2, align=4).picture.table == shard_map(lay_out(here, 2, 4)).table
    assert shard_sliders(here).settings["model"] == scenes.OWN
    assert shard_sliders(scenes.SMALL).settings["model"] == "two parameters"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("start", "others"),
    [
        (lambda: shard_sliders({"w": (400, 300), "v": (170,)}), {"ranks": 3, "align": 1, "picture": 0}),
        (ring_stepper, {"collective": "all_gather", "ranks": 3, "step": 1}),
        (lambda: step_timeline(2, ranks=2), {"stage": 3, "prefetch": False, **BY_NIGHT}),
        (lambda: reshard_sliders({"w": (30, 40)}), {"saved_by": 6, "loaded_by": 2, "stage": 0}),
        (
            lambda: memory_sliders(ranks=4),
            {"model": "GPT-2 355M", "gpu": "16 GB", "ranks": 64, "stage": 1, "precision": "fp32",
             "offload": "optimizer", "micro_batch_size": 4, "seq_len": 512, "checkpoint_activations": True},
        ),
    ],
    ids=["shards", "ring", "timeline", "reshard", "memory"],
)  # fmt: skip
def test_each_control_changes_what_the_kernel_answers(start: Any, others: dict[str, Any]) -> None:
    made = start()
    for name, value in others.items():
        before, words = made.answer, (made.picture.table, made.picture.alt)
        made.settings = made.settings | {name: value}
        if made.drawn.stop is None or name != made.drawn.stop.name:
            assert made.answer != before, f"the film does not follow {name}"
        else:
            assert (made.picture.table, made.picture.alt) != words


@pytest.mark.usefixtures("undrawn")
def test_a_kernels_answer_is_the_film_of_the_settings_or_why_there_is_none() -> None:
    made = memory_sliders(model="GPT-3 13B", ranks=16, stage=2)
    run = RunSpec(SHAPES["GPT-3 13B"], ranks=16, stage=2, seq_len=2048)
    assert made.answer["films"][0]["frames"][0][1][2] == memory_calculator(run, "80 GB").numbers
    made.settings = made.settings | {"precision": "fsdp2"}
    assert made.answer["refused"].startswith("precision fsdp2 has no stage 2")
    made.settings = made.settings | {"stage": 3}
    assert "refused" not in made.answer and made.picture.verdict.startswith("Stage 3 fits")


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("start", "said"),
    [
        (lambda: memory_sliders(precision="fp4"), "precision is 'fp4'; choose one of fp32, bf16, .*, bf16_fp8_moments"),
        (lambda: memory_sliders(ranks=3), "ranks is 3; choose one of 1, 2, 4"),
        (lambda: memory_sliders(rank=3), "there is no control 'rank'; choose one of model"),
        (lambda: memory_sliders(precision="fsdp2", stage=1), "precision fsdp2 has no stage 1"),
        (lambda: ring_stepper("gossip"), "collective is 'gossip'; choose one of reduce_scatter"),
        (lambda: ring_stepper("all_gather", 4, step=4), "there is no step 4; take 0 to 3"),
        (lambda: stage_stepper(1, moment=True), "there is no moment True; take 0 to 18"),
        (lambda: stage_stepper(True), "there is no ZeRO stage True"),
        (lambda: reshard_sliders({"w": (3,)}, nbytes=-14), "nbytes is -14; give a whole number"),
        (lambda: reshard_sliders({"w": (3,)}, nbytes=1.5), "nbytes is 1.5; give a whole number"),
    ],
)  # fmt: skip
def test_a_start_that_cannot_be_is_refused_with_what_can(start: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        start()


@pytest.mark.usefixtures("undrawn")
def test_a_known_model_never_gets_a_sequence_longer_than_its_context() -> None:
    made = memory_sliders(model="GPT-2 124M", seq_len=2048)
    run = RunSpec(SHAPES["GPT-2 124M"], ranks=8, stage=0, seq_len=1024)
    assert made.picture.numbers == memory_calculator(run, "80 GB").numbers


# What they show

MOVES = {
    "ring": {"disc", "count", "held"},
    "stages": {"now", "later", "message", "sent"},
    "shards": {"piece", "padding", "name"},
    "reshard": {"part"},
}
"""Films of several frames, and names, by their first word, of what may move there."""


@cache
def some(name: str) -> list[list[Frame]]:
    """Films of a scene, that of the last of all values among them."""
    scene = SCENES[name]
    last = {one.name: one.values[-1] for one in scene.controls}
    return [scene.film(**chosen) for chosen in (*(few(name, 1) if name in MOVES else ()), last)]


@pytest.mark.parametrize("name", MOVES)
def test_in_a_film_nothing_moves_that_nobody_named(name: str) -> None:
    found = set()
    for frames in some(name):
        for before, after in pairwise(frame.drawing.marks for frame in frames):
            there = before.keys() & after.keys()
            found |= {one.split()[0] for one in there if before[one].at != after[one].at}
    assert found == MOVES[name]


@pytest.mark.parametrize("name", MOVES)
def test_each_stop_of_a_film_has_words_of_its_own(name: str) -> None:
    for frames in some(name):
        alts = [frame.words[1] for frame in frames if frame.words]
        assert len({*alts}) == len(alts) > 1


@pytest.mark.parametrize("name", SCENES)
def test_no_mark_lies_outside_its_picture_and_no_text_is_too_small_on_a_phone(name: str) -> None:
    for drawing in (frame.drawing for frames in some(name) for frame in (frames[0], frames[-1])):
        for key, mark in drawing.marks.items():
            at, far = mark.at, mark.at[2:]
            # 336 pixels of a window of 390 are the picture's.
            assert mark.shape != "text" or mark.style.size * 336 / drawing.width >= 9, mark.text
            xs, ys = at[::2], at[1::2]
            if mark.shape == "rect":
                xs, ys = (at[0], at[0] + far[0]), (at[1], at[1] + far[1])
            elif mark.shape == "disc":
                xs, ys = (at[0] - far[0], at[0] + far[0]), (at[1] - far[0], at[1] + far[0])
            if (mark.style.fill, mark.style.line) != ("none", "none"):
                assert min(*xs, *ys) >= 0 and max(xs) <= drawing.width and max(ys) <= drawing.height, key


@pytest.mark.parametrize(("collective", "ranks"), [("reduce_scatter", 2), ("all_gather", 5), ("all_reduce", 8)])
def test_the_ring_shows_what_each_rank_holds_and_each_message(collective: str, ranks: int) -> None:
    stops = [frame for frame in SCENES["ring"].film(collective=collective, ranks=ranks) if frame.words]
    for moment, frame in zip(film(collective, ranks), stops, strict=True):
        marks = frame.drawing.marks
        held = {
            (rank, chunk): len(hop.ranks)
            for rank, row in enumerate(moment.held)
            for chunk, hop in enumerate(row)
            if hop
        }
        whole = marks["held 0 0"].at[3] / held[0, 0] if (0, 0) in held else None
        assert {tuple(map(int, name.split()[1:])) for name in marks if name.startswith("held")} == set(held)
        for (rank, chunk), summands in held.items():
            if whole:
                assert marks[f"held {rank} {chunk}"].at[3] == pytest.approx(whole * summands, abs=0.2)
        counts = [mark.text for name, mark in marks.items() if name.startswith("count")]
        assert counts == [str(len(message.hop.ranks)) for message in moment.messages]


def test_a_moment_of_a_ring_says_in_text_what_it_draws() -> None:
    picture = SCENES["ring"].picture(collective="reduce_scatter", ranks=3, step=1)
    assert picture.table.splitlines() == [
        "reduce_scatter over 3 ranks, after 1 of 2 steps: sums of 2 of 3 summands travel next",
        "summands of  chunk 0  chunk 1  chunk 2                       sends now  sent before",
        "rank 0        1 of 3   2 of 3   1 of 3  chunk 1 to rank 1, 1,120 bytes        1,120",
        "rank 1        1 of 3   1 of 3   2 of 3  chunk 2 to rank 2, 1,120 bytes        1,120",
        "rank 2        2 of 3   1 of 3   1 of 3  chunk 0 to rank 0, 1,120 bytes        1,120",
    ]
    end = SCENES["ring"].picture(collective="all_reduce", ranks=3, step=4)
    assert end.table.startswith("all_reduce over 3 ranks, after 4 steps: each rank has sent 4,480 bytes\n")


@pytest.mark.parametrize("run", [StepRun(ranks=2), StepRun(stage=2, ranks=2, overlap=False, offload=True)])
def test_a_steps_boxes_and_memory_are_those_of_a_fresh_run(run: StepRun) -> None:
    [frame] = step_frames(run)
    fresh = watch_flow.__wrapped__(run).ranks[0]
    said = frame.words[2]
    for span in fresh.spans:
        if span.kind == "collective" or span.seconds > 5e-7:
            times = rf"\s+(compute|wire)\s+{1e6 * span.start:,.0f}\s+{1e6 * span.stop:,.0f}$"
            assert re.search(times, said, re.MULTILINE), span
    assert re.search(rf"^peak, bytes .*\b{fresh.peak.total:,}$", said, re.MULTILINE)
    assert frame.drawing.marks["peak"].at[0] == pytest.approx(30 + 364 * fresh.peak.time / 2.8e-3, abs=0.1)


@pytest.mark.parametrize(
    ("run", "last"), [(StepRun(), "2500 µs"), (StepRun(ranks=2, latency_us=100, prefetch=False), "3000 µs")]
)
def test_the_last_time_on_a_steps_axis_has_the_unit(run: StepRun, last: str) -> None:
    marks = step_frames(run)[0].drawing.marks.values()
    ticks = [mark for mark in marks if mark.shape == "text" and mark.at[1] == 253]
    assert [mark.text.endswith(" µs") for mark in ticks] == [False] * (len(ticks) - 1) + [True]
    assert ticks[-1].text == last and ticks[-1].at[0] < 378, "and is not cut"


def test_the_largest_part_of_a_peak_is_on_the_device() -> None:
    offloaded = watch_step(StepRun(stage=3, offload=True))[0]
    assert max(offloaded.peak.bytes, key=lambda kind: offloaded.peak.bytes[kind]) == "host:optimizer_states"
    assert peak_name(offloaded).endswith("the largest part gradient buffers")


@pytest.mark.parametrize("stage", range(3) if NIGHTLY else [2])
def test_below_stage_3_prefetch_changes_nothing(stage: int) -> None:
    run = StepRun(stage=stage, ranks=2)
    assert watch_flow(replace(run, prefetch=False)).ranks == watch_flow(run).ranks


def test_each_stages_bar_is_as_long_as_what_the_planner_says() -> None:
    run = RunSpec(SHAPES["GPT-3 175B"], ranks=8, stage=3, seq_len=2048)
    marks = bars(run).drawing.marks
    for stage in range(4):
        boxes = [mark.at for name, mark in marks.items() if name.startswith(f"bar {stage} ")]
        needed = gpu_bytes(at_stage(run, stage))
        assert sum(box[2] for box in boxes) == pytest.approx(along(run, needed) - 8, abs=0.5)


def test_a_style_is_said_by_what_is_not_the_default() -> None:
    assert shown(Style("red", dash=(4, 2))) == {"fill": "red", "dash": (4, 2)}
