"""Measurements: one command each, method in the docstring, ratios taken in one run with their spread."""
