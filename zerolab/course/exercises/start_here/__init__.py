"""Exercises of lesson 00: arithmetic of model states, held to what real steps leave in memory."""

from zerolab.course.exercises.start_here import choose_stage, fewest_ranks, most_parameters, name_the_peak, state_bytes

EXERCISES = (
    state_bytes.EXERCISE,
    choose_stage.EXERCISE,
    most_parameters.EXERCISE,
    name_the_peak.EXERCISE,
    fewest_ranks.EXERCISE,
)
