"""Exercises of lesson 06: mixed precision."""

from __future__ import annotations

from zerolab.grading.lessons.mixed_bytes import STATE_BYTES
from zerolab.grading.lessons.mixed_formats import NEAREST
from zerolab.grading.lessons.mixed_mended import MENDED
from zerolab.grading.lessons.mixed_overflow import OVERFLOW
from zerolab.grading.lessons.mixed_scaler import SCALER
from zerolab.grading.lessons.mixed_step import MIXED
from zerolab.grading.lessons.mixed_sums import SUMS

EXERCISES = (NEAREST, MIXED, OVERFLOW, SCALER, SUMS, MENDED, STATE_BYTES)
