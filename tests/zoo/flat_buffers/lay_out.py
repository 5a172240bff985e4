"""Right answers to `lay_out` of lesson 02."""

from zoo.answers import Right

RIGHT = [
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
]  # fmt: skip
