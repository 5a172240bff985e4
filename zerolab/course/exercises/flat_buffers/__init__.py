"""Exercises of lesson 02: flat buffers."""

from zerolab.course.exercises.flat_buffers import average_gradients, culprit, flatten, lay_out, owned, reduce_overlapped

EXERCISES = (
    lay_out.EXERCISE,
    owned.EXERCISE,
    flatten.EXERCISE,
    average_gradients.EXERCISE,
    reduce_overlapped.EXERCISE,
    culprit.EXERCISE,
)
