"""Exercises of lesson 03: ZeRO-1."""

from zerolab.course.exercises.zero_1 import (
    mended_optimizer,
    step_bytes,
    step_overlapped,
    train_grouped,
    train_sharded,
    whole_tensors,
)

EXERCISES = (
    whole_tensors.EXERCISE,
    train_sharded.EXERCISE,
    step_overlapped.EXERCISE,
    train_grouped.EXERCISE,
    mended_optimizer.EXERCISE,
    step_bytes.EXERCISE,
)
