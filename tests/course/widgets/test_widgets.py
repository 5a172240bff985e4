"""Controls move the picture: tested by setting values; a notebook and a browser do the rest."""

from collections.abc import Callable
from threading import Event, Thread

import pytest
from controls import each_changes_what_is_shown, pixels
from ipywidgets import IntSlider

from zerolab.apps.plan import SHAPES, make_gpt
from zerolab.course.lab import VIEW
from zerolab.course.living import marked
from zerolab.course.living.memory import HEAD, WIDTHS
from zerolab.course.viz import StepRun, ring_moment, step_skyline
from zerolab.course.viz.calculator import memory_calculator
from zerolab.course.viz.looks import contrast
from zerolab.course.viz.picture import Picture, blank
from zerolab.course.widgets import (
    Living,
    bucket_sliders,
    memory_sliders,
    ring_stepper,
    shard_sliders,
    stage_stepper,
    step_timeline,
)
from zerolab.course.widgets.living import RED
from zerolab.course.widgets.memory import CUSTOM
from zerolab.errors import InputError
from zerolab.run import RunSpec

SHAPES_OF_A_LAYER = {"w": (400, 300), "b": (403,), "v": (170_000,)}


def test_each_control_changes_the_picture_and_the_numbers() -> None:
    living = memory_sliders(ranks=4)
    others = {
        "model": "GPT-2 355M", "layers": 48, "width": 2048, "gpu": "16 GB", "ranks": 64, "stage": 1,
        "precision": "fp32", "micro_batch_size": 3, "seq_len": 512, "checkpoint_activations": True,
        "offload": "optimizer",
    }  # fmt: skip
    each_changes_what_is_shown(living, others)
    assert living.settings() == others | {"model": CUSTOM}


@pytest.mark.usefixtures("undrawn")
def test_a_size_of_ones_own_and_a_known_model_take_turns() -> None:
    living = memory_sliders(model="GPT-2 124M")
    sizes = [living.controls[name] for name in ("model", "layers", "width")]
    assert [control.value for control in sizes] == ["GPT-2 124M", 12, 768]
    sizes[1].value = 24
    assert [control.value for control in sizes] == [CUSTOM, 24, 768]
    assert living.picture.table == memory_calculator(RunSpec(make_gpt("mine", 24, 768, 12), ranks=8), "80 GB").table
    sizes[0].value = "GPT-3 175B"
    assert [control.value for control in sizes] == ["GPT-3 175B", 96, 12288]
    assert living.picture.table == memory_calculator(RunSpec(SHAPES["GPT-3 175B"], ranks=8), "80 GB").table
    assert all(width % HEAD == 0 for width in WIDTHS)


@pytest.mark.parametrize(
    ("start", "others"),
    [
        (lambda: shard_sliders(SHAPES_OF_A_LAYER), {"ranks": 3, "align": 1}),
        (
            lambda: bucket_sliders(SHAPES_OF_A_LAYER),
            {"ranks": 8, "gbit_per_s": 1.0, "latency_us": 5.0, "bucket_numel": 1024, "overlapped": False},
        ),
        (lambda: stage_stepper(1), {"stage": 3, "moment": 5}),
        (ring_stepper, {"collective": "all_gather", "ranks": 3, "step": 1}),
        (
            lambda: step_timeline(ranks=2),
            {"prefetch": False, "stage": 2, "ranks": 3, "gbit_per_s": 25.0, "latency_us": 20.0},
        ),
    ],
    ids=["shards", "buckets", "stages", "ring", "step"],
)
def test_so_does_each_control_of_the_others(start: Callable[[], Living], others: dict[str, object]) -> None:
    each_changes_what_is_shown(start(), others)


@pytest.mark.usefixtures("undrawn")
def test_the_picture_is_that_of_the_pure_function() -> None:
    living = memory_sliders(model="GPT-3 13B", ranks=16, stage=2, gpu="40 GB")
    assert living.picture.table == memory_calculator(RunSpec(SHAPES["GPT-3 13B"], ranks=16, stage=2), "40 GB").table


@pytest.mark.usefixtures("undrawn")
def test_the_stepper_goes_through_a_real_ring_to_its_end_and_no_further() -> None:
    living = ring_stepper("all_reduce", ranks=3)
    step = living.controls["step"]
    for number in range(step.max + 1):
        step.value = number
        assert living.picture.table == ring_moment("all_reduce", 3, number).table
    assert step.max == 4 and "after 4 steps" in living._shown.value
    living.controls["collective"].value = "reduce_scatter"
    assert (step.max, step.value) == (2, 2) and "after 2 steps" in living._shown.value
    living.controls["ranks"].value = 8
    assert (step.max, step.value) == (7, 2)


@pytest.mark.usefixtures("undrawn")
def test_the_timeline_is_that_of_a_real_step() -> None:
    living = step_timeline(stage=1, ranks=2)
    assert living.picture.table == step_skyline(StepRun(1, 2)).table
    assert "stage 1 (shown)" in living._shown.value
    living.controls["stage"].value = 3
    assert "stage 3 (shown)" in living._shown.value


