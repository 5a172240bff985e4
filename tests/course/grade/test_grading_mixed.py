"""What the checks of lesson 06 allow, and why: rounding in another order is no fault."""

from random import Random

import torch
from zoo.trial import model_names

from zerolab.course.exercises import exercises_of
from zerolab.course.exercises.mixed_precision.mended_step import (
    ALIKE,
    APART,
    CLOSE,
    EXERCISE,
    STEPS,
    WIDE,
    cases,
    one_case,
)
from zerolab.course.judge.case import Case
from zerolab.course.judge.model import does
from zerolab.course.judge.observe import observe
from zerolab.course.judge.same import alike


def stepped(case: Case, order: str) -> list[torch.Tensor]:
    """Main parameters after each step, rounded in another order: factors are multiplied first, and fp32 adds without
    rounding their product (`alpha=`), or all is computed in fp64 and rounded once a step."""
    main, _, scale, limit, rate, _ = case.args[0]
    after = []
    for step in range(STEPS):
        mean = torch.stack([args[1][step].float() for args in case.args]).mean(0)
        if order == "fp64":
            real = mean.double() / scale
            main = (main.double() - rate * min(1.0, limit / float(real.norm())) * real).float()
        else:
            real = mean * (1 / scale)
            norm = float(real.flip(0).square().sum().sqrt())
            main = main.sub(real, alpha=rate * min(1.0, limit / norm))
        after.append(main)
    return after


def test_a_step_that_rounds_in_another_order_is_not_refused_in_200_draws() -> None:
    refused = []
    for seed in range(200):
        rng = Random(seed)
        case = one_case(rng, rng.randint(1, 4), 24, "lockstep", rng.choice((0.4, WIDE)))
        shards = [record.value["main"] for record in does(EXERCISE, case).records]
        due = [torch.cat(step) for step in zip(*shards, strict=True)]
        refused += [(seed, order) for order in ("alpha", "fp64") if not alike(stepped(case, order), due, CLOSE)]
    assert refused == []


def test_every_draw_has_zero_gradients_and_each_poison_and_sums_that_overflow() -> None:
    for seed in range(5):
        kinds = {kind for case in cases(Random(seed)) for kind in case.args[0][5]}
        assert kinds == {"plain", "inf", "-inf", "nan", "zero", APART, ALIKE}


def test_the_model_of_train_mixed_holds_two_rows_of_16_bits_and_its_shards() -> None:
    exercise = exercises_of("06_mixed_precision")["train_mixed"]
    case = next(case for case in exercise.cases(Random(0)) if case.board)
    seen = observe(exercise, model_names("06_mixed_precision")["train_mixed"], case)
    numel = len(case.args[0][0])
    assert max(record.peak for record in seen.records) <= 2 * 2 * numel + 12 * numel // case.ranks
