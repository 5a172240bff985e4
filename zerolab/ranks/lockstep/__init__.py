"""Ranks that take turns in one process: a scheduler, messages on a virtual clock, and a world without values."""
