"""Ranks that are there already: torchrun's, and those of a process group that a script has made."""
