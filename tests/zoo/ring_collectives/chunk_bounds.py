"""Answers to `chunk_bounds` of lesson 01, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("divmod min", """
def chunk_bounds(numel, ranks, rank):
    each, more = divmod(numel, ranks)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)
"""),
    Right("split a list", """
def chunk_bounds(numel, ranks, rank):
    sizes = [numel // ranks + (r < numel % ranks) for r in range(ranks)]
    return sum(sizes[:rank]), sum(sizes[:rank + 1])
"""),
    Right("ceil formula", """
def chunk_bounds(numel, ranks, rank):
    edge = lambda r: numel * 1 // ranks * r + min(r, numel % ranks)
    return edge(rank), edge(rank + 1)
"""),
    Right("recursion", """
def chunk_bounds(numel, ranks, rank):
    first = -(-numel // ranks)
    if rank == 0:
        return 0, first
    start, stop = chunk_bounds(numel - first, ranks - 1, rank - 1)
    return start + first, stop + first
"""),
    Right("accumulate pairwise", """
from itertools import accumulate, pairwise, islice
def chunk_bounds(numel, ranks, rank):
    lengths = (len(range(r, numel, ranks)) for r in range(ranks))
    edges = accumulate(lengths, initial=0)
    return next(islice(pairwise(edges), rank, None))
"""),
    Right("tensor_split on meta", """
import torch
def chunk_bounds(numel, ranks, rank):
    part = torch.empty(numel, dtype=torch.uint8, device="meta").tensor_split(ranks)[rank]
    return part.storage_offset(), part.storage_offset() + len(part)
"""),
    Right("tensor cumsum", """
def chunk_bounds(numel, ranks, rank):
    sizes = torch.full((ranks,), numel // ranks)
    sizes[:numel % ranks] += 1
    ends = sizes.cumsum(0).tolist()
    return ends[rank] - sizes[rank].item(), ends[rank]
"""),
    # A second reading of the text alone.
    Right("lengths by a formula", """
def chunk_bounds(numel, ranks, rank):
    length = lambda r: (numel + ranks - 1 - r) // ranks
    before = sum(map(length, range(rank)))
    return before, before + length(rank)
"""),
    Right("a list that is dealt out", """
def chunk_bounds(numel, ranks, rank):
    owners = sorted(element % ranks for element in range(numel))
    return owners.index(rank) if rank in owners else numel, numel - sum(owner > rank for owner in owners)
"""),
    Right("a list, not a tuple", """
def chunk_bounds(numel, ranks, rank):
    parts = torch.arange(numel).tensor_split(ranks)
    start = sum(part.numel() for part in parts[:rank])
    return [start, start + parts[rank].numel()]
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("recursion", """
def chunk_bounds(numel, ranks, rank):
    start = chunk_bounds(numel, ranks, rank - 1)[1] if rank else 0
    return start, start + -(-(numel - start) // (ranks - rank))
"""),
]  # fmt: skip
