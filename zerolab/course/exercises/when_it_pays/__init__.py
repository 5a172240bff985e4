"""Exercise of lesson 07b: when offloading pays."""

from zerolab.course.exercises.when_it_pays import best_place

EXERCISES = (best_place.EXERCISE,)
