"""Exercises of lesson 01: ring collectives."""

from zerolab.course.exercises.ring_collectives import (
    chunk_bounds,
    mended_broadcast,
    ring_all_gather,
    ring_all_reduce,
    ring_bytes,
    ring_reduce_scatter,
)

EXERCISES = (
    chunk_bounds.EXERCISE,
    ring_reduce_scatter.EXERCISE,
    ring_all_gather.EXERCISE,
    ring_all_reduce.EXERCISE,
    ring_bytes.EXERCISE,
    mended_broadcast.EXERCISE,
)
