"""Answers to `Persistent` of lesson 05, wrong and right."""

from zoo.answers import Right

RIGHT = [
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
]  # fmt: skip
