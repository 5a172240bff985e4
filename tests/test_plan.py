"""What fits where: counts of known models, what a run needs, and what would make it fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerolab.course.viz.calculator import GPUS, KINDS, memory_calculator, verdict
from zerolab.errors import InputError
from zerolab.memory import RECIPES, predict_states
from zerolab.plan import GB, OFFLOADS, SHAPES, Run, Shape, advice

LARGE = SHAPES["GPT-3 175B"]
STATES = ["parameters", "gradients", "optimizer_states"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [("GPT-2 124M", 0.1244), ("GPT-2 1.5B", 1.5576), ("GPT-3 2.7B", 2.65), ("GPT-3 13B", 12.85), ("GPT-3 175B", 174.6)],
)
def test_known_models_have_the_parameters_that_they_are_known_for(name: str, billions: float) -> None:
    assert SHAPES[name].parameters / GB == pytest.approx(billions, rel=2e-3)


def test_gpt2_counts_to_the_last_parameter() -> None:
    """The released model's own count: embeddings 50,257 and 1,024 by 768, twelve layers, a last norm."""
    assert SHAPES["GPT-2 124M"].parameters == 124_439_808


def test_activations_follow_the_formula_by_hand() -> None:
    shape = SHAPES["GPT-2 124M"]
    layer = 1024 * 768 * (34 + 5 * 12 * 1024 / 768)
    assert shape.activation_bytes(1, 1024, checkpointing=False) == 12 * layer
    assert shape.activation_bytes(1, 1024, checkpointing=True) == 12 * 2 * 1024 * 768 + layer
    assert shape.activation_bytes(8, 1024, False) == 8 * shape.activation_bytes(1, 1024, False)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_are_those_of_the_papers_arithmetic(stage: int) -> None:
    needs = Run(SHAPES["GPT-3 6.7B"], ranks=16, stage=stage).needs()
    states = predict_states(SHAPES["GPT-3 6.7B"].parameters, 16, stage, "mixed")
    assert {kind: needs[kind] for kind in states} == states


def test_what_is_offloaded_is_on_the_host_and_nowhere_else() -> None:
    """And sharded gradients with the optimizer that uses them; whole ones stay."""
    assert Run(LARGE, ranks=64, stage=1, offload="optimizer").needs()["gradients"] > 0
    at_home = Run(LARGE, ranks=64, stage=3)
    for offload, moved in [("optimizer", STATES[1:]), (OFFLOADS[2], STATES)]:
        away = Run(LARGE, ranks=64, stage=3, offload=offload)
        assert all(away.needs()[kind] == 0 for kind in moved)
        assert away.needs()["host"] == pytest.approx(sum(at_home.needs()[kind] for kind in moved))
        assert away.gpu_bytes() + away.needs()["host"] == pytest.approx(at_home.gpu_bytes())


@given(
    shape=st.sampled_from(list(SHAPES.values())),
    ranks=st.integers(1, 300),
    stage=st.integers(0, 3),
    batch=st.integers(1, 64),
    checkpointing=st.booleans(),
    gpu=st.sampled_from(list(GPUS)),
)
def test_advice_fits_and_changes_nothing_that_fits_already(
    shape: Shape, ranks: int, stage: int, batch: int, checkpointing: bool, gpu: str
) -> None:
    run = Run(shape, ranks, stage, "mixed", batch, 512, checkpointing)
    limit = GPUS[gpu] * GB
    found = advice(run, limit)
    said = verdict(run, limit, gpu)
    if found is None:
        assert run.gpu_bytes() > limit and "no stage" in said
        return
    assert found.gpu_bytes() <= limit
    assert (found == run) == (run.gpu_bytes() <= limit) == (" fits into " in said)
    assert found.stage >= run.stage and found.ranks >= run.ranks and found.batch <= run.batch


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_calculators_table_says_what_its_bars_show(recipe: str) -> None:
    run = Run(SHAPES["GPT-2 1.5B"], ranks=8, stage=3, recipe=recipe, checkpointing=True)
    picture = memory_calculator(run, "24 GB")
    lines = {line.split("  ")[0]: line.split()[-1] for line in picture.table.splitlines()[1:9]}
    for kind in KINDS:
        assert float(lines[kind.replace("_", " ")]) == pytest.approx(run.needs()[kind] / GB, abs=0.005)
    assert float(lines["one GPU"]) == pytest.approx(run.gpu_bytes() / GB, abs=0.005)
    tops = [patch.get_y() + patch.get_height() for patch in picture.figure.axes[0].patches]
    assert max(tops) == pytest.approx(
        max(Run(run.shape, 8, stage, recipe, checkpointing=True).gpu_bytes() for stage in RECIPES[recipe].stages) / GB
    )


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Shape("odd", 2, 100, 3), "hidden is 100, which 3 heads do not divide"),
        (lambda: Shape("none", 0, 64, 1), "layers is 0"),
        (lambda: Run(LARGE, offload="the moon"), "offload is 'the moon'"),
        (lambda: Run(LARGE, stage=2, offload=OFFLOADS[2]), "not at 2; offload"),
        (lambda: Run(LARGE, tokens=4096), "4096 tokens are more than the context of GPT-3 175B, 2048"),
        (lambda: Run(LARGE, recipe="fsdp2"), "recipe fsdp2 has no stage 0"),
        (lambda: Run(LARGE, ranks=0), "ranks is 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(make: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        make()  # type: ignore[operator]
