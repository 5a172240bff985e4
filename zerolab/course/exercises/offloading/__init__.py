"""Exercises of lesson 07: offloading."""

from zerolab.course.exercises.offloading import host_step, mended_step, overlapped_walk, sub_groups, tier_bytes

EXERCISES = (
    tier_bytes.EXERCISE,
    host_step.EXERCISE,
    sub_groups.EXERCISE,
    overlapped_walk.EXERCISE,
    mended_step.EXERCISE,
)
