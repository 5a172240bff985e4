"""Right answers to the exercises of lesson 02 on rows, in other styles than the model's."""

from zoo.right.answer import Right

RIGHT = [
    Right("accumulate", "lay_out", """
from itertools import accumulate
def lay_out(numels, ranks, align):
    up = lambda n, m: -(-n // m) * m
    ends = list(accumulate((up(n, align) for n in numels), initial=0))
    return ends[:-1], up(ends[-1], ranks * align)
"""),
    Right("loop while", "lay_out", """
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
    Right("ceil closure", "lay_out", """
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
    Right("divmod class", "lay_out", """
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
    Right("tensor", "lay_out", """
def lay_out(numels, ranks, align):
    sizes = torch.tensor(numels, dtype=torch.int64)
    padded = (sizes + align - 1) // align * align
    ends = padded.cumsum(0)
    starts = (ends - padded).tolist()
    total = int(padded.sum())
    each = ranks * align
    return starts, (total + each - 1) // each * each
"""),
    Right("comprehension", "owned", """
def owned(starts, numels, length, ranks, rank):
    size = length // ranks
    low, high = rank * size, rank * size + size
    return [
        (i, max(low, s) - s, min(high, s + n) - s)
        for i, (s, n) in enumerate(zip(starts, numels))
        if max(low, s) < min(high, s + n)
    ]
"""),
    Right("by element", "owned", """
def owned(starts, numels, length, ranks, rank):
    size = length // ranks
    pieces = []
    for number in range(len(starts)):
        inside = [e for e in range(numels[number]) if (starts[number] + e) // size == rank]
        if inside:
            pieces.append((number, inside[0], inside[-1] + 1))
    return pieces
"""),
    Right("ranges", "owned", """
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
    Right("generator", "owned", """
def owned(starts, numels, length, ranks, rank):
    def pieces():
        size = length // ranks
        for number, (start, numel) in enumerate(zip(starts, numels, strict=True)):
            begin = rank * size - start
            stop = begin + size
            begin, stop = max(begin, 0), min(stop, numel)
            if stop > begin:
                yield number, begin, stop
    return list(pieces())
"""),
    Right("intersection sets", "owned", """
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
    Right("by set", "flatten", """
def flatten(module, ranks, align):
    parameters = [*module.parameters()]
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = parameters[0].detach().new_zeros(length)
    with torch.no_grad():
        for start, parameter in zip(starts, parameters):
            place = row[start : start + parameter.numel()].view_as(parameter)
            place.copy_(parameter)
            parameter.set_(place)
    return row
"""),
    Right("data views", "flatten", """
def flatten(module, ranks, align):
    params = list(module.parameters())
    starts, length = lay_out([p.numel() for p in params], ranks, align)
    row = torch.zeros(length, dtype=params[0].dtype)
    for start, p in zip(starts, params):
        view = row[start:start + p.numel()].view(p.shape)
        view.copy_(p.data)
        p.data = view
    return row
"""),
    Right("narrow reshape", "flatten", """
@torch.no_grad()
def flatten(module, ranks, align):
    params = tuple(module.parameters())
    starts, length = lay_out([len(p.reshape(-1)) for p in params], ranks, align)
    row = params[0].new_zeros((length,))
    row.requires_grad_(False)
    for p, at in zip(params, starts):
        piece = row.narrow(0, at, p.numel())
        piece[:] = p.reshape(-1)
        p.data = piece.unflatten(0, p.shape) if p.dim() else piece[0]
    return row
"""),
    Right("as strided set", "flatten", """
def flatten(module, ranks, align):
    params = [p for _, p in module.named_parameters()]
    starts, length = lay_out([p.numel() for p in params], ranks, align)
    row = torch.empty(length, dtype=params[0].dtype).fill_(0)
    for p, start in zip(params, starts):
        strides, step = [], 1
        for size in reversed(p.shape):
            strides.insert(0, step)
            step *= size
        room = torch.as_strided(row, p.shape, strides, start)
        room.copy_(p.detach())
        p.data = room
    return row
"""),
    Right("class", "flatten", """
class Flat:
    def __init__(self, params, ranks, align):
        self.params = params
        self.starts, length = lay_out([p.numel() for p in params], ranks, align)
        self.row = torch.zeros(length, dtype=params[0].dtype, device=params[0].device)
    def room(self, i):
        p = self.params[i]
        return self.row[self.starts[i]:][:p.numel()].reshape(p.shape)
    def move(self):
        for i, p in enumerate(self.params):
            self.room(i)[...] = p.data
            p.data = self.room(i)
        return self.row
def flatten(module, ranks, align):
    return Flat(list(module.parameters()), ranks, align).move()
"""),
    Right("split sizes", "flatten", """
def flatten(module, ranks, align):
    params = list(module.parameters())
    starts, length = lay_out([p.numel() for p in params], ranks, align)
    row = torch.zeros(length, dtype=params[0].dtype)
    bounds = [*starts, length]
    parts = row.split([b - a for a, b in zip(bounds, bounds[1:])])
    for p, part in zip(params, parts):
        fresh = part[:p.numel()].view_as(p)
        fresh.copy_(p.detach())
        p.data = fresh
    return row
"""),
]  # fmt: skip