def test_settings_that_cannot_go_together_fade_the_picture_and_say_why_above_it() -> None:
    living = memory_sliders()
    kept = pixels(living)
    assert "opacity" not in living._shown.value and not living._note.value
    living.controls["precision"].value = "fsdp2"
    assert "precision fsdp2 has no stage 0" in living._note.value and f"color: {RED}" in living._note.value
    assert "opacity: 0.35" in living._shown.value and pixels(living) == kept
    stored = living._repr_mimebundle_()
    assert f">{living._note.value}<figure" in stored["text/html"] and "opacity" in stored["text/html"]
    assert stored["text/plain"].startswith("precision fsdp2 has no stage 0")
    living.controls["stage"].value = 3
    assert not living._note.value and "opacity" not in living._shown.value
    assert living.picture.verdict.startswith("Stage 3 fits") and pixels(living) != kept


def test_what_is_said_in_red_can_be_read() -> None:
    assert contrast(RED, "white") >= 4.5


@pytest.mark.usefixtures("undrawn")
def test_first_settings_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(InputError, match="precision fsdp2 has no stage 1"):
        memory_sliders(precision="fsdp2", stage=1)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({"precision": "fp4"}, "precision is 'fp4'; choose one of fp32, bf16, fp16, .*, bf16_fp8_moments"),
        ({"ranks": 3}, "ranks is 3; choose one of 1, 2, 4"),
        ({"micro_batch_size": "many"}, "micro_batch_size is 'many'; choose"),
        ({"recipe": "bf16"}, "no control 'recipe'"),
    ],
)
def test_a_start_that_a_control_does_not_have_is_refused_with_those_it_has(start: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        memory_sliders(**start)


@pytest.mark.usefixtures("undrawn")
def test_a_known_model_never_gets_a_sequence_longer_than_its_context() -> None:
    # The start of lesson 00, from where each GPT-2 used to be refused.
    living = memory_sliders(model="GPT-3 175B", ranks=8, stage=3, seq_len=2048)
    refused: list[str] = []
    living._note.observe(lambda change: refused.append(change["new"]), names="value")
    model, tokens = living.controls["model"], living.controls["seq_len"]
    for name in ("GPT-2 124M", "GPT-3 13B", "GPT-2 1.5B"):
        shape = SHAPES[name]
        tokens.value = min(2048, shape.config.max_seq_len)
        model.value = name
        tokens.value = 2048
        assert tokens.value == shape.config.max_seq_len and not living.refusal
        assert (
            living.picture.table
            == memory_calculator(RunSpec(shape, ranks=8, stage=3, seq_len=shape.config.max_seq_len), "80 GB").table
        )
    assert not any(refused)


def test_a_slow_picture_says_that_it_is_being_drawn_and_then_no_more() -> None:
    seen: list[str] = []

    def draw(one: int) -> Picture:
        seen.append(living._note.value if one else "")
        return Picture(blank(1, 1), f"{one}")

    living = Living(draw, busy="The step runs ...", one=IntSlider())
    assert not living._note.value
    living.controls["one"].value = 3
    assert "The step runs ..." in seen[-1] and not living._note.value


def test_a_notebook_without_a_kernel_shows_the_picture_and_its_numbers() -> None:
    living = memory_sliders()
    bundle = living._repr_mimebundle_()
    assert bundle["text/html"] == marked("memory", living.settings(), living.picture.html())
    assert living.picture.html() == living._shown.value
    assert bundle["text/plain"] == living.picture.table
    assert VIEW in bundle


def test_two_controls_that_move_in_two_threads_end_with_the_picture_of_both() -> None:
    drawing, go_on = Event(), Event()

    def draw(one: int, other: int) -> Picture:
        if (one, other) == (1, 0):
            drawing.set()
            assert go_on.wait(20)
        return Picture(blank(1, 1), f"{one} {other}")

    living = Living(draw, one=IntSlider(), other=IntSlider())
    threads = [Thread(target=setattr, args=(living.controls[name], "value", 1)) for name in living.controls]
    threads[0].start()
    assert drawing.wait(20)
    threads[1].start()
    threads[1].join(0.2)  # a picture that does not wait for the one before it is drawn by now
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert living.picture.table == "1 1" and "1 1" in living._shown.value


def test_settings_are_drawn_once_though_one_control_moved_another() -> None:
    drawn: list[float] = []

    def draw(one: int, other: int) -> Picture:
        drawn.append(one)
        return Picture(blank(1, 1), f"{one} {other}")

    one, other = IntSlider(), IntSlider()
    one.observe(lambda change: other.set_trait("value", change["new"]), names="value")
    living = Living(draw, one=one, other=other)
    one.value = 3
    assert drawn == [0, 3] and living.picture.table == "3 3"


@pytest.mark.usefixtures("undrawn")
def test_an_unknown_control_is_refused() -> None:
    with pytest.raises(InputError, match="there is no control 'rank'; choose one of model"):
        memory_sliders(rank=3)
    assert isinstance(memory_sliders(), Living)
