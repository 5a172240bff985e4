"""Exercises of lesson 08: checkpoints."""

from zerolab.course.exercises.checkpoints import (
    atomic_save,
    checkpoint_bytes,
    mended_run,
    plan_reads,
    resumable_data,
)

EXERCISES = (
    plan_reads.EXERCISE,
    atomic_save.EXERCISE,
    resumable_data.EXERCISE,
    mended_run.EXERCISE,
    checkpoint_bytes.EXERCISE,
)
