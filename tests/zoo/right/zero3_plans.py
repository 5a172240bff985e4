"""Right answers to the exercises of lesson 05 on what stays whole, what a step costs, and what a trace says."""

from zoo.right.answer import Right

RIGHT = [
    Right("a function for each tensor", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.kept, self.wholes = [], []
        for tensor in tensors:
            cut = tensor.numel() >= threshold
            part = tensor.flatten().tensor_split(comm.size)[comm.rank] if cut else tensor
            self.kept.append(part.clone())
            self.wholes.append(self.way(comm, self.kept[-1], tensor.shape, cut))
    def way(self, comm, part, shape, cut):
        return lambda: comm.all_gather(part, shape.numel()).view(shape) if cut else part
    def whole(self, index):
        return self.wholes[index]()
"""),
    Right("one loop", "step_bytes", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    total, reached = 0, False
    for numel, trains in units:
        reached = reached or trains
        total += numel // ranks * (ranks - 1) * 4 * (1 + reached + trains)
    return total * micro_batches
"""),
    Right("tuple of records", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, self.kept, self.shapes, self.cut = comm, [], [], []
        for tensor in tensors:
            cut = tensor.numel() >= threshold
            self.cut.append(cut)
            self.shapes.append(tensor.shape)
            flat = tensor.detach().reshape(-1)
            part = flat.tensor_split(comm.size)[comm.rank] if cut else tensor.detach()
            self.kept.append(part.clone())
    def whole(self, index):
        if not self.cut[index]:
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], self.shapes[index].numel()).view(self.shapes[index])
"""),
    Right("returns a clone of a small one", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.gather = comm.all_gather
        parts = [t.flatten().tensor_split(comm.size)[comm.rank] if t.numel() >= threshold else t for t in tensors]
        self.kept = [torch.empty_like(part).copy_(part) for part in parts]
        self.meta = [(t.shape, t.numel() >= threshold) for t in tensors]
    def whole(self, index):
        shape, cut = self.meta[index]
        if cut:
            return self.gather(self.kept[index], numel=shape.numel()).reshape(shape)
        return self.kept[index].clone()
"""),
    Right("two classes", "Persistent", """
class Small:
    def __init__(self, tensor):
        self.part = tensor.clone(memory_format=torch.contiguous_format)
    def whole(self):
        return self.part
class Large:
    def __init__(self, comm, tensor):
        self.comm, self.size = comm, tensor.size()
        pieces = torch.empty(tensor.numel(), device="meta").tensor_split(comm.size)
        low = sum(map(len, pieces[:comm.rank]))
        count = tensor.numel() // comm.size + (comm.rank < tensor.numel() % comm.size)
        self.part = tensor.contiguous().view(-1)[low:low + count].clone()
    def whole(self):
        row = self.part.new_empty(self.size.numel())
        self.comm.all_gather(self.part, out=row)
        return row.view(self.size)
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.items = [Small(t) if t.numel() < threshold else Large(comm, t) for t in tensors]
        self.kept = [item.part for item in self.items]
    def whole(self, index):
        return self.items[index].whole()
"""),
    Right("kept flat for whole ones, too", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm = comm
        self.threshold = threshold
        self.shapes = [tuple(t.shape) for t in tensors]
        self.kept = list(map(self.keep, tensors))
    def cut(self, shape):
        return math.prod(shape) >= self.threshold
    def keep(self, tensor):
        if self.cut(tensor.shape):
            numbers = tensor.reshape(-1).tensor_split(self.comm.size)[self.comm.rank].tolist()
            return torch.tensor(numbers, dtype=tensor.dtype)
        return tensor.clone()
    def whole(self, index):
        shape, part = self.shapes[index], self.kept[index]
        return self.comm.all_gather_async(part, math.prod(shape)).wait().view(shape) if self.cut(shape) else part
"""),
    Right("methods by closure", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        cut = {i for i, t in enumerate(tensors) if not t.numel() < threshold}
        shapes = {i: t.shape for i, t in enumerate(tensors)}
        self.kept = []
        for i, t in enumerate(tensors):
            if i in cut:
                t = t.reshape(-1).tensor_split(comm.size)[comm.rank]
            self.kept.append(t.detach().clone())
        def fetch(i):
            if i not in cut:
                return self.kept[i].view(shapes[i])
            row = comm.all_gather(self.kept[i], shapes[i].numel())
            return row.unflatten(0, shapes[i]) if len(shapes[i]) else row.squeeze(0)
        self.fetch = fetch
    def whole(self, index):
        return self.fetch(index)
"""),
    Right("small ones are the caller's", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm = comm
        self.shapes = [t.shape for t in tensors]
        self.cut = [t.numel() >= threshold for t in tensors]
        self.kept = [
            t.flatten().tensor_split(comm.size)[comm.rank].clone() if cut else t for t, cut in zip(tensors, self.cut)
        ]
    def whole(self, index):
        if not self.cut[index]:
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], self.shapes[index].numel()).view(self.shapes[index])
"""),
    Right("index of the first that trains", "step_bytes", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    first = next((i for i, (_, trains) in enumerate(units) if trains), len(units))
    def once(numel):
        return numel // ranks * (ranks - 1) * 4
    forward = sum(once(n) for n, _ in units)
    backward = sum(once(n) for n, _ in units[first:])
    reduced = sum(once(n) for n, trains in units if trains)
    return (forward + backward + reduced) * micro_batches
"""),
    Right("backwards through the list", "step_bytes", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    share = lambda numel: 4 * numel * (ranks - 1) // ranks
    total = 0
    remaining = list(units)
    while remaining:
        numel, trains = remaining.pop()
        calls = 1
        if trains or any(t for _, t in remaining):
            calls += 1
        if trains:
            calls += 1
        total += calls * share(numel)
    return micro_batches * total
"""),
    Right("accumulate or", "step_bytes", """
from itertools import accumulate
from operator import or_
def step_bytes(units, ranks, micro_batches, checkpointing):
    trains = [bool(t) for _, t in units]
    reached = list(accumulate(trains, or_))
    calls = [1 + a + b for a, b in zip(trains, reached)]
    elements = sum(c * n for c, (n, _) in zip(calls, units))
    return elements * 4 // ranks * (ranks - 1) * micro_batches
"""),
    Right("fractions and dropwhile", "step_bytes", """
from fractions import Fraction
from itertools import dropwhile
def step_bytes(units, ranks, micro_batches, checkpointing):
    sent = Fraction(0)
    for phase in (units, dropwhile(lambda unit: not unit[1], units), filter(lambda unit: unit[1], units)):
        sent += sum(numel for numel, _ in phase)
    return int(sent * (1 - Fraction(1, ranks)) * 4 * micro_batches)
"""),
    Right("sets", "explain_trace", """
def explain_trace(trace):
    here, most, bad = set(), 0, set()
    for event, unit in trace:
        if event == "gather":
            here.add(unit)
            most = max(most, len(here))
        elif event == "release":
            here.discard(unit)
        elif unit not in here:
            bad.add(unit)
    return most, sorted(here), sorted(bad)
"""),
    Right("dict of flags", "explain_trace", """
def explain_trace(trace):
    state = {}
    away = {}
    counts = [0]
    for event, unit in trace:
        match event:
            case "gather":
                state[unit] = True
            case "release":
                state[unit] = False
            case "use":
                if not state.get(unit, False):
                    away[unit] = None
        counts.append(sum(state.values()))
    return max(counts), sorted(u for u in state if state[u]), sorted(away)
"""),
    Right("by unit", "explain_trace", """
from itertools import accumulate
def explain_trace(trace):
    units = sorted({unit for _, unit in trace})
    present = {u: [] for u in units}
    absent = set()
    for u in units:
        here = False
        for event, unit in trace:
            if unit == u:
                here = event == "gather" or (here and event != "release")
                if event == "use" and not here:
                    absent.add(u)
            present[u].append(here)
    most = max((sum(column) for column in zip(*present.values())), default=0)
    return most, [u for u in units if present[u][-1]], [u for u in units if u in absent]
"""),
    Right("reduce of frozensets", "explain_trace", """
from functools import reduce
def explain_trace(trace):
    def step(state, entry):
        here, most, away = state
        event, unit = entry
        if event == "gather":
            here = here | {unit}
        if event == "release":
            here = here - {unit}
        if event == "use" and unit not in here:
            away = away | {unit}
        return here, max(most, len(here)), away
    here, most, away = reduce(step, trace, (frozenset(), 0, frozenset()))
    return most, sorted(here), sorted(away)
"""),
    Right("namedtuple records, kept as property-free list", "Persistent", """
from collections import namedtuple
Item = namedtuple("Item", "shape cut")
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.items, self.kept, self.comm = [], [], comm
        for t in tensors:
            cut = t.numel() >= threshold
            self.items.append(Item(t.shape, cut))
            own = t.contiguous().view(-1).tensor_split(comm.size)[comm.rank]
            self.kept.append(own.new_empty(len(own)).copy_(own) if cut else t.clone())
    def whole(self, index):
        item = self.items[index]
        if item.cut:
            out = torch.empty(item.shape, dtype=self.kept[index].dtype)
            self.comm.all_gather(self.kept[index], out=out.view(-1))
            return out
        return self.kept[index]
"""),
    Right("whole keeps no shapes: a meta twin", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, self.limit = comm, threshold
        self.twins = [torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
        self.kept = [self.load(t) for t in tensors]
    def load(self, t):
        if t.numel() < self.limit:
            return t.detach().clone()
        sizes = [len(p) for p in torch.empty(t.numel(), device="meta").tensor_split(self.comm.size)]
        return t.reshape(-1).split(sizes)[self.comm.rank].clone()
    def whole(self, index):
        twin = self.twins[index]
        if twin.numel() < self.limit:
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], twin.numel()).view(twin.shape)
"""),
    Right("recursion from the front", "step_bytes", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    def go(at, reached):
        if at == len(units):
            return 0
        numel, trains = units[at]
        reached |= bool(trains)
        return (1 + reached + bool(trains)) * (numel - numel // ranks) + go(at + 1, reached)
    return 4 * micro_batches * go(0, False)
"""),
    Right("intervals", "explain_trace", """
def explain_trace(trace):
    since, spans, away = {}, [], set()
    for at, (event, unit) in enumerate(trace):
        if event == "gather":
            since.setdefault(unit, at)
        if event == "release" and unit in since:
            spans.append((since.pop(unit), at))
        if event == "use" and unit not in since:
            away |= {unit}
    spans += [(start, len(trace)) for start in since.values()]
    most = max((sum(a <= at < b for a, b in spans) for at in range(len(trace))), default=0)
    return most, sorted(since), sorted(away)
"""),
    Right("a tuple, and a cache of its own", "Persistent", """
import functools

class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, sizes = comm, [tensor.numel() for tensor in tensors]
        self.small = functools.cache(lambda index: sizes[index] < threshold)
        self.shapes = tuple(tensor.shape for tensor in tensors)
        self.kept = tuple(
            tensor if self.small(index) else tensor.flatten().tensor_split(comm.size)[comm.rank].clone()
            for index, tensor in enumerate(tensors)
        )

    def whole(self, index):
        if self.small(index):
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], self.shapes[index].numel()).view(self.shapes[index])
"""),
]  # fmt: skip
