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

IN_ORDER = (nearest, train_mixed, agreed_overflow, loss_scale, mean_gradient, mended_step, state_bytes)
EXERCISES = tuple(module.EXERCISE for module in IN_ORDER)
