"""Answers to `plan_reads` of lesson 08, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("recursion", """
def plan_reads(stretches, start, stop, itemsize):
    if start >= stop:
        return []
    best = None
    for one in stretches:
        if one[0] <= start and start < one[1] and (best is None or one[1] > best[1]):
            best = one
    if best is None:
        raise ValueError(f"{start} was saved by nobody")
    end = best[1] if best[1] < stop else stop
    base = best[3] - itemsize * best[0]
    return [[best[2], base + itemsize * start, base + itemsize * end], *plan_reads(stretches, end, stop, itemsize)]
"""),
    Right("sorted, two pointers", """
def plan_reads(stretches, start, stop, itemsize):
    reads, at, pending = [], start, sorted(stretches, key=lambda s: (s[0], -s[1]))
    best, index = None, 0
    while at < stop:
        while index < len(pending) and pending[index][0] <= at:
            if best is None or pending[index][1] > best[1]:
                best = pending[index]
            index += 1
        if best is None or best[1] <= at:
            raise ValueError("a hole")
        first, last, rank, offset = best
        end = min(last, stop)
        reads.append((rank, offset + (at - first) * itemsize, offset + (end - first) * itemsize))
        at = end
    return reads
"""),
    Right("latest begun of those that go equally far", """
def plan_reads(stretches, start, stop, itemsize):
    out = []
    while start != stop:
        holding = sorted((min(s[1], stop), s[0], s) for s in stretches if s[0] <= start < s[1])
        try:
            end, first, source = holding[-1]
        except IndexError:
            raise ValueError("nobody has it") from None
        skip = (start - first) * itemsize
        out += [(source[2], source[3] + skip, source[3] + skip + (end - start) * itemsize)]
        start = end
    return out
"""),
    Right("by element, then joined", """
class NotSaved(ValueError):
    pass


def plan_reads(stretches, start, stop, itemsize):
    ordered = sorted(stretches, key=lambda s: s[1])
    owner = []
    for at in range(start, stop):
        here = owner[-1] if owner and owner[-1][0] <= at < owner[-1][1] else None
        if here is None:
            for one in ordered:
                if one[0] <= at < one[1]:
                    here = one
        if here is None:
            raise NotSaved(at)
        owner.append(here)
    reads, begin = [], 0
    for k in range(1, len(owner) + 1):
        if k == len(owner) or owner[k] is not owner[begin]:
            first, _, rank, offset = owner[begin]
            reads.append((rank, offset + itemsize * (start + begin - first), offset + itemsize * (start + k - first)))
            begin = k
    return reads
"""),
    Right("a generator inside", """
def plan_reads(stretches, start, stop, itemsize):
    def parts(at):
        while at < stop:
            covering = {last: (first, rank, offset) for first, last, rank, offset in stretches if first <= at < last}
            if not covering:
                raise ValueError
            last = max(covering)
            first, rank, offset = covering[last]
            yield rank, offset + itemsize * (at - first), offset + itemsize * (min(last, stop) - first)
            at = last
    return tuple(parts(start))
"""),
]  # fmt: skip
