"""Answers to `lay_out` of lesson 02, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("02_flat_buffers", "lay_out")

WRONG = [
    blank("lay_out"),
    Wrong("packed",
          changed(MODEL, "(-(-end // align) * align)", "(end)"),
          "one behind the other"),
    Wrong("length for the ranks alone",
          changed(MODEL, "(ranks * align)) * ranks * align", "ranks) * ranks"),
          "a multiple of ranks only"),
    Wrong("length that is round alone",
          changed(MODEL, "(ranks * align)) * ranks", "align)"),
          "a multiple of align only"),
    Wrong("no padding at the end",
          changed(MODEL, "-(-end // (ranks * align)) * ranks * align", "end"),
          "without padding for the ranks"),
    Wrong("always one more", """
def lay_out(numels, ranks, align):
    starts, end = [], 0
    for numel in numels:
        starts.append((end // align + 1) * align)
        end = starts[-1] + numel
    return starts, (end // (ranks * align) + 1) * ranks * align
""", "round up what is a multiple already"),
    Wrong("one more behind a full place",
          changed(MODEL,
                  "(-(-end // align) * align)\n        end = starts[-1] + numel",
                  "(end)\n        end += (numel // align + 1) * align"),
          "padding behind a parameter that needs none"),
    Wrong("a place for no elements",
          changed(MODEL, "[-1] + numel", "[-1] + max(numel, 1)"),
          "without elements takes no place"),
    Wrong("rounds down",
          changed(MODEL, "-(-end // align)", "end // align"),
          "starts down, so that"),
    Wrong("ends for starts",
          changed(MODEL,
                  "starts.append(-(-end // align) * align)\n"
                  "        end = starts[-1] + numel",
                  "end = -(-end // align) * align + numel\n        starts.append(end)"),
          "where parameters end"),
    Wrong("masks",
          changed(MODEL, "(-(-end // align) * align)", "((end + align - 1) & ~(align - 1))"),
          "Masks of bits"),
    Wrong("a unit too long",
          changed(MODEL, "-(-end // (ranks * align))", "(end // (ranks * align) + 1)"),
          "one unit longer"),
    Wrong("every end for the ranks",
          changed(MODEL, "(-end // align)", "(-end // (ranks * align)) * ranks"),
          "not the end of each parameter"),
    Wrong("no start without elements",
          changed(MODEL, "in numels", "in filter(None, numels)"),
          "also one without elements"),
    Wrong("a default list",
          changed(MODEL, "):\n    starts, end = [], 0", ", starts=[]):\n    end = 0"),
          "a default argument"),
    Wrong("empties the input",
          changed(MODEL, "for numel in numels:", "while numels:\n        numel = numels.pop(0)"),
          "belongs to the caller"),
    Wrong("no empty list",
          changed(MODEL, "return", "end = starts[-1] + numels[-1]\n    return"),
          "IndexError"),
    # Hold on most inputs: sums of 32 bits, edges, a rank that has nothing.
    Wrong("a row has at least one unit", """
def lay_out(numels, ranks, align):
    starts, end = [], 0
    for n in numels:
        starts.append(-(-end // align) * align)
        end = starts[-1] + n
    unit = ranks * align
    return starts, max(1, -(-end // unit)) * unit
""", "Without parameters there is nothing to hold"),
    Wrong("an empty parameter starts where the last ended", """
def lay_out(numels, ranks, align):
    starts, end = [], 0
    for n in numels:
        begin = -(-end // align) * align if n else end
        starts.append(begin)
        end = begin + n
    unit = ranks * align
    return starts, -(-end // unit) * unit
""", "yet its start is a multiple"),
    # Written from the text alone.
    Wrong("a unit for no elements",
          changed(MODEL,
                  "-(-end // (ranks * align)) * ranks * align",
                  "max(-(-end // (ranks * align)), len(starts) > 0) * ranks * align"),
          "also where there are no others"),
    Wrong("keeps rows by their sizes", """
known = {}
def lay_out(numels, ranks, align):
    if tuple(numels) not in known:
        starts, end = [], 0
        for numel in numels:
            starts.append(-(-end // align) * align)
            end = starts[-1] + numel
        known[tuple(numels)] = starts, -(-end // (ranks * align)) * ranks * align
    return known[tuple(numels)]
""", "by itself the same call is right"),
]  # fmt: skip

RIGHT = [
    Right("accumulate", """
from itertools import accumulate
def lay_out(numels, ranks, align):
    up = lambda n, m: -(-n // m) * m
    ends = list(accumulate((up(n, align) for n in numels), initial=0))
    return ends[:-1], up(ends[-1], ranks * align)
"""),
    Right("loop while", """
def lay_out(numels, ranks, align):
    starts = []
    here = 0
    for n in numels:
        while here % align:
            here += 1
        starts.append(here)
        here += n
    length = 0
    while length < here:
        length += ranks * align
    return starts, length
"""),
    Right("ceil closure", """
import math
def lay_out(numels, ranks, align):
    place = 0
    def put(n):
        nonlocal place
        begin = math.ceil(place / align) * align
        place = begin + n
        return begin
    starts = [put(n) for n in numels]
    return starts, math.ceil(place / (ranks * align)) * ranks * align
"""),
    Right("divmod class", """
class Row:
    def __init__(self, align):
        self.align, self.end = align, 0
    def add(self, n):
        self.end += -self.end % self.align
        start, self.end = self.end, self.end + n
        return start
def lay_out(numels, ranks, align):
    row = Row(align)
    starts = list(map(row.add, numels))
    return starts, row.end + -row.end % (ranks * align)
"""),
    Right("tensor", """
def lay_out(numels, ranks, align):
    sizes = torch.tensor(numels, dtype=torch.int64)
    padded = (sizes + align - 1) // align * align
    ends = padded.cumsum(0)
    starts = (ends - padded).tolist()
    total = int(padded.sum())
    each = ranks * align
    return starts, (total + each - 1) // each * each
"""),
    # Closures, classes of handles, names that sound like files.
    Right("recursion", """
def lay_out(numels, ranks, align):
    def place(rest, end):
        if not rest:
            return [], end
        start = end + (align - end % align) % align
        later, last = place(rest[1:], start + rest[0])
        return [start, *later], last
    starts, load = place(list(numels), 0)
    unit = ranks * align
    return starts, load + (unit - load % unit) % unit
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("a class that counts blocks", """
class Row:
    def __init__(self, align):
        self.align, self.blocks, self.starts = align, 0, []
    def add(self, size):
        self.starts.append(self.blocks * self.align)
        self.blocks += size // self.align + bool(size % self.align)
def lay_out(numels, ranks, align):
    row = Row(align)
    for size in numels:
        row.add(size)
    each = (row.blocks + ranks - 1) // ranks
    return row.starts, each * ranks * align
"""),
]  # fmt: skip
