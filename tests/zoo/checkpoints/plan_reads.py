"""Answers to `plan_reads` of lesson 08, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, everywhere, model

MODEL = model("08_checkpoints", "plan_reads")
FIRST, LAST = "offset + itemsize * (start - first)", "offset + itemsize * (end - first)"
EACH = """
def plan_reads(stretches, start, stop, itemsize):
    reads, covered = [], set()
    for first, last, rank, offset in sorted(stretches):
        low, high = max(start, first), min(stop, last)
        if low < high:
            reads.append((rank, offset + itemsize * (low - first), offset + itemsize * (high - first)))
            covered.update(range(low, high))
    if len(covered) < stop - start:
        raise ValueError("missing")
    return reads
"""

WRONG = [
    blank("plan_reads"),
    Wrong("elements for bytes", everywhere(MODEL, "itemsize * ", ""), "counted in elements"),
    Wrong("no offset", everywhere(MODEL, "offset + ", ""), "Its offset is missing"),
    Wrong("offset in elements",
          changed(changed(MODEL, FIRST, "itemsize * (offset + start - first)"),
                  LAST, "itemsize * (offset + end - first)"),
          "already in bytes"),
    Wrong("counted in the parameter", everywhere(MODEL, " - first)", ")"), "from the parameter's first element"),
    Wrong("a length", changed(MODEL, LAST, "itemsize * (end - start)"), "not the number of bytes"),
    Wrong("last included", changed(MODEL, LAST, LAST + " - 1"), "One past the last byte"),
    Wrong("from each stretch's beginning",
          changed(changed(MODEL, FIRST, "offset"), LAST, "offset + itemsize * (end - start)"),
          "of the first one the range may begin later"),
    Wrong("whole stretches",
          changed(EACH, "offset + itemsize * (low - first), offset + itemsize * (high - first)",
                  "offset, offset + itemsize * (last - first)"),
          "You read whole stretches"),
    Wrong("empty reads", changed(EACH, "low < high", "low <= high"), "Reads of no bytes"),
    Wrong("one by one", """
def plan_reads(stretches, start, stop, itemsize):
    reads = []
    for at in range(start, stop):
        for first, last, rank, offset in sorted(stretches, key=lambda one: -one[1]):
            if first <= at < last:
                reads.append((rank, offset + itemsize * (at - first), offset + itemsize * (at - first + 1)))
                break
        else:
            raise ValueError(at)
    return reads
""", "Each read brings one element"),
    Wrong("as they stand", changed(EACH, "sorted(stretches)", "stretches"), "Stretches come in any order"),
    Wrong("by rank", changed(MODEL, "return reads", "return sorted(reads)"), "not of the ranks"),
    Wrong("overlaps twice", EACH, "some elements are read twice"),
    Wrong("the first that has it", changed(MODEL, "max(holding, key=lambda stretch: stretch[1])", "holding[0]"),
          "which goes furthest?"),
    Wrong("stops at a gap",
          changed(MODEL, 'raise ValueError(f"nobody saved element {start}")', "break"),
          "nobody saved element"),
    Wrong("raises for nothing",
          changed(MODEL, "    while start < stop", "    if start == stop:\n"
                  '        raise ValueError("empty")\n'
                  "    while start < stop"),
          "a range without elements needs nothing"),
    Wrong("another error", changed(MODEL, "raise ValueError", "raise LookupError"), "LookupError"),
    Wrong("sees a gap where there is none",
          changed(MODEL, "<= start <", "< start <"),
          "which element does it miss?"),
    Wrong("never ends", """
def plan_reads(stretches, start, stop, itemsize):
    reads = []
    while start < stop:
        for first, last, rank, offset in sorted(stretches):
            if first <= start <= last:
                end = min(stop, last)
                reads = reads + [(rank, offset + itemsize * (start - first), offset + itemsize * (end - first))]
                break
        else:
            raise ValueError("a gap")
        start = end
    return [read for read in reads if read[1] < read[2]]
""", "does not end"),
    Wrong("a default list",
          changed(changed(MODEL, "itemsize):", "itemsize, reads=[]):"), "    reads = []\n", ""),
          "a default argument"),
    Wrong("sorts what belongs to the caller",
          changed(MODEL, "    reads = []\n", "    reads = []\n    stretches.sort()\n"),
          "which belongs to the caller"),
    Wrong("a generator", """
def plan_reads(stretches, start, stop, itemsize):
    while start < stop:
        first, last, rank, offset = max((s for s in stretches if s[0] <= start < s[1]), key=lambda s: s[1])
        end = min(stop, last)
        yield rank, offset + itemsize * (start - first), offset + itemsize * (end - first)
        start = end
""", "return a list of"),
    Wrong("one read for neighbours in a file", """
def plan_reads(stretches, start, stop, itemsize):
    reads = []
    while start < stop:
        f, l, r, o = max((s for s in stretches if s[0] <= start < s[1]), key=lambda s: s[1])
        end = min(l, stop)
        new = (r, o + (start - f) * itemsize, o + (end - f) * itemsize)
        if reads and reads[-1][0] == r and reads[-1][2] == new[1]:
            new = (r, reads.pop()[1], new[2])
        reads.append(new)
        start = end
    return reads
""", "also where the next one lies right behind it"),
    Wrong("the longest that has it",
          changed(MODEL, "key=lambda stretch: stretch[1]", "key=lambda stretch: stretch[1] - stretch[0]"),
          "the bytes are right, in"),
]  # fmt: skip

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
    Right("checks for holes first", """
def plan_reads(stretches, start, stop, itemsize):
    held = set()
    for first, last, *_ in stretches:
        held |= set(range(first, last))
    if not set(range(start, stop)) <= held:
        raise ValueError("some elements were not saved")
    reads = []
    while start < stop:
        reach = max(s[1] for s in stretches if s[0] <= start)
        first, last, rank, offset = next(s for s in stretches if s[1] == reach and s[0] <= start)
        begin = offset + itemsize * (start - first)
        reads.append((rank, begin, begin + itemsize * (min(stop, reach) - start)))
        start = reach
    return reads
"""),
]  # fmt: skip
