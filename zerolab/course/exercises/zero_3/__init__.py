"""Exercises of lesson 05: ZeRO-3."""

from zerolab.course.exercises.zero_3 import explain_trace, forward, persistent, prefetched, sharded_linear, step_bytes

EXERCISES = (
    forward.EXERCISE,
    sharded_linear.EXERCISE,
    prefetched.EXERCISE,
    persistent.EXERCISE,
    step_bytes.EXERCISE,
    explain_trace.EXERCISE,
)
