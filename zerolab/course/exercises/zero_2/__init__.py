"""Exercises of lesson 04: ZeRO-2."""

from zerolab.course.exercises.zero_2 import accumulate, clip_, in_flight, mended_backward, sent_bytes, shards_in_time

EXERCISES = (
    shards_in_time.EXERCISE,
    in_flight.EXERCISE,
    accumulate.EXERCISE,
    clip_.EXERCISE,
    sent_bytes.EXERCISE,
    mended_backward.EXERCISE,
)
