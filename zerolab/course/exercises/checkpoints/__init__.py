"""Exercises of lesson 08: checkpoints."""

from zerolab.course.exercises.checkpoints import atomic_save, checkpoint_bytes, mended_run, plan_reads, resumable_data

LESSON = (plan_reads, atomic_save, resumable_data, mended_run, checkpoint_bytes)
EXERCISES = tuple(one.EXERCISE for one in LESSON)
