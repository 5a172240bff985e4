"""Answers to `Persistent` of lesson 05, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a function for each tensor", """
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
    Right("tuple of records", """
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
    Right("returns a clone of a small one", """
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
    Right("two classes", """
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
    Right("kept flat for whole ones, too", """
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
    Right("methods by closure", """
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
    Right("small ones are the caller's", """
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
    Right("namedtuple records, kept as property-free list", """
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
    Right("whole keeps no shapes: a meta twin", """
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
    Right("a tuple, and a cache of its own", """
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
    # Written from the text alone.
    Right("closures in a tuple", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        kept, self.makers = [], []
        for tensor in tensors:
            if tensor.numel() < threshold:
                mine = tensor.detach().contiguous().clone()
                self.makers.append(lambda mine=mine: mine.clone())
            else:
                mine = torch.tensor_split(tensor.flatten(), comm.size)[comm.rank].clone()
                shape, numel = tuple(tensor.shape), tensor.numel()
                self.makers.append(lambda a=mine, b=numel, c=shape: comm.all_gather(a, b).reshape(c))
            kept.append(mine)
        self.kept = tuple(kept)

    def whole(self, index):
        return self.makers[index]()
"""),
    Right("the tensors themselves where they are small, dataclass", """
from dataclasses import dataclass, field

@dataclass
class Persistent:
    comm: object
    tensors: object
    threshold: int
    kept: list = field(default_factory=list)
    cut: dict = field(default_factory=dict)

    def __post_init__(self):
        for i, t in enumerate(self.tensors):
            if t.numel() < self.threshold:
                self.kept.append(t)
                continue
            self.cut[i] = list(t.size())
            begin = sum(n for n in self.sizes(t.numel())[: self.comm.rank])
            flat = t.contiguous().view(-1)
            self.kept.append(flat[begin : begin + self.sizes(t.numel())[self.comm.rank]].clone())
        del self.tensors

    def sizes(self, numel):
        each, over = divmod(numel, self.comm.size)
        return [each + 1] * over + [each] * (self.comm.size - over)

    def whole(self, index):
        if index not in self.cut:
            return self.kept[index]
        shape = self.cut[index]
        out = torch.empty(math.prod(shape), dtype=self.kept[index].dtype)
        self.comm.all_gather(self.kept[index], out=out)
        return out.view(shape)
"""),
]  # fmt: skip
