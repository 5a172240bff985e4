"""Right answers to the exercises of lesson 01 that send nothing, in other styles than the model's."""

from zoo.right.answer import Right

RIGHT = [
    Right("divmod min", "chunk_bounds", """
def chunk_bounds(numel, ranks, rank):
    each, more = divmod(numel, ranks)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)
"""),
    Right("split a list", "chunk_bounds", """
def chunk_bounds(numel, ranks, rank):
    sizes = [numel // ranks + (r < numel % ranks) for r in range(ranks)]
    return sum(sizes[:rank]), sum(sizes[:rank + 1])
"""),
    Right("ceil formula", "chunk_bounds", """
def chunk_bounds(numel, ranks, rank):
    edge = lambda r: numel * 1 // ranks * r + min(r, numel % ranks)
    return edge(rank), edge(rank + 1)
"""),
    Right("recursion", "chunk_bounds", """
def chunk_bounds(numel, ranks, rank):
    first = -(-numel // ranks)
    if rank == 0:
        return 0, first
    start, stop = chunk_bounds(numel - first, ranks - 1, rank - 1)
    return start + first, stop + first
"""),
    Right("accumulate pairwise", "chunk_bounds", """
from itertools import accumulate, pairwise, islice
def chunk_bounds(numel, ranks, rank):
    lengths = (len(range(r, numel, ranks)) for r in range(ranks))
    edges = accumulate(lengths, initial=0)
    return next(islice(pairwise(edges), rank, None))
"""),
    Right("tensor_split on meta", "chunk_bounds", """
import torch
def chunk_bounds(numel, ranks, rank):
    part = torch.empty(numel, dtype=torch.uint8, device="meta").tensor_split(ranks)[rank]
    return part.storage_offset(), part.storage_offset() + len(part)
"""),
    Right("tensor cumsum", "chunk_bounds", """
def chunk_bounds(numel, ranks, rank):
    sizes = torch.full((ranks,), numel // ranks)
    sizes[:numel % ranks] += 1
    ends = sizes.cumsum(0).tolist()
    return ends[rank] - sizes[rank].item(), ends[rank]
"""),
    Right("two missing chunks", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    def size(index):
        start, stop = chunk_bounds(numel, ranks, index % ranks)
        return stop - start
    return (2 * numel - size(rank) - size(rank + 1)) * itemsize
"""),
    Right("sum over sent", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    total = 0
    for step in range(ranks - 1):
        for index in (rank - 1 - step, rank - step):
            a, b = chunk_bounds(numel, ranks, index % ranks)
            total += (b - a) * itemsize
    return total
"""),
    Right("no helper", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    each, more = divmod(numel, ranks)
    long = lambda r: each + int(r % ranks < more)
    first = sum(long(r) for r in range(ranks) if r != rank)
    second = sum(long(r) for r in range(ranks) if r != (rank + 1) % ranks)
    return itemsize * first + itemsize * second
"""),
    Right("reverse lists", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    lengths = [stop - start for start, stop in (chunk_bounds(numel, ranks, r) for r in range(ranks))]
    lengths = lengths[rank:] + lengths[:rank]
    scatter, gather = lengths[1:], [lengths[0], *lengths[2:]]
    return itemsize * (sum(scatter) + sum(gather)) if ranks > 1 else 0
"""),
    Right("len range", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    never = len(range(rank, numel, ranks)) + len(range((rank + 1) % ranks, numel, ranks))
    return itemsize * (numel + numel - never)
"""),
]  # fmt: skip
