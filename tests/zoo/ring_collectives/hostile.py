"""Answers of lesson 01 that take down the process that runs them, or reach for the checker in it."""

from zoo.answers import Wrong

# Tried in a worker.
HOSTILE = [
    Wrong("loops on import", "while True:\n    pass", "does not end", "ring_all_gather"),
    Wrong("ends the process",
          "import torch\ndef ring_all_reduce(comm, tensor, average=False):\n    torch.os._exit(9)",
          "ended at once", "ring_all_reduce"),
    Wrong("exits on import", "raise SystemExit('100 %')", "it calls exit", "mended_broadcast"),
    Wrong("patches the checker", """
def ring_reduce_scatter(comm, tensor):
    kind = type(comm).__base__
    kind.isend = kind.irecv
    raise ValueError("too late to notice")
""", "it replaces", "ring_reduce_scatter"),
]  # fmt: skip

GREEDY = "def ring_bytes(numel, itemsize, ranks, rank):\n    return len(bytearray(2**36))"
