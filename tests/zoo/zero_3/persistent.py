"""Answers to `Persistent` of lesson 05, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("05_zero_3", "Persistent")
PERSISTENT = changed(MODEL,
                     ", part = self.shapes[index], self.kept[index]\n"
                     "        small = shape.numel() < self.threshold\n"
                     "        return part if small else self.comm.all_gather(part",
                     " = self.shapes[index]\n"
                     "        if shape.numel() < self.threshold:\n"
                     "            return self.kept[index]\n"
                     "        return self.comm.all_gather(self.kept[index]")  # fmt: skip
CACHED = changed(PERSISTENT, "class", "import functools\n\nclass")

WRONG = [
    blank("Persistent", "class Persistent:\n"),
    Wrong("one of exactly the threshold stays",
          changed(changed(PERSISTENT, "tensor.numel() <", "tensor.numel() <="), "() < self", "() <= self"),
          "one of exactly as many is cut"),
    Wrong("cuts none",
          changed(changed(PERSISTENT,
                          "tensor.numel() < self.threshold",
                          "tensor.numel() >= 0"),
                  "() < self.threshold",
                  "() >= 0"),
          "no tensor is cut"),
    Wrong("cuts all",
          changed(changed(PERSISTENT,
                          "tensor.numel() < self.threshold",
                          "tensor.numel() < 0"),
                  "self.threshold:",
                  "0:"),
          "all tensors are cut"),
    Wrong("the other way round",
          changed(changed(PERSISTENT, "tensor.numel() <", "tensor.numel() >="), "numel() <", "numel() >="),
          "cut the small ones and keep the large"),
    Wrong("measures the shard",
          changed(changed(PERSISTENT,
                          "tensor.numel()",
                          "tensor.numel() // self.comm.size"),
                  "if shape.numel()",
                  "if shape.numel() // self.comm.size"),
          "you measure the shard"),
    Wrong("a budget", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, self.shapes, left = comm, [tensor.shape for tensor in tensors], threshold
        self.stays = [False] * len(tensors)
        for index in sorted(range(len(tensors)), key=lambda index: tensors[index].numel()):
            if tensors[index].numel() <= left:
                self.stays[index], left = True, left - tensors[index].numel()
        self.kept = [
            tensor if stays else tensor.flatten().tensor_split(comm.size)[comm.rank].clone()
            for tensor, stays in zip(tensors, self.stays)
        ]

    def whole(self, index):
        if self.stays[index]:
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], self.shapes[index].numel()).view(self.shapes[index])
""", "no budget for all"),
    Wrong("views",
          changed(PERSISTENT, ".clone()", ""),
          "a view keeps all the memory"),
    Wrong("keeps the list",
          changed(PERSISTENT, "threshold\n", "threshold\n        self.tensors = tensors\n"),
          "so does each name"),
    Wrong("flat",
          changed(PERSISTENT, ".view(shape)", ""),
          "in the wrong shape"),
    Wrong("gathers what is whole",
          changed(PERSISTENT,
                  "return self.kept[index]",
                  "self.comm.all_gather(self.kept[index].flatten().tensor_split(self.comm.size)[self.comm"
                  ".rank], shape.numel())\n"
                  "            return self.kept[index]"),
          "needs no call"),
    Wrong("gathers in advance",
          changed(PERSISTENT, "tensors]\n\n", "tensors]\n        comm.barrier()\n\n"),
          "call 1 of rank 0 is barrier"),
    Wrong("keeps what it gathered last",
          changed(PERSISTENT,
                  "return self.comm.all_gather(self.kept[index], shape.numel()).view(shape)",
                  "self.last = self.comm.all_gather(self.kept[index], shape.numel()).view(shape)\n"
                  "        return self.last"),
          "or for what was gathered"),
    Wrong("one rank needs no call",
          changed(PERSISTENT,
                  "kept[index]\n",
                  "kept[index]\n"
                  "        if self.comm.size == 1:\n"
                  "            return self.kept[index].view(shape)\n"),
          "on one rank, too, and is gathered"),
    Wrong("goes by dimensions",
          changed(changed(PERSISTENT,
                          "tensor.numel() < self.threshold",
                          "tensor.dim() < 2"),
                  "shape.numel() < self.threshold",
                  "len(shape) < 2"),
          "the number of dimensions"),
    Wrong("empties the list",
          changed(PERSISTENT, "tensors]\n\n", "tensors]\n        tensors.clear()\n\n"),
          "they belong to the caller"),
    Wrong("empties the tensors",
          changed(PERSISTENT,
                  "tensors]\n\n",
                  "tensors]\n"
                  "        for tensor in tensors:\n"
                  "            if tensor.numel() >= threshold:\n"
                  "                tensor.data = torch.empty(0)\n\n"),
          "or a tensor in it, has changed"),
    Wrong("shapes on the class",
          changed(changed(PERSISTENT, "self.shapes =", "Persistent.shapes ="), "self.shapes", "Persistent.shapes"),
          "fails once a second Persistent"),
    Wrong("the threshold on the class", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm = comm
        Persistent.threshold = threshold
        self.shapes = [tensor.shape for tensor in tensors]
        self.kept = [self.part(tensor) for tensor in tensors]

    def part(self, tensor):
        if tensor.numel() < Persistent.threshold:
            return tensor
        return tensor.flatten().tensor_split(self.comm.size)[self.comm.rank].clone()

    def whole(self, index):
        shape = self.shapes[index]
        if shape.numel() < Persistent.threshold:
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], shape.numel()).view(shape)
""", "once a second"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("another dtype",
          changed(PERSISTENT, ".clone()", ".clone().float()"),
          "torch.float32, not torch."),
    Wrong("by memory, not by rows",
          changed(PERSISTENT, "tensor.flatten()", "torch.as_strided(tensor, (tensor.numel(),), (1,))"),
          "in the order in which they lie in memory"),
    Wrong("whole by its shape",
          changed(PERSISTENT, "shape.numel() < self.threshold", "self.kept[index].shape == shape"),
          "is gathered each time"),
    Wrong("a view of rows",
          changed(PERSISTENT, "flatten()", "view(-1)"),
          "view size is not compatible"),
    Wrong("bytes",
          changed(changed(PERSISTENT,
                          "tensor.numel()",
                          "tensor.nbytes"),
                  "if shape.numel()",
                  "if shape.numel() * self.kept[index].itemsize"),
          "you count bytes"),
    Wrong("a list of the class", """
