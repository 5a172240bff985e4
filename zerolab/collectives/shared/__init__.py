"""Collectives of ranks that share a machine's memory."""
