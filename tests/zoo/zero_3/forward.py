"""Answers to `forward` of lesson 05, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("05_zero_3", "forward")
RELEASED = """
def forward(comm, shards, shapes, x):
    for index, (shard, shape) in enumerate(zip(shards, shapes)):
        layer = comm.all_gather(shard, math.prod(shape)).view(shape)
        layer.untyped_storage().resize_(0)
        x = (x[:, None] * layer).sum(2)
    return x
"""

WRONG = [
    blank("forward"),
    Wrong("ReLU after the last, too",
          changed(MODEL, "return x", "return F.relu(x)"),
          "nothing comes after the last"),
    Wrong("no ReLU",
          changed(MODEL, "x = F.relu(x)", "pass"),
          "without ReLU between them"),
    Wrong("forgets the last layer",
          changed(MODEL, ", shapes, strict=True", "[:-1], shapes"),
          "does your loop reach the last"),
    Wrong("rank 0's input for all",
          changed(MODEL, "for index", "x = comm.broadcast(x.clone())\n    for index"),
          "rank 0's input"),
    Wrong("returns the input",
          changed(changed(MODEL, "x = F.relu(x)", "pass"), "x = F.linear(x, whole.view(*shape))", "pass"),
          "no layer went"),
    Wrong("assumes that the ranks divide",
          changed(MODEL, "shard, math.prod(shape)", "shard"),
          "the ranks part ways"),
    Wrong("uses its own shard",
          changed(MODEL, "comm.all_gather(shard, math.prod(shape))", "shard"),
          "is invalid for input of size"),
    Wrong("transposed layers",
          changed(MODEL, "(*shape)", "(*reversed(shape)).t()"),
          "by hand"),
    Wrong("half precision",
          changed(MODEL, "return x", "return x.half()"),
          "float16, not torch.float32"),
    Wrong("leaves the layers in the caller's list", """
def forward(comm, shards, shapes, x):
    for index, shape in enumerate(shapes):
        shards[index] = comm.all_gather(shards[index], math.prod(shape))
        x = F.linear(F.relu(x) if index else x, shards[index].view(*shape))
    return x
""", "overwrote"),
    Wrong("gathers twice",
          changed(MODEL, "F.relu(x)\n", "F.relu(x)\n        comm.all_gather(shard, math.prod(shape))\n"),
          "call 2 of rank 0 is all_gather of 780 elements"),
    Wrong("broadcasts besides",
          changed(MODEL, "F.relu(x)\n", "F.relu(x)\n        comm.broadcast(torch.ones(1))\n"),
          "is broadcast of 1"),
    Wrong("gathers all first", """
def forward(comm, shards, shapes, x):
    layers = [comm.all_gather(shard, math.prod(shape)).view(*shape) for shard, shape in zip(shards, shapes)]
    for index, layer in enumerate(layers):
        x = F.linear(F.relu(x) if index else x, layer)
    return x
""", "6 whole layers"),
    Wrong("holds two layers",
          changed(MODEL, "        del whole\n", ""),
          "one is enough"),
    Wrong("a view stays",
          changed(MODEL,
                  "x = F.linear(x, whole.view(*shape))",
                  "weight = whole.view(*shape)\n        x = F.linear(x, weight)"),
          "a view or a list"),
    Wrong("a single layer gets a ReLU",
          changed(MODEL, "return x", "return x if len(shards) > 1 else F.relu(x) - 1"),
          "a single layer of 15"),
    Wrong("a global keeps the last layer", """
def forward(comm, shards, shapes, x):
    for index, (shard, shape) in enumerate(zip(shards, shapes, strict=True)):
        if index:
            x = F.relu(x)
        last.clear()
        whole = comm.all_gather(shard, math.prod(shape))
        x = F.linear(x, whole.view(*shape))
        last[comm.rank] = whole
        del whole
    return x


last = {}
""", "are alive that it did not return"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("single precision",
          changed(MODEL, "x, whole", "x.float(), whole.float()"),
          "torch.float32, not torch."),
    Wrong("gathers in single precision",
          changed(MODEL, "(shard, math.prod(shape))", "(shard.float(), math.prod(shape)).to(shard.dtype)"),
          "what goes through float32?"),
    Wrong("a copy of the layer",
          changed(MODEL, "(*shape)", "(*shape).clone()"),
          "whole layers at once, at most: 2"),
    # Passed once, or their hints spoke of another fault.
    Wrong("a default list that says whether it is the first", """
def forward(comm, shards, shapes, x, seen=[]):
    for index, (shard, shape) in enumerate(zip(shards, shapes, strict=True)):
        if seen:
            x = F.relu(x)
        whole = comm.all_gather(shard, math.prod(shape))
        x = F.linear(x, whole.view(*shape))
        seen.append(index)
        del whole
    return x
""", "after another call (on "),
    Wrong("a larger buffer beside the old one", """
@torch.no_grad()
def forward(comm, shards, shapes, x):
    buffer = x.new_empty(0)
    for number, (shard, shape) in enumerate(zip(shards, shapes)):
        numel = math.prod(shape)
        if buffer.numel() < numel:
            buffer = torch.empty(numel, dtype=shard.dtype, device=shard.device)
        layer = buffer[:numel]
        comm.all_gather(shard, out=layer)
        x = F.linear(x, layer.view(shape))
        if number + 1 < len(shards):
            x = F.relu(x)
    return x
""", "a buffer while a larger one is made"),
    Wrong("tells the last layer by its shape", """
@torch.no_grad()
def forward(comm, shards, shapes, x):
    for shard, shape in zip(shards, shapes):
        whole = comm.all_gather(shard, math.prod(shape))
        x = F.linear(x, whole.view(shape))
        del whole
        if shape != shapes[-1]:
            x = F.relu(x)
    return x
""", "tell the last layer by its place"),
    Wrong("keeps itself and a layer", """
def forward(comm, shards, shapes, x):
    whole = None

    def through(x, index):
        nonlocal whole
        if index == len(shards):
            return x
        whole = None
        whole = comm.all_gather(shards[index], math.prod(shapes[index])).view(shapes[index])
        return through(F.linear(F.relu(x) if index else x, whole), index + 1)

    return through(x, 0)
""", "bytes on rank 0 wait for Python's garbage collector"),
]  # fmt: skip

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
