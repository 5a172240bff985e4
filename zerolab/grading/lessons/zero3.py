"""Exercises of lesson 05: ZeRO-3."""

from __future__ import annotations

from zerolab.grading.lessons.zero3_ahead import AHEAD
from zerolab.grading.lessons.zero3_layers import FORWARD
from zerolab.grading.lessons.zero3_persistent import PERSISTENT
from zerolab.grading.lessons.zero3_steps import COST
from zerolab.grading.lessons.zero3_trace import TRACE
from zerolab.grading.lessons.zero3_training import TRAINS

EXERCISES = (FORWARD, TRAINS, AHEAD, PERSISTENT, COST, TRACE)
