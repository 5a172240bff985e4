"""The loss scale moves as DeepSpeed's does, and where that is not as torch's GradScaler does, this says where."""

import json
import logging
from itertools import pairwise
from math import log2

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zerolab.errors import InputError, ZerolabError
from zerolab.precision.scaler import LossScaler, ScaleError

SMALL = {"initial_power": 4, "window": 3}
ENDED = "end"
# Powers of two, before the first step and after each one, of DynamicLossScaler in DeepSpeed 0.19.8, recorded with
# `benchmarks`' environment (DS_ACCELERATOR=cpu, torch 2.13): a scaler with init_scale, scale_window, delayed_shift and
# consecutive_hysteresis of these settings and min_scale=1, update_scale(True) for an x and update_scale(False) for a
# point, cur_scale read after each call; `end` is where it raised. The last script is random.
RECORDED = [
    ("........", {}, "4 4 4 4 5 5 5 6 6"),
    ("x.......x....", {}, "4 4 4 4 4 5 5 5 6 6 6 6 6 7"),
    ("xx..x...x....x.xx", {}, "4 4 3 3 3 2 2 2 2 1 1 1 1 2 2 2 1 0"),
    ("x.x.x.x.x", {"consecutive_hysteresis": True}, "4 4 4 4 4 4 4 4 4 4"),
    ("xx.xx...x....x.xx", {"consecutive_hysteresis": True}, "4 4 3 3 3 2 2 2 2 2 2 2 2 3 3 3 3 2"),
    ("..x...x....x.....", {"hysteresis": 1}, "4 4 4 3 3 3 3 2 2 2 2 3 2 2 2 2 3 3"),
    ("xxxxxxx", {}, "4 4 3 2 1 0 end"),
    ("xxx.xxx", {"hysteresis": 3}, "4 4 4 3 3 2 1 0"),
    ("xx....x.x...x....x", {"hysteresis": 1, "window": 1}, "4 3 2 2 3 4 5 4 4 3 3 4 5 4 4 5 6 7 6"),
    (
        "....x.....x.x....x.xx......x....x.x..x..x....x......x...x...",
        {"initial_power": 16, "window": 4},
        "16 16 16 16 16 16 16 16 16 16 17 17 17 16 16 16 16 16 15 15 14 13 13 13 13 13 14 14 14 14 14 14 14 13 13 12 "
        "12 12 11 11 11 10 10 10 10 10 9 9 9 9 9 10 10 10 10 10 10 9 9 9 9",
    ),
]
SCRIPTS = st.lists(st.sampled_from([False, False, False, True]), max_size=60)
SETTINGS = st.fixed_dictionaries(
    {
        "initial_power": st.integers(3, 20),
        "window": st.integers(1, 6),
        "hysteresis": st.integers(1, 4),
        "min_scale": st.sampled_from([0.25, 1.0, 3.0, 8.0]),
        "consecutive_hysteresis": st.booleans(),
    }
)


def flags(script: str) -> list[bool]:
    return [step == "x" for step in script]


def course(scaler: LossScaler, script: list[bool]) -> list[float | str]:
    """The scale before the first step and after each one, up to the step that ends the run."""
    scales: list[float | str] = [scaler.scale]
    for overflow in script:
        try:
            scaler.update(overflow)
        except ScaleError:
            return [*scales, ENDED]
        scales.append(scaler.scale)
    return scales


def course_of_deepspeed(script: list[bool], **settings: object) -> list[float | str]:
    module = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    scaler = module.DynamicLossScaler(
        init_scale=2 ** settings["initial_power"], scale_window=settings["window"], min_scale=settings["min_scale"],
        delayed_shift=settings["hysteresis"], consecutive_hysteresis=settings["consecutive_hysteresis"],
    )  # fmt: skip
    scales: list[float | str] = [scaler.cur_scale]
    for overflow in script:
        try:
            scaler.update_scale(overflow)
        except Exception:
            return [*scales, ENDED]
        scales.append(scaler.cur_scale)
    return scales


