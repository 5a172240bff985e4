"""Right answers to the exercises of lesson 05, in other styles than the model's."""

from zoo.right import zero3_plans, zero3_training
from zoo.right.answer import Right

RIGHT = [
    *zero3_training.RIGHT,
    *zero3_plans.RIGHT,
    Right("one row for all layers", "forward", """
def forward(comm, shards, shapes, x):
    row = torch.empty(max(map(math.prod, shapes)), dtype=shards[0].dtype)
    for index, (shard, shape) in enumerate(zip(shards, shapes)):
        layer = comm.all_gather(shard, out=row[: math.prod(shape)]).view(shape)
        x = (x.relu() if index else x) @ layer.t()
    return x
"""),
    Right("two rows", "prefetched", """
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
    Right("recursion", "forward", """
def forward(comm, shards, shapes, x):
    def step(shards, shapes, x):
        x = F.linear(x, comm.all_gather(shards[0], math.prod(shapes[0])).view(shapes[0]))
        if len(shards) == 1:
            return x
        return step(shards[1:], shapes[1:], F.relu(x))
    return step(shards, shapes, x)
"""),
    Right("recursion with an index, x in a frame", "forward", """
def forward(comm, shards, shapes, x, at=0):
    if at:
        x = x.relu()
    layer = comm.all_gather(shards[at], shapes[at][0] * shapes[at][1]).reshape(shapes[at])
    x = F.linear(x, layer)
    del layer
    return x if at == len(shards) - 1 else forward(comm, shards, shapes, x, at + 1)
"""),
    Right("recursion from the end", "forward", """
def forward(comm, shards, shapes, x):
    if not shards:
        return x
    x = forward(comm, shards[:-1], shapes[:-1], x)
    if len(shards) > 1:
        x = F.relu(x)
    return F.linear(x, comm.all_gather(shards[-1], math.prod(shapes[-1])).view(shapes[-1]))
"""),
    Right("reduce over pairs", "forward", """
from functools import reduce
def forward(comm, shards, shapes, x):
    def layer(x, pair):
        shard, (rows, columns) = pair
        return F.linear(x, comm.all_gather(shard, rows * columns).view(rows, columns))
    pairs = list(zip(shards, shapes))
    x = reduce(lambda x, pair: F.relu(layer(x, pair)), pairs[:-1], x)
    return layer(x, pairs[-1])
"""),
    Right("a class with resize_", "forward", """
class Layer:
    def __init__(self, comm, shard, shape):
        self.comm, self.shard, self.shape = comm, shard, shape
    def __enter__(self):
        self.whole = self.comm.all_gather_async(self.shard, math.prod(self.shape)).wait()
        return self.whole.unflatten(0, self.shape)
    def __exit__(self, *error):
        self.whole.untyped_storage().resize_(0)
        del self.whole
def forward(comm, shards, shapes, x):
    last = len(shapes) - 1
    for index in range(len(shapes)):
        with Layer(comm, shards[index], shapes[index]) as weight:
            x = x @ weight.mT
        if index < last:
            x = torch.clamp(x, min=0)
    return x
"""),
    Right("del and out-of-place", "forward", """
@torch.no_grad()
def forward(comm, shards, shapes, x):
    layers = zip(shards, shapes, [True] * (len(shards) - 1) + [False])
    for shard, shape, between in layers:
        flat = torch.empty(math.prod(shape), dtype=shard.dtype)
        comm.all_gather(shard, out=flat)
        x = torch.mm(x, flat.view(shape).t())
        if between:
            x = torch.maximum(x, torch.zeros_like(x))
        del flat
    return x
"""),
    Right("a generator of weights", "prefetched", """
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
    Right("a list of handles, popped", "prefetched", """
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
    Right("a class", "prefetched", """
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
    Right("recursion", "prefetched", """
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
    Right("two resized storages", "prefetched", """
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
    Right("pairwise and a last one", "prefetched", """
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
    Right("iterators, einsum", "forward", """
def forward(comm, shards, shapes, x):
    pending = list(zip(shapes, shards))[::-1]
    while pending:
        (out, inside), shard = pending.pop()
        x = torch.einsum("bi,oi->bo", x, comm.all_gather(shard, out * inside).reshape(out, inside))
        if pending:
            x.relu_()
    return x
"""),
    Right("accumulate of closures, async", "forward", """
from itertools import accumulate
def forward(comm, shards, shapes, x):
    def step(x, at):
        h = x if at == 0 else F.threshold(x, 0.0, 0.0)
        return F.linear(h, comm.all_gather_async(shards[at], math.prod(shapes[at])).wait().view(shapes[at]))
    *_, y = accumulate(range(len(shapes)), step, initial=x)
    return y
"""),
    Right("a deque of at most one", "prefetched", """
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
    Right("three names rotated", "prefetched", """
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
]  # fmt: skip
