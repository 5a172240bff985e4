"""Wrong answers to the exercises of lesson 01 that give numbers and send nothing."""

from zoo.wrong import Wrong, blank

ZOO = [
    *map(blank, ("chunk_bounds", "ring_bytes")),
    Wrong("stop is the last element", "chunk_bounds",
          "def chunk_bounds(numel, ranks, rank):\n    short, longer = divmod(numel, ranks)\n"
          "    start = rank * short + min(rank, longer)\n    return start, start + short + (rank < longer) - 1",
          "no longer in the chunk"),
    Wrong("ranks from 1", "chunk_bounds",
          "def chunk_bounds(numel, ranks, rank):\n    short, longer = divmod(numel, ranks)\n    rank += 1\n"
          "    start = rank * short + min(rank, longer)\n    return start, start + short + (rank < longer)",
          "ranks count from 0"),
    Wrong("the rest to the last", "chunk_bounds", '''
def chunk_bounds(numel, ranks, rank):
    each = numel // ranks
    return rank * each, numel if rank == ranks - 1 else (rank + 1) * each
''', "the last rank has all the rest"),
    Wrong("elements", "ring_bytes", '''
def ring_bytes(numel, itemsize, ranks, rank):
    lengths = [chunk_bounds(numel, ranks, index % ranks) for index in (rank, rank + 1)]
    return 2 * numel - sum(stop - start for start, stop in lengths)
''', "You counted elements"),
    Wrong("elements of 4 bytes", "ring_bytes", '''
def ring_bytes(numel, itemsize, ranks, rank):
    lengths = [chunk_bounds(numel, ranks, index % ranks) for index in (rank, rank + 1)]
    return 4 * (2 * numel - sum(stop - start for start, stop in lengths))
''', "You took 4 bytes for an element"),
    Wrong("of all ranks", "ring_bytes",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return 2 * (ranks - 1) * numel * itemsize",
          "what all ranks together send"),
    Wrong("a float", "ring_bytes", '''
def ring_bytes(numel, itemsize, ranks, rank):
    lengths = [chunk_bounds(numel, ranks, index % ranks) for index in (rank, rank + 1)]
    return float(2 * numel - sum(stop - start for start, stop in lengths)) * itemsize
''', "bytes are whole"),
    Wrong("two chunks a step", "ring_bytes",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return 2 * numel * itemsize",
          "One rank has nobody to send to"),
    Wrong("drops the rest", "chunk_bounds", '''
def chunk_bounds(numel, ranks, rank):
    each = numel // ranks
    return rank * each, (rank + 1) * each
''', "to nobody"),
    Wrong("longer ones last", "chunk_bounds", '''
def chunk_bounds(numel, ranks, rank):
    return rank * numel // ranks, (rank + 1) * numel // ranks
''', "belong to the first ranks"),
    Wrong("rounds up", "chunk_bounds", '''
def chunk_bounds(numel, ranks, rank):
    each = -(-numel // ranks)
    return min(numel, rank * each), min(numel, (rank + 1) * each)
''', "as long as the longest"),
    Wrong("a length", "chunk_bounds", "def chunk_bounds(numel, ranks, rank):\n    return numel // ranks",
          "two whole numbers"),
    Wrong("whole tensors", "ring_bytes",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return (ranks - 1) * numel * itemsize",
          "a ring passes chunks"),
    Wrong("even sizes only", "ring_bytes", '''
def ring_bytes(numel, itemsize, ranks, rank):
    return round(2 * (ranks - 1) / ranks * numel) * itemsize
''', "Which one chunk does this rank never send"),
    Wrong("half of it", "ring_bytes", '''
def ring_bytes(numel, itemsize, ranks, rank):
    start, stop = chunk_bounds(numel, ranks, rank)
    return (numel - stop + start) * itemsize
''', "the all-gather comes on top"),
    Wrong("a magic", "ring_bytes", "%%time\ndef ring_bytes(*numbers):\n    return 0",
          "line 1 is a command to IPython (%%time)"),
    Wrong("a shell line", "ring_bytes", "def ring_bytes(*numbers):\n    files = !ls solutions\n    return 0",
          "line 2 is a command to IPython (files = !ls solutions)"),
    Wrong("a magic as the notebook runs it", "ring_bytes",
          "def ring_bytes(*numbers):\n    get_ipython().run_line_magic('ls', '')\n    return 0",
          "delete lines that begin with % or !"),
]  # fmt: skip
