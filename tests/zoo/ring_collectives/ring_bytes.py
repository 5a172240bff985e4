"""Answers to `ring_bytes` of lesson 01, wrong and right."""

from zoo.answers import Right

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
