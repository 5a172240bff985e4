"""Exercises of lesson 06: mixed precision."""

from zerolab.course.exercises.mixed_precision import (
    agreed_overflow,
    loss_scale,
    mean_gradient,
    mended_step,
    nearest,
    state_bytes,
    train_mixed,
)

EXERCISES = (
    nearest.EXERCISE,
    train_mixed.EXERCISE,
    agreed_overflow.EXERCISE,
    loss_scale.EXERCISE,
    mean_gradient.EXERCISE,
    mended_step.EXERCISE,
    state_bytes.EXERCISE,
)
