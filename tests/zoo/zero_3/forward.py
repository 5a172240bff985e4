"""Answers to `forward` of lesson 05, wrong and right."""

from zoo.answers import Right

RELEASED = """
def forward(comm, shards, shapes, x):
    for index, (shard, shape) in enumerate(zip(shards, shapes)):
        layer = comm.all_gather(shard, math.prod(shape)).view(shape)
        layer.untyped_storage().resize_(0)
        x = (x[:, None] * layer).sum(2)
    return x
"""

RIGHT = [
    Right("one row for all layers", """
def forward(comm, shards, shapes, x):
    row = torch.empty(max(map(math.prod, shapes)), dtype=shards[0].dtype)
    for index, (shard, shape) in enumerate(zip(shards, shapes)):
        layer = comm.all_gather(shard, out=row[: math.prod(shape)]).view(shape)
        x = (x.relu() if index else x) @ layer.t()
    return x
"""),
    Right("recursion", """
def forward(comm, shards, shapes, x):
    def step(shards, shapes, x):
        x = F.linear(x, comm.all_gather(shards[0], math.prod(shapes[0])).view(shapes[0]))
        if len(shards) == 1:
            return x
        return step(shards[1:], shapes[1:], F.relu(x))
    return step(shards, shapes, x)
"""),
    Right("recursion with an index, x in a frame", """
def forward(comm, shards, shapes, x, at=0):
    if at:
        x = x.relu()
    layer = comm.all_gather(shards[at], shapes[at][0] * shapes[at][1]).reshape(shapes[at])
    x = F.linear(x, layer)
    del layer
    return x if at == len(shards) - 1 else forward(comm, shards, shapes, x, at + 1)
"""),
    Right("recursion from the end", """
def forward(comm, shards, shapes, x):
    if not shards:
        return x
    x = forward(comm, shards[:-1], shapes[:-1], x)
    if len(shards) > 1:
        x = F.relu(x)
    return F.linear(x, comm.all_gather(shards[-1], math.prod(shapes[-1])).view(shapes[-1]))
"""),
    Right("reduce over pairs", """
from functools import reduce
def forward(comm, shards, shapes, x):
    def layer(x, pair):
        shard, (rows, columns) = pair
        return F.linear(x, comm.all_gather(shard, rows * columns).view(rows, columns))
    pairs = list(zip(shards, shapes))
    x = reduce(lambda x, pair: F.relu(layer(x, pair)), pairs[:-1], x)
    return layer(x, pairs[-1])
"""),
    Right("a class with resize_", """
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
    Right("del and out-of-place", """
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
    Right("iterators, einsum", """
def forward(comm, shards, shapes, x):
    pending = list(zip(shapes, shards))[::-1]
    while pending:
        (out, inside), shard = pending.pop()
        x = torch.einsum("bi,oi->bo", x, comm.all_gather(shard, out * inside).reshape(out, inside))
        if pending:
            x.relu_()
    return x
"""),
    Right("accumulate of closures, async", """
from itertools import accumulate
def forward(comm, shards, shapes, x):
    def step(x, at):
        h = x if at == 0 else F.threshold(x, 0.0, 0.0)
        return F.linear(h, comm.all_gather_async(shards[at], math.prod(shapes[at])).wait().view(shapes[at]))
    *_, y = accumulate(range(len(shapes)), step, initial=x)
    return y
"""),
    # Written from the text alone.
    Right("recursion", """
def forward(comm, shards, shapes, x):
    def one(shard, shape, x):
        return torch.nn.functional.linear(x, comm.all_gather(shard, shape[0] * shape[1]).reshape(shape))
    if not shards:
        return x
    x = one(shards[0], shapes[0], x)
    return forward(comm, shards[1:], shapes[1:], x.clamp(min=0)) if shards[1:] else x
"""),
]  # fmt: skip