def course_of_torch(script: list[bool], initial_power: int, window: int) -> list[float]:
    """GradScaler's own, driven by an optimizer whose gradients really hold an inf."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**initial_power, growth_interval=window)
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler.scale(torch.zeros(()))  # the scale is a tensor from the first use on
    scales = [scaler.get_scale()]
    for overflow in script:
        parameter.grad = torch.tensor([1.0, float("inf") if overflow else 1.0])
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


# As DeepSpeed's


@pytest.mark.parametrize(("script", "settings", "powers"), RECORDED, ids=[script[:20] for script, *_ in RECORDED])
def test_the_scale_goes_where_deepspeeds_went(script: str, settings: dict, powers: str) -> None:
    found = course(LossScaler(**(SMALL | settings)), flags(script))
    assert [ENDED if scale == ENDED else str(round(log2(scale))) for scale in found] == powers.split()


@pytest.mark.bench
def test_it_goes_where_an_installed_deepspeed_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    module = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    monkeypatch.setattr(module.dist, "get_rank", lambda: 1)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)

    @given(SCRIPTS, SETTINGS)
    def compare(script: list[bool], settings: dict) -> None:
        settings["min_scale"] = min(settings["min_scale"], 2.0 ** settings["initial_power"])
        assert course(LossScaler(**settings), script) == course_of_deepspeed(script, **settings)

    compare()


# Beside GradScaler


def test_growth_after_a_start_or_an_overflow_comes_one_step_later_than_gradscalers() -> None:
    script = flags(".......x.......")
    ours = course(LossScaler(**SMALL, hysteresis=1), script)
    torchs = course_of_torch(script, **SMALL)
    growth = [step for step, (before, after) in enumerate(pairwise(ours), 1) if after > before]
    assert growth == [4, 7, 12, 15], "steps 4 and 12 are the fourth clean ones in a row; then every third"
    assert [step for step, (before, after) in enumerate(pairwise(torchs), 1) if after > before] == [3, 6, 11, 14]


@given(script=SCRIPTS, window=st.integers(1, 5))
def test_with_one_more_clean_step_at_the_start_and_after_each_overflow_it_is_gradscaler(
    script: list[bool], window: int
) -> None:
    scaler = LossScaler(initial_power=20, window=window, hysteresis=1, min_scale=2.0**-60)
    scaler.update(False)
    ours = [scaler.scale]
    for overflow in script:
        scaler.update(overflow)
        ours.append(scaler.scale)
        if overflow:
            scaler.update(False)
            assert scaler.scale == ours[-1]
    assert ours == course_of_torch(script, 20, window)


def test_gradscaler_has_neither_floor_nor_hysteresis() -> None:
    script = flags("xxxxxx")
    assert course_of_torch(script, **SMALL) == [16, 8, 4, 2, 1, 0.5, 0.25]
    assert course(LossScaler(**SMALL, hysteresis=1), script) == [16, 8, 4, 2, 1, ENDED]
    assert course(LossScaler(**SMALL, hysteresis=2), script) == [16, 16, 8, 4, 2, 1, ENDED]


def test_gradscaler_stops_growing_where_fp32_ends_and_ours_where_floats_do() -> None:
    assert course_of_torch([False] * 4, 126, 1) == [2.0**126, *[2.0**127] * 4]
    assert course(LossScaler(126, window=1), [False] * 3) == [2.0**126, 2.0**126, 2.0**127, 2.0**128]
    scaler = LossScaler(127, window=1)
    assert course(scaler, [False] * 1000)[-1] == 2.0**1023
    course(scaler, [True] * 2)
    assert scaler.scale == 2.0**1022, "an inf would never come down again"


# What holds for any run


@given(SCRIPTS, SETTINGS)
def test_each_step_keeps_the_promises_of_floor_window_and_hysteresis(script: list[bool], settings: dict) -> None:
    scaler = LossScaler(**settings)
    window, patience, clean, forgiven = settings["window"], settings["hysteresis"] - 1, 0, 0
    for overflow in script:
        before = scaler.scale
        try:
            scaler.update(overflow)
        except ScaleError:
            assert before == settings["min_scale"] and forgiven == patience and overflow
            assert scaler.scale == before
            return
        assert scaler.scale >= settings["min_scale"]
        if overflow:
            halves = forgiven == patience
            assert scaler.scale == (max(before / 2, settings["min_scale"]) if halves else before)
            forgiven, clean = min(forgiven + 1, patience), 0
        else:
            grows = clean > 0 and clean % window == 0
            assert scaler.scale == (2 * before if grows else before)
            forgiven = 0 if grows or settings["consecutive_hysteresis"] else forgiven
            clean += 1


@given(SCRIPTS, SETTINGS, st.integers(0, 60))
def test_a_run_that_goes_on_from_a_checkpoint_goes_on_as_if_never_stopped(
    script: list[bool], settings: dict, at: int
) -> None:
    whole = course(LossScaler(**settings), script)
    first = LossScaler(**settings)
    begun = course(first, script[:at])
    if begun[-1] == ENDED:
        return
    second = LossScaler(**settings)
    second.load(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    assert [*begun, *course(second, script[at:])[1:]] == whole


@given(SCRIPTS, st.sampled_from([1.0, 128.0, 3.5]))
def test_a_static_scale_stays_whatever_happens(script: list[bool], static: float) -> None:
    scaler = LossScaler(static=static, hysteresis=1, min_scale=4096.0)
    assert set(course(scaler, script)) == {static}
    scaler.load(LossScaler().state())
    assert scaler.scale == static


def test_an_overflow_at_the_floor_says_what_to_do_and_changes_nothing() -> None:
    scaler = LossScaler(initial_power=0, hysteresis=2)
    scaler.update(True)
    kept = scaler.state()
    with pytest.raises(ScaleError, match="at the smallest loss scale, 1; train in bf16") as caught:
        scaler.update(True)
    assert scaler.state() == kept and isinstance(caught.value, ZerolabError)


# Input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial_power": 1.5}, "initial_power is 1.5; give a whole number"),
        ({"initial_power": -1}, "initial_power is -1"),
        ({"initial_power": 128}, "initial_power is 128, beyond fp32; give at most 127"),
        ({"window": 0}, "window is 0; give a whole number of at least 1"),
        ({"hysteresis": True}, "hysteresis is True"),
        ({"min_scale": 0}, "min_scale is 0; give a finite number above 0"),
        ({"min_scale": float("nan")}, "min_scale is nan"),
        ({"min_scale": 32.0, "initial_power": 4}, r"min_scale is 32, above the scale at the start, 2\*\*4"),
        ({"static": 0}, "static is 0; give a finite number above 0 or None"),
        ({"static": 1e39}, "static is 1e\\+39, beyond fp32; give at most 2\\*\\*127"),
        ({"static": 10**400}, "static is 1000*; give a finite number above 0 or None"),
        ({"static": "auto"}, "static is 'auto'"),
        ({"consecutive_hysteresis": 1}, "consecutive_hysteresis is 1; give True or False"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LossScaler(**settings)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"scale": float("inf"), "clean": 0, "left": 1}, "scale in the state is inf"),
        ({"scale": 2.0, "clean": -1, "left": 1}, "clean in the state is -1"),
        ({"scale": 2.0, "clean": 0, "left": 0}, "left in the state is 0"),
        ({"scale": 0.5, "clean": 0, "left": 1}, "scale in the state is 0.5, below min_scale, 1"),
    ],
)
def test_a_state_that_is_none_is_refused_and_nothing_is_loaded(state: dict, message: str) -> None:
    scaler = LossScaler()
    kept = scaler.state()
    with pytest.raises(InputError, match=message):
        scaler.load(state)
    assert scaler.state() == kept


def test_more_is_not_forgiven_than_the_settings_of_now_allow() -> None:
    scaler = LossScaler(initial_power=4, hysteresis=1)
    scaler.load(LossScaler(initial_power=4, hysteresis=5).state())
    scaler.update(True)
    assert scaler.scale == 8
