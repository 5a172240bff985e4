"""Answers to `prefetched` of lesson 05, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("two rows", """
def prefetched(comm, shards, shapes, x, layer):
    rows = [torch.empty(max(map(math.prod, shapes)), dtype=shards[0].dtype) for _ in range(2)]
    start = lambda index: comm.all_gather_async(shards[index], out=rows[index % 2][: math.prod(shapes[index])])
    coming = start(0)
    for index, shape in enumerate(shapes):
        weight = coming.wait().view(shape)
        coming = start(index + 1) if index + 1 < len(shapes) else None
        x = layer(x, weight)
    return x
"""),
    Right("a generator of weights", """
def prefetched(comm, shards, shapes, x, layer):
    def weights():
        coming = comm.all_gather_async(shards[0], math.prod(shapes[0]))
        for index, shape in enumerate(shapes):
            here = coming.wait().view(shape)
            coming = None
            if index + 1 < len(shapes):
                coming = comm.all_gather_async(shards[index + 1], math.prod(shapes[index + 1]))
            yield here
            del here
    for weight in weights():
        x = layer(x, weight)
        del weight
    return x
"""),
    Right("a class", """
class Ahead:
    def __init__(self, comm, shards, shapes):
        self.comm, self.todo, self.handle = comm, list(zip(shards, shapes)), None
        self.start()
    def start(self):
        if self.todo:
            shard, self.shape = self.todo.pop(0)
            self.handle = self.comm.all_gather_async(shard, self.shape[0] * self.shape[1])
    def next(self):
        whole = self.handle.wait().view(self.shape)
        self.handle = None
        self.start()
        return whole
def prefetched(comm, shards, shapes, x, layer):
    ahead = Ahead(comm, shards, shapes)
    for _ in shapes:
        x = layer(x, ahead.next())
    return x
"""),
    Right("recursion", """
def prefetched(comm, shards, shapes, x, layer):
    def go(index, x):
        weight = coming.pop().wait().view(shapes[index])
        start(index + 1)
        x = layer(x, weight)
        del weight
        return go(index + 1, x) if coming else x
    coming = []
    def start(index):
        if index < len(shards):
            coming.append(comm.all_gather_async(shards[index], math.prod(shapes[index])))
    start(0)
    return go(0, x)
"""),
    Right("two resized storages", """
def prefetched(comm, shards, shapes, x, layer):
    sizes = [math.prod(shape) for shape in shapes]
    buffers = [torch.empty(0, dtype=shards[0].dtype), torch.empty(0, dtype=shards[0].dtype)]
    def begin(i):
        room = buffers[i % 2].resize_(sizes[i])
        return comm.all_gather_async(shards[i], out=room)
    handle = begin(0)
    for i, shape in enumerate(shapes):
        handle.wait()
        if i < len(shapes) - 1:
            handle = begin(i + 1)
        x = layer(x, buffers[i % 2].view(shape))
    return x
"""),
]  # fmt: skip
