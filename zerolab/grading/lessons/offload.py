"""Exercises of lesson 07: offloading. Each has a file of its own, as lesson 07b's has (`offload_pays.py`)."""

from zerolab.grading.lessons.offload_groups import GROUPS
from zerolab.grading.lessons.offload_mended import MENDED
from zerolab.grading.lessons.offload_step import HOST_STEP
from zerolab.grading.lessons.offload_tiers import TIER_BYTES
from zerolab.grading.lessons.offload_walk import WALK

EXERCISES = (TIER_BYTES, HOST_STEP, GROUPS, WALK, MENDED)
