"""Exercises of lesson 09: what a step costs, what overlaps, and where it goes at scale."""

from zerolab.course.exercises.cost_and_scale import (
    best_bucket,
    fit_link,
    hidden,
    hierarchical_all_reduce,
    step_seconds,
    where_time_goes,
)

EXERCISES = (
    fit_link.EXERCISE,
    step_seconds.EXERCISE,
    best_bucket.EXERCISE,
    hidden.EXERCISE,
    hierarchical_all_reduce.EXERCISE,
    where_time_goes.EXERCISE,
)