class Persistent:
    kept, shapes = [], []

    def __init__(self, comm, tensors, threshold):
        self.comm, self.threshold = comm, threshold
        for tensor in tensors:
            small = tensor.numel() < threshold
            self.shapes.append(tensor.shape)
            self.kept.append(tensor if small else tensor.flatten().tensor_split(comm.size)[comm.rank].clone())

    def whole(self, index):
        shape, part = self.shapes[index], self.kept[index]
        return part if shape.numel() < self.threshold else self.comm.all_gather(part, shape.numel()).view(shape)
""", "`kept` belongs to the class, and all share it"),
    Wrong("what is left of one budget", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, self.kept, self.shapes, self.cut, left = comm, [], [], [], threshold
        for tensor in tensors:
            self.shapes.append(tensor.shape)
            self.cut.append(tensor.numel() >= left)
            left -= 0 if self.cut[-1] else tensor.numel()
            self.kept.append(tensor.flatten().tensor_split(comm.size)[comm.rank].clone() if self.cut[-1] else tensor)

    def whole(self, index):
        shape, part = self.shapes[index], self.kept[index]
        return self.comm.all_gather(part, shape.numel()).view(shape) if self.cut[index] else part
""", "the threshold is no budget for all"),
    # Passed once, or their hints spoke of another fault.
    Wrong("a dict",
          changed(PERSISTENT,
                  "[self.part(tensor) for tensor in tensors]",
                  "{index: self.part(tensor) for index, tensor in enumerate(tensors)}"),
          "`kept` is a dict, and a list is due"),
    Wrong("a cache on a helper",
          changed(CACHED, "def part", "@functools.cache\n    def part"),
          "functools.cache on `part`"),
    Wrong("a cache on whole",
          changed(CACHED, "def whole", "@functools.cache\n    def whole"),
          "functools.cache on `whole`"),
    Wrong("a cache for all by index",
          changed(changed(PERSISTENT,
                          "class",
                          "cache = {}\n\nclass"),
                  "kept[index]\n",
                  "kept[index]\n"
                  "        if index not in cache:\n"
                  "            cache[index] = self.comm.all_gather(self.kept[index], shape.numel()).view(shape)\n"
                  "        return cache[index]\n"),
          "to rank 0 a second one's whole()"),
    Wrong("gathers once",
          changed(changed(PERSISTENT,
                          "self.comm,",
                          "self.done = set()\n        self.comm,"),
                  "kept[index]\n",
                  "kept[index]\n"
                  "        if index in self.done:\n"
                  "            return torch.zeros(shape, dtype=self.kept[index].dtype)\n"
                  "        self.done.add(index)\n"),
          "asked once more"),
    Wrong("remembers what somebody uses", """
import weakref


class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm = comm
        self.small = [tensor.numel() < threshold for tensor in tensors]
        self.shapes = [tensor.shape for tensor in tensors]
        self.kept = [
            tensor.clone() if small else tensor.flatten().tensor_split(comm.size)[comm.rank].clone()
            for tensor, small in zip(tensors, self.small)
        ]
        # Weak: it keeps nothing in memory that nobody uses.
        self.here = weakref.WeakValueDictionary()

    def whole(self, index):
        if self.small[index]:
            return self.kept[index]
        whole = self.here.get(index)
        if whole is None:
            shape = self.shapes[index]
            whole = self.comm.all_gather(self.kept[index], shape.numel()).view(shape)
            self.here[index] = whole
        return whole
""", "also while somebody still uses"),
]  # fmt: skip

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
