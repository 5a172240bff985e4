"""Wrong answers to the exercises of lesson 05."""

from zoo.wrong import Wrong, changed

FORWARD = """
def forward(comm, shards, shapes, x):
    for index, (shard, shape) in enumerate(zip(shards, shapes, strict=True)):
        if index:
            x = F.relu(x)
        whole = comm.all_gather(shard, math.prod(shape))
        x = F.linear(x, whole.view(*shape))
        del whole
    return x
"""
TRAINS = """
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape, x):
        ctx.comm, ctx.shape = comm, shape
        ctx.save_for_backward(shard, x)
        return F.linear(x, comm.all_gather(shard, math.prod(shape)).view(*shape))

    @staticmethod
    def backward(ctx, grad):
        shard, x = ctx.saved_tensors
        of_x = grad @ ctx.comm.all_gather(shard, math.prod(ctx.shape)).view(*ctx.shape)
        of_shard = ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True)
        return None, of_shard, None, of_x


def sharded_linear(comm, shard, shape, x):
    return GatheredLinear.apply(comm, shard, shape, x)
"""
AHEAD = """
def prefetched(comm, shards, shapes, x, layer):
    numels = [math.prod(shape) for shape in shapes]
    coming = comm.all_gather_async(shards[0], numels[0])
    for index, shape in enumerate(shapes):
        whole, following = coming.wait(), index + 1
        coming = None
        if following < len(shapes):
            coming = comm.all_gather_async(shards[following], numels[following])
        x = layer(x, whole.view(*shape))
    return x
"""
PERSISTENT = """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, self.threshold = comm, threshold
        self.shapes = [tensor.shape for tensor in tensors]
        self.kept = [self.part(tensor) for tensor in tensors]

    def part(self, tensor):
        if tensor.numel() < self.threshold:
            return tensor
        return tensor.flatten().tensor_split(self.comm.size)[self.comm.rank].clone()

    def whole(self, index):
        shape = self.shapes[index]
        if shape.numel() < self.threshold:
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], shape.numel()).view(shape)
"""
COST = """
def step_bytes(units, ranks, micro_batches, checkpointing):
    first = next((index for index, (_, trains) in enumerate(units) if trains), len(units))
    forth = sum(numel for numel, _ in units)
    back = sum(numel for numel, _ in units[first:])
    reduced = sum(numel for numel, trains in units if trains)
    return micro_batches * 4 * (forth + back + reduced) // ranks * (ranks - 1)
"""
TRACE = """
def explain_trace(trace):
    here, away, most = set(), set(), 0
    for event, unit in trace:
        if event == "gather":
            here.add(unit)
        elif event == "release":
            here.discard(unit)
        elif unit not in here:
            away.add(unit)
        most = max(most, len(here))
    return most, sorted(here), sorted(away)
"""


def blank(exercise: str, head: str = "") -> Wrong:
    """The exercise as it was handed out; `head` opens a class."""
    head = head or f"def {exercise}(*args):\n"
    return Wrong("blank", exercise, f"{head}    raise NotImplementedError()", "not written yet")


ALL_FIRST = """
def forward(comm, shards, shapes, x):
    layers = [comm.all_gather(shard, math.prod(shape)).view(*shape) for shard, shape in zip(shards, shapes)]
    for index, layer in enumerate(layers):
        x = F.linear(F.relu(x) if index else x, layer)
    return x
"""

FORWARDS = [
    blank("forward"),
    Wrong("ReLU after the last, too", "forward",
          changed(FORWARD, "return x", "return F.relu(x)"), "nothing comes after the last"),
    Wrong("no ReLU", "forward", changed(FORWARD, "x = F.relu(x)", "pass"), "without ReLU between them"),
    Wrong("forgets the last layer", "forward",
          changed(FORWARD, "enumerate(zip(shards, shapes, strict=True))", "enumerate(zip(shards[:-1], shapes))"),
          "does your loop reach the last"),
    Wrong("rank 0's input for all", "forward",
          changed(FORWARD, "    for index", "    x = comm.broadcast(x.clone())\n    for index"), "rank 0's input"),
    Wrong("returns the input", "forward", changed(FORWARD, "x = F.linear(x, whole.view(*shape))", "pass")
          .replace("x = F.relu(x)", "pass"), "no layer went"),
    Wrong("assumes that the ranks divide", "forward",
          changed(FORWARD, "comm.all_gather(shard, math.prod(shape))", "comm.all_gather(shard)"), "pass numel"),
    Wrong("uses its own shard", "forward",
          changed(FORWARD, "comm.all_gather(shard, math.prod(shape))", "shard"), "is invalid for input of size"),
    Wrong("transposed layers", "forward",
          changed(FORWARD, "whole.view(*shape)", "whole.view(*reversed(shape)).t()"), "by hand"),
    Wrong("half precision", "forward", changed(FORWARD, "return x", "return x.half()"), "float16, not torch.float32"),
    Wrong("leaves the layers in the caller's list", "forward", """
def forward(comm, shards, shapes, x):
    for index, shape in enumerate(shapes):
        shards[index] = comm.all_gather(shards[index], math.prod(shape))
        x = F.linear(F.relu(x) if index else x, shards[index].view(*shape))
    return x
""", "overwrote"),
    Wrong("gathers twice", "forward",
          changed(FORWARD, "        whole =", "        comm.all_gather(shard, math.prod(shape))\n        whole ="),
          "call 2 of rank 0"),
    Wrong("broadcasts besides", "forward",
          changed(FORWARD, "        whole =", "        comm.broadcast(torch.ones(1))\n        whole ="),
          "is broadcast of 1"),
    Wrong("gathers all first", "forward", ALL_FIRST, "6 layers"),
    Wrong("holds two layers", "forward", changed(FORWARD, "        del whole\n", ""), "2 layers"),
    Wrong("a view stays", "forward", changed(FORWARD, "x = F.linear(x, whole.view(*shape))",
          "weight = whole.view(*shape)\n        x = F.linear(x, weight)"), "a view"),
]  # fmt: skip

ZOO = [*FORWARDS]
