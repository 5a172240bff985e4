"""Right answers to `chunk_bounds` of lesson 01."""

from zoo.answers import Right

RIGHT = [
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
    Right("recursion", """
def chunk_bounds(numel, ranks, rank):
    start = chunk_bounds(numel, ranks, rank - 1)[1] if rank else 0
    return start, start + -(-(numel - start) // (ranks - rank))
"""),
]  # fmt: skip
