"""Exercise of lesson 01: an all-gather that goes round."""

from __future__ import annotations

from zerolab.course.exercises.ring_collectives.cases import all_gather_cases, all_gather_expected
from zerolab.course.exercises.ring_collectives.ring import ring_exercise, ring_scores

EXERCISE = ring_exercise(
    "ring_all_gather",
    all_gather_cases,
    all_gather_expected,
    "every rank returns all shards in order",
    (
        "Make the whole tensor first (shard.new_empty), and put your shard where it belongs.",
        "In step 0 rank r sends chunk r and gets the left neighbour's. A step later both are one chunk back.",
        "A chunk is a view, so pass_on can receive straight into its place in the whole tensor.",
    ),
    ring_scores("all_gather", 0, "receive each chunk where it belongs in the whole tensor, then nothing is kept twice"),
)
