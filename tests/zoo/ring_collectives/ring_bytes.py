"""Right answers to `ring_bytes` of lesson 01."""

from zoo.answers import Right

RIGHT = [
    Right("sum over sent", """
def ring_bytes(numel, itemsize, ranks, rank):
    total = 0
    for step in range(ranks - 1):
        for index in (rank - 1 - step, rank - step):
            a, b = chunk_bounds(numel, ranks, index % ranks)
            total += (b - a) * itemsize
    return total
"""),
    Right("len range", """
def ring_bytes(numel, itemsize, ranks, rank):
    never = len(range(rank, numel, ranks)) + len(range((rank + 1) % ranks, numel, ranks))
    return itemsize * (numel + numel - never)
"""),
    Right("simulated messages", """
def ring_bytes(numel, itemsize, ranks, rank):
    sizes = [len(part) for part in torch.arange(numel).tensor_split(ranks)]
    scatter = [sizes[(rank - 1 - step) % ranks] for step in range(ranks - 1)]
    gather = [sizes[(rank - step) % ranks] for step in range(ranks - 1)]
    return itemsize * sum(scatter + gather)
"""),
    Right("set of chunks", """
def ring_bytes(numel, itemsize, ranks, rank):
    everyone = set(range(ranks))
    def cost(chunks):
        return sum(stop - start for start, stop in [chunk_bounds(numel, ranks, c) for c in chunks])
    return (cost(everyone - {rank}) + cost(everyone - {(rank + 1) % ranks})) * itemsize
"""),
    Right("counts elements by owner", """
from collections import Counter
def ring_bytes(numel, itemsize, ranks, rank):
    held = Counter(owner for owner in range(ranks) for _ in range(*chunk_bounds(numel, ranks, owner)))
    kept = (rank, 0 if rank == ranks - 1 else rank + 1)
    return sum(held[o] for k in kept for o in range(ranks) if o != k) * itemsize
"""),
]  # fmt: skip
