"""Answers to `chunk_bounds` of lesson 01, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("01_ring_collectives", "chunk_bounds")

WRONG = [
    blank("chunk_bounds"),
    Wrong("stop is the last element",
          changed(MODEL, "(rank < longer)", "(rank < longer) - 1"),
          "no longer in the chunk"),
    Wrong("ranks from 1",
          changed(MODEL, "start = rank", "rank += 1\n    start = rank"),
          "ranks count from 0"),
    Wrong("the rest to the last", """
def chunk_bounds(numel, ranks, rank):
    each = numel // ranks
    return rank * each, numel if rank == ranks - 1 else (rank + 1) * each
""", "the last rank has all the rest"),
    Wrong("drops the rest", """
def chunk_bounds(numel, ranks, rank):
    each = numel // ranks
    return rank * each, (rank + 1) * each
""", "to nobody"),
    Wrong("longer ones last", """
def chunk_bounds(numel, ranks, rank):
    return rank * numel // ranks, (rank + 1) * numel // ranks
""", "belong to the first ranks"),
    Wrong("rounds up", """
def chunk_bounds(numel, ranks, rank):
    each = -(-numel // ranks)
    return min(numel, rank * each), min(numel, (rank + 1) * each)
""", "as long as the longest"),
    Wrong("a length",
          "def chunk_bounds(numel, ranks, rank):\n    return numel // ranks",
          "two whole numbers"),
    # Look right on one call, in one dtype, on ordinary numbers.
    Wrong("a start and a length", """
def chunk_bounds(numel, ranks, rank):
    short, longer = divmod(numel, ranks)
    return rank * short + min(rank, longer), short + (rank < longer)
""", "the second number is a length"),
    Wrong("a start without the longer ones", """
def chunk_bounds(numel, ranks, rank):
    short, longer = divmod(numel, ranks)
    return rank * short, (rank + 1) * short + (rank < longer)
""", "starts before rank 0's stops"),
    Wrong("all that is left over to the first", """
def chunk_bounds(numel, ranks, rank):
    short, rest = divmod(numel, ranks)
    return rank * short + rest * (rank > 0), (rank + 1) * short + rest
""", "each of the first ranks has one of what is left over"),
    # Keep something between calls, or lose what is rare.
    Wrong("edges of the first call", """
edges = []
def chunk_bounds(numel, ranks, rank):
    if not edges:
        edges.append(0)
        for r in range(ranks): edges.append(edges[-1] + numel // ranks + (r < numel % ranks))
    return edges[rank], edges[rank + 1]
""", "called with other arguments before"),
    # Hold on most inputs: sums of 32 bits, edges, a rank that has nothing.
    Wrong("one element to spare too early", """
def chunk_bounds(numel, ranks, rank):
    size, more = divmod(numel, ranks)
    start = rank * size + min(rank, more)
    return start, start + size + (1 if rank <= more and more else 0)
""", "which ranks have one more"),
]  # fmt: skip

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
