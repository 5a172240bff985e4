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
    Right("a list of handles, popped", """
def prefetched(comm, shards, shapes, x, layer):
    def start(i):
        return [comm.all_gather_async(shards[i], math.prod(shapes[i]))] if i < len(shards) else []
    handles = start(0)
    for i in range(len(shards)):
        weight = handles.pop().wait().reshape(shapes[i])
        handles = start(i + 1)
        x = layer(x, weight)
        weight = None
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
    Right("pairwise and a last one", """
from itertools import pairwise
def prefetched(comm, shards, shapes, x, layer):
    plan = list(zip(shards, map(math.prod, shapes), shapes))
    handle = comm.all_gather_async(plan[0][0], plan[0][1])
    for (_, _, shape), (shard, numel, _) in pairwise(plan):
        weight, handle = handle.wait().view(shape), comm.all_gather_async(shard, numel)
        x = layer(x, weight)
        weight = None
    return layer(x, handle.wait().view(shapes[-1]))
"""),
    Right("a deque of at most one", """
from collections import deque
def prefetched(comm, shards, shapes, x, layer):
    todo, ahead = deque(zip(shards, shapes)), deque(maxlen=1)
    def fetch():
        if todo:
            shard, shape = todo.popleft()
            ahead.append((comm.all_gather_async(shard, math.prod(shape)), shape))
    fetch()
    while ahead:
        handle, shape = ahead.popleft()
        weight = handle.wait().view(shape)
        del handle
        fetch()
        x = layer(x, weight)
        weight = None
    return x
"""),
    Right("three names rotated", """
def prefetched(comm, shards, shapes, x, layer):
    get = lambda i: comm.all_gather_async(shards[i], math.prod(shapes[i])) if i < len(shards) else None
    now, i = get(0), 0
    while now is not None:
        weight = now.wait()
        now = get(i + 1)
        x, weight = layer(x, weight.view(shapes[i])), None
        i += 1
    return x
"""),
    # Written from the text alone.
    Right("a generator of layers", """
def prefetched(comm, shards, shapes, x, layer):
    def layers():
        work = list(zip(shards, shapes))[::-1]
        shard, shape = work.pop()
        handle = comm.all_gather_async(shard, shape[0] * shape[1])
        while handle:
            weight = handle.wait().reshape(shape)
            handle = None
            if work:
                shard, shape = work.pop()
                handle = comm.all_gather_async(shard, shape[0] * shape[1])
            yield weight
            del weight
    source = layers()
    while True:
        try:
            x = layer(x, next(source))
        except StopIteration:
            return x
"""),
    Right("recursion that lets go", """
def prefetched(comm, shards, shapes, x, layer):
    coming = []

    def start(index):
        if index < len(shards):
            coming.append(comm.all_gather_async(shards[index], math.prod(shapes[index])))

    def run(x, index):
        if index == len(shards):
            return x
        weight = coming.pop().wait().view(shapes[index])
        start(index + 1)
        x = layer(x, weight)
        del weight
        return run(x, index + 1)

    start(0)
    return run(x, 0)
"""),
]  # fmt: skip
