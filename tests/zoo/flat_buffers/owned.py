"""Right answers to `owned` of lesson 02."""

from zoo.answers import Right

RIGHT = [
    Right("by element", """
def owned(starts, numels, length, ranks, rank):
    size = length // ranks
    pieces = []
    for number in range(len(starts)):
        inside = [e for e in range(numels[number]) if (starts[number] + e) // size == rank]
        if inside:
            pieces.append((number, inside[0], inside[-1] + 1))
    return pieces
"""),
    Right("ranges", """
def owned(starts, numels, length, ranks, rank):
    shard = range(length)[length // ranks * rank : length // ranks * (rank + 1)]
    found = []
    for number, start in enumerate(starts):
        a = min(max(shard.start - start, 0), numels[number])
        b = max(min(shard.stop - start, numels[number]), 0)
        if b - a > 0:
            found.append((number, a, b))
    return found
"""),
    Right("intersection sets", """
def owned(starts, numels, length, ranks, rank):
    size = length // ranks
    mine = set(range(rank * size, (rank + 1) * size))
    out = []
    for number, (start, numel) in enumerate(zip(starts, numels)):
        hit = sorted(mine & set(range(start, start + numel)))
        if hit:
            out += [(number, hit[0] - start, hit[-1] - start + 1)]
    return out
"""),
    Right("pointers", """
def owned(starts, numels, length, ranks, rank):
    import bisect
    size = length // ranks
    begin, end = size * rank, size * (rank + 1)
    ends = [s + n for s, n in zip(starts, numels)]
    first = bisect.bisect_right(ends, begin)
    save = []
    for number in range(first, len(starts)):
        if starts[number] >= end:
            break
        lo = max(begin - starts[number], 0)
        hi = min(end, ends[number]) - starts[number]
        if hi > lo:
            save.append((number, lo, hi))
    return save
"""),
    Right("clamps", """
def owned(starts, numels, length, ranks, rank):
    each = length // ranks
    clamp = lambda x, n: sorted((0, x, n))[1]
    low, high = rank * each, (rank + 1) * each
    found = ((i, clamp(low - s, n), clamp(high - s, n)) for i, (s, n) in enumerate(zip(starts, numels)))
    return [piece for piece in found if piece[2] > piece[1]]
"""),
]  # fmt: skip
