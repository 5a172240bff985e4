"""Answers to `prefetched` of lesson 05, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("05_zero_3", "prefetched")

WRONG = [
    blank("prefetched"),
    Wrong("waits at once", """
def prefetched(comm, shards, shapes, x, layer):
    for shard, shape in zip(shards, shapes):
        whole = comm.all_gather_async(shard, math.prod(shape)).wait()
        x = layer(x, whole.view(*shape))
        del whole
    return x
""", "somebody waits for the wire"),
    Wrong("starts all at once", """
def prefetched(comm, shards, shapes, x, layer):
    coming = [comm.all_gather_async(shard, math.prod(shape)) for shard, shape in zip(shards, shapes)]
    for handle, shape in zip(coming, shapes):
        x = layer(x, handle.wait().view(*shape))
    return x
""", "6 whole layers"),
    Wrong("two ahead", """
def prefetched(comm, shards, shapes, x, layer):
    count = len(shards)
    start = lambda i: comm.all_gather_async(shards[i], math.prod(shapes[i]))
    coming = [start(i) for i in range(min(2, count))]
    for index, shape in enumerate(shapes):
        if index == 0:
            whole = coming.pop(0).wait()
        if index + 2 < count:
            coming.append(start(index + 2))
        x = layer(x, whole.view(*shape))
        del whole
        if coming:
            whole = coming.pop(0).wait()
    return x
""", "two are enough"),
    Wrong("forgets the last layer", """
def prefetched(comm, shards, shapes, x, layer):
    coming = comm.all_gather_async(shards[0], math.prod(shapes[0]))
    for index in range(len(shapes) - 1):
        whole = coming.wait()
        coming = comm.all_gather_async(shards[index + 1], math.prod(shapes[index + 1]))
        x = layer(x, whole.view(*shapes[index]))
    coming.wait()
    return x
""", "who computes the layer that was fetched last"),
    Wrong("reads what has not arrived", """
def prefetched(comm, shards, shapes, x, layer):
    for shard, shape in zip(shards, shapes):
        whole = torch.zeros(math.prod(shape), dtype=shard.dtype)
        coming = comm.all_gather_async(shard, out=whole)
        x = layer(x, whole.view(*shape))
        coming.wait()
    return x
""", "wait() for it"),
    Wrong("reads garbage", """
def prefetched(comm, shards, shapes, x, layer):
    for shard, shape in zip(shards, shapes):
        whole = torch.full((math.prod(shape),), 7.0, dtype=shard.dtype)
        coming = comm.all_gather_async(shard, out=whole)
        x = layer(x, whole.view(*shape))
        coming.wait()
    return x
""", "still filling"),
    Wrong("reads past the end",
          changed(MODEL, "following < len(shapes)", "True"),
          "list index out of range"),
    Wrong("off by one", """
def prefetched(comm, shards, shapes, x, layer):
    before = None
    for shard, shape in zip(shards, shapes):
        coming = comm.all_gather_async(shard, math.prod(shape))
        x = layer(x, (before or coming).wait().view(*shape))
        before = coming
    return x
""", "is invalid for input of size"),
    Wrong("gathers the first one twice",
          changed(MODEL, "for index", "comm.all_gather(shards[0], numels[0])\n    for index"),
          "in the order of use"),
    Wrong("works on the input",
          changed(MODEL, "return x", "shards[0].zero_()\n    return x"),
          "overwrote"),
    Wrong("never calls layer",
          changed(MODEL, "layer(x, whole.view(*shape))", "F.relu(F.linear(x, whole.view(*shape)))"),
          "call the `layer` that you are handed"),
    Wrong("computes twice",
          changed(MODEL, "x = layer", "layer(x, whole.view(*shape))\n        x = layer"),
          "each layer computes once"),
    Wrong("a single layer is none",
          changed(MODEL,
                  "numels =",
                  "if len(shapes) == 1:\n"
                  "        return x\n"
                  "    numels ="),
          "a single layer is one, too"),
    Wrong("a global keeps the last layer",
          changed(changed(MODEL,
                          "x = layer",
                          "last[comm.rank] = whole\n        x = layer"),
                  "return x\n",
                  "return x\n\n\nlast = {}\n"),
          "are alive that it did not return"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("one row for all layers", """
def prefetched(comm, shards, shapes, x, layer):
    row = torch.empty(max(map(math.prod, shapes)), dtype=shards[0].dtype)
    start = lambda index: comm.all_gather_async(shards[index], out=row[: math.prod(shapes[index])])
    coming = start(0)
    for index, shape in enumerate(shapes):
        whole = coming.wait().view(shape)
        coming = start(index + 1) if index + 1 < len(shapes) else None
        x = layer(x, whole)
    return x
""", "memory that a gather under way writes to"),
    # Passed once, or their hints spoke of another fault.
    Wrong("one more ReLU after each",
          changed(MODEL, "layer(x, whole.view(*shape))", "F.relu(layer(x, whole.view(*shape)))"),
          "one ReLU more after each layer"),
    Wrong("one more ReLU between two",
          changed(MODEL, "x, whole", "F.relu(x) if index else x, whole"),
          "one ReLU more between two layers"),
    Wrong("one more ReLU before each",
          changed(MODEL, "x, whole", "F.relu(x), whole"),
          "one ReLU more before each layer"),
    Wrong("one more ReLU at the end",
          changed(MODEL, "return x", "return F.relu(x)"),
          "one ReLU more at the end"),
    Wrong("one more ReLU at the beginning",
          changed(MODEL, "for index", "x = F.relu(x)\n    for index"),
          "one ReLU more at the beginning"),
    Wrong("does not say how long a layer is",
          changed(changed(MODEL, "[0], numels[0]", "[0]"), "[following], numels", ""),
          "tell all_gather how long the whole is"),
    Wrong("default jobs", """
def prefetched(comm, shards, shapes, x, layer, jobs=[]):
    for shard, shape in zip(shards, shapes):
        jobs.append((comm.all_gather_async(shard, math.prod(shape)), shape))
        if len(jobs) > 1:
            coming, before = jobs.pop(0)
            x = layer(x, coming.wait().view(*before))
    coming, before = jobs[0]
    return layer(x, coming.wait().view(*before))
""", "alive that it did not return: what keeps them"),
    Wrong("default outputs",
          changed(changed(MODEL, "x, layer", "x, layer, out=[]"), "return x", "out.append(x)\n    return out[0]"),
          "after another call (on "),
    Wrong("calls itself, and holds the last layer", """
def prefetched(comm, shards, shapes, x, layer):
    coming = None

    def start(index):
        nonlocal coming
        coming = comm.all_gather_async(shards[index], math.prod(shapes[index]))

    def run(index):
        nonlocal x
        weight = coming.wait().view(shapes[index])
        if index + 1 < len(shards):
            start(index + 1)
        x = layer(x, weight)
        del weight
        if index + 1 < len(shards):
            run(index + 1)

    start(0)
    run(0)
    return x
""", "a reference cycle holds them"),
]  # fmt: skip

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
