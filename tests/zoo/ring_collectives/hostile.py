"""An answer of lesson 01 that takes all memory of the process that runs it."""

GREEDY = "def ring_bytes(numel, itemsize, ranks, rank):\n    return len(bytearray(2**36))"
