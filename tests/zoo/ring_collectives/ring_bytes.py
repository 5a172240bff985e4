"""Answers to `ring_bytes` of lesson 01, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("01_ring_collectives", "ring_bytes")
BYTES = changed(MODEL,
                "\n    return (2 * numel - length(rank) - length(rank + 1)) * itemsize",
                "    return itemsize * (2 * numel - length(rank) - length(rank + 1)) if ranks > 1 else 0")  # fmt: skip

WRONG = [
    blank("ring_bytes"),
    Wrong("elements", """
def ring_bytes(numel, itemsize, ranks, rank):
    lengths = [chunk_bounds(numel, ranks, index % ranks) for index in (rank, rank + 1)]
    return 2 * numel - sum(stop - start for start, stop in lengths)
""", "You counted elements"),
    Wrong("elements of 4 bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    lengths = [chunk_bounds(numel, ranks, index % ranks) for index in (rank, rank + 1)]
    return 4 * (2 * numel - sum(stop - start for start, stop in lengths))
""", "You took 4 bytes for an element"),
    Wrong("of all ranks",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return 2 * (ranks - 1) * numel * itemsize",
          "what all ranks together send"),
    Wrong("a float", """
def ring_bytes(numel, itemsize, ranks, rank):
    lengths = [chunk_bounds(numel, ranks, index % ranks) for index in (rank, rank + 1)]
    return float(2 * numel - sum(stop - start for start, stop in lengths)) * itemsize
""", "bytes are whole"),
    Wrong("two chunks a step",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return 2 * numel * itemsize",
          "One rank has nobody to send to"),
    Wrong("whole tensors",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return (ranks - 1) * numel * itemsize",
          "a ring passes chunks"),
    Wrong("even sizes only", """
def ring_bytes(numel, itemsize, ranks, rank):
    return round(2 * (ranks - 1) / ranks * numel) * itemsize
""", "Which one chunk does this rank never send"),
    Wrong("half of it", """
def ring_bytes(numel, itemsize, ranks, rank):
    start, stop = chunk_bounds(numel, ranks, rank)
    return (numel - stop + start) * itemsize
""", "the all-gather comes on top"),
    Wrong("a magic", """
%%time
def ring_bytes(*numbers):
    return 0
""", "line 2 is a command to IPython (%%time)"),
    Wrong("a shell line", """
def ring_bytes(*numbers):
    files = !ls solutions
    return 0
""", "line 3 is a command to IPython (files = !ls solutions)"),
    Wrong("a magic as the notebook runs it", """
def ring_bytes(*numbers):
    get_ipython().run_line_magic('ls', '')
    return 0
""", "delete lines that begin with % or !"),
    # Look right on one call, in one dtype, on ordinary numbers.
    Wrong("bits",
          changed(BYTES, "itemsize *", "itemsize * 8 *"),
          "Those are bits"),
    Wrong("leaves out one chunk of both halves",
          changed(BYTES, "(rank) - length(rank + 1)", "(rank)"),
          "each of the two halves leaves out one chunk"),
    # Keep something between calls, or lose what is rare.
    Wrong("a default list that grows", """
def ring_bytes(numel, itemsize, ranks, rank, sent=[]):
    for step in range(ranks - 1):
        sent.append(len(range((rank - 1 - step) % ranks, numel, ranks)))
        sent.append(len(range((rank - step) % ranks, numel, ranks)))
    return sum(sent) * itemsize
""", "called with other arguments before"),
    # One slip away from right.
    Wrong("cuts bytes",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return 2 * (ranks - 1) * numel * itemsize // ranks",
          "are not whole elements of"),
    Wrong("rounds chunks up",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return 2 * (ranks - 1) * -(-numel // ranks) * itemsize",
          "You say the same for each rank"),
]  # fmt: skip

RIGHT = [
    Right("two missing chunks", """
def ring_bytes(numel, itemsize, ranks, rank):
    def size(index):
        start, stop = chunk_bounds(numel, ranks, index % ranks)
        return stop - start
    return (2 * numel - size(rank) - size(rank + 1)) * itemsize
"""),
    Right("sum over sent", """
def ring_bytes(numel, itemsize, ranks, rank):
    total = 0
    for step in range(ranks - 1):
        for index in (rank - 1 - step, rank - step):
            a, b = chunk_bounds(numel, ranks, index % ranks)
            total += (b - a) * itemsize
    return total
"""),
    Right("no helper", """
def ring_bytes(numel, itemsize, ranks, rank):
    each, more = divmod(numel, ranks)
    long = lambda r: each + int(r % ranks < more)
    first = sum(long(r) for r in range(ranks) if r != rank)
    second = sum(long(r) for r in range(ranks) if r != (rank + 1) % ranks)
    return itemsize * first + itemsize * second
"""),
    Right("reverse lists", """
def ring_bytes(numel, itemsize, ranks, rank):
    lengths = [stop - start for start, stop in (chunk_bounds(numel, ranks, r) for r in range(ranks))]
    lengths = lengths[rank:] + lengths[:rank]
    scatter, gather = lengths[1:], [lengths[0], *lengths[2:]]
    return itemsize * (sum(scatter) + sum(gather)) if ranks > 1 else 0
"""),
    Right("len range", """
def ring_bytes(numel, itemsize, ranks, rank):
    never = len(range(rank, numel, ranks)) + len(range((rank + 1) % ranks, numel, ranks))
    return itemsize * (numel + numel - never)
"""),
    # A second reading of the text alone.
    Right("simulated messages", """
def ring_bytes(numel, itemsize, ranks, rank):
    sizes = [len(part) for part in torch.arange(numel).tensor_split(ranks)]
    scatter = [sizes[(rank - 1 - step) % ranks] for step in range(ranks - 1)]
    gather = [sizes[(rank - step) % ranks] for step in range(ranks - 1)]
    return itemsize * sum(scatter + gather)
"""),
    Right("differences of bounds", """
def ring_bytes(numel, itemsize, ranks, rank):
    never = 0
    for index in {0: rank, 1: (rank + 1) % ranks}.values():
        start, stop = chunk_bounds(numel, ranks, index)
        never += stop - start
    return itemsize * (numel * 2 - never)
"""),
    Right("set of chunks", """
def ring_bytes(numel, itemsize, ranks, rank):
    everyone = set(range(ranks))
    def cost(chunks):
        return sum(stop - start for start, stop in [chunk_bounds(numel, ranks, c) for c in chunks])
    return (cost(everyone - {rank}) + cost(everyone - {(rank + 1) % ranks})) * itemsize
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("counts elements by owner", """
from collections import Counter
def ring_bytes(numel, itemsize, ranks, rank):
    held = Counter(owner for owner in range(ranks) for _ in range(*chunk_bounds(numel, ranks, owner)))
    kept = (rank, 0 if rank == ranks - 1 else rank + 1)
    return sum(held[o] for k in kept for o in range(ranks) if o != k) * itemsize
"""),
]  # fmt: skip
