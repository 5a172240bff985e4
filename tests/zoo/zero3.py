"""Wrong answers to the exercises of lesson 05; those on thresholds, costs and traces are in `zero3_plans`."""

from zoo import zero3_plans
from zoo.wrong import Wrong, blank, changed

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
          changed(FORWARD, "comm.all_gather(shard, math.prod(shape))", "comm.all_gather(shard)"),
          "the ranks part ways"),
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
          "call 2 of rank 0 is all_gather of 780 elements"),
    Wrong("broadcasts besides", "forward",
          changed(FORWARD, "        whole =", "        comm.broadcast(torch.ones(1))\n        whole ="),
          "is broadcast of 1"),
    Wrong("gathers all first", "forward", ALL_FIRST, "6 whole layers"),
    Wrong("holds two layers", "forward", changed(FORWARD, "        del whole\n", ""), "one is enough"),
    Wrong("a view stays", "forward", changed(FORWARD, "x = F.linear(x, whole.view(*shape))",
          "weight = whole.view(*shape)\n        x = F.linear(x, weight)"), "a view or a list"),
    Wrong("a single layer gets a ReLU", "forward",
          changed(FORWARD, "    return x", "    return x if len(shards) > 1 else F.relu(x) - 1"),
          "a single layer of 15"),
    Wrong("a global keeps the last layer", "forward",
          changed(FORWARD, "        del whole\n", "        last[comm.rank] = whole\n        del whole\n")
          .replace("        whole =", "        last.clear()\n        whole =") + "\n\nlast = {}\n",
          "are alive that it did not return"),
]  # fmt: skip

NAIVE = """
def sharded_linear(comm, shard, shape, x):
    return F.linear(x, comm.all_gather(shard, math.prod(shape)).view(*shape))
"""
KEPT_BY_AUTOGRAD = """
class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape):
        ctx.comm = comm
        return comm.all_gather(shard, math.prod(shape)).view(*shape)

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.comm.reduce_scatter(grad.flatten(), average=True), None


def sharded_linear(comm, shard, shape, x):
    return F.linear(x, Gathered.apply(comm, shard, shape))
"""
WRITES_GRAD = changed(
    TRAINS, "return None, of_shard, None, of_x", "shard.grad = of_shard\n        return None, None, None, of_x"
)

TRAININGS = [
    blank("sharded_linear", "class GatheredLinear:\n"),
    Wrong("without a backward", "sharded_linear", NAIVE, "autograd does not follow collectives"),
    Wrong("no gradient for x", "sharded_linear",
          changed(TRAINS, "return None, of_shard, None, of_x", "return None, of_shard, None, None"),
          "the layers before this one wait"),
    Wrong("the sum", "sharded_linear", changed(TRAINS, ", average=True", ""), "ask for their mean"),
    Wrong("own data only", "sharded_linear",
          changed(TRAINS, "ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True)",
                  "(grad.t() @ x).flatten().tensor_split(ctx.comm.size)[ctx.comm.rank]"), "its own gradient"),
    Wrong("unsharded gradient", "sharded_linear",
          changed(TRAINS, "ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True)",
                  "ctx.comm.all_reduce((grad.t() @ x).flatten(), average=True)"), "but expected shape compatible with"),
    Wrong("writes shard.grad itself", "sharded_linear", WRITES_GRAD, "the last micro-batch alone"),
    Wrong("transposed gradient", "sharded_linear",
          changed(TRAINS, "(grad.t() @ x).flatten()", "(x.t() @ grad).flatten()"), "the transposed layer"),
    Wrong("stale x", "sharded_linear",
          changed(TRAINS, "ctx.save_for_backward(shard, x)", "ctx.save_for_backward(shard, torch.ones_like(x))"),
          "look at the gradients of the shards"),
    Wrong("a layer that is not linear", "sharded_linear",
          changed(TRAINS, "return F.linear(x, comm", "return 2 * F.linear(x, comm"), "on the whole matrix"),
    Wrong("forgets W on the way back", "sharded_linear",
          changed(TRAINS, "return None, of_shard, None, of_x", "return None, of_shard, None, 0 * of_x"),
          "the derivative of x W^T by x"),
    Wrong("reduces for everybody", "sharded_linear",
          changed(TRAINS, "ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True)",
                  "ctx.comm.all_reduce((grad.t() @ x).flatten(), average=True)"
                  ".tensor_split(ctx.comm.size)[ctx.comm.rank]"),
          "a rank keeps one piece of a gradient"),
    Wrong("gathers twice in forward", "sharded_linear",
          changed(TRAINS, "        return F.linear",
                  "        comm.all_gather(shard, math.prod(shape))\n        return F.linear"),
          "in forward each layer is gathered once"),
    Wrong("reduces something else, too", "sharded_linear",
          changed(TRAINS, "        return None, of",
                  "        ctx.comm.reduce_scatter(grad.flatten())\n        return None, of"),
          "in its backward"),
    Wrong("changes its input", "sharded_linear",
          changed(TRAINS, "ctx.save_for_backward(shard, x)", "ctx.save_for_backward(shard, x.clone())")
          .replace("    return GatheredLinear.apply(comm, shard, shape, x)",
                   "    y = GatheredLinear.apply(comm, shard, shape, x)\n    x.data.mul_(2)\n    return y"),
          "overwrote"),
    Wrong("autograd keeps the layers", "sharded_linear", KEPT_BY_AUTOGRAD, "holds 6 whole layers: who keeps them"),
    Wrong("saves the layers", "sharded_linear", """
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape, x):
        ctx.comm, whole = comm, comm.all_gather(shard, math.prod(shape)).view(*shape)
        ctx.save_for_backward(whole, x)
        return F.linear(x, whole)

    @staticmethod
    def backward(ctx, grad):
        whole, x = ctx.saved_tensors
        return None, ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True), None, grad @ whole


def sharded_linear(comm, shard, shape, x):
    return GatheredLinear.apply(comm, shard, shape, x)
""", "saved or set on ctx"),
    Wrong("gathers once more in backward", "sharded_linear",
          changed(TRAINS, "        of_shard",
                  "        ctx.comm.all_gather(shard, math.prod(ctx.shape))\n        of_shard"),
          "two gathers and one reduce_scatter"),
    Wrong("changes the gradient it was handed", "sharded_linear",
          changed(TRAINS, "        of_shard = ", "        grad /= ctx.comm.size\n        of_shard = ")
          .replace(", average=True", ""), "overwrote the gradient it was handed"),
    Wrong("a global keeps one layer until backward", "sharded_linear",
          changed(TRAINS, "        return F.linear(x, comm.all_gather(shard, math.prod(shape)).view(*shape))",
                  "        kept[comm.rank] = comm.all_gather(shard, math.prod(shape)).view(*shape)\n"
                  "        return F.linear(x, kept[comm.rank])")
          .replace("        of_shard", "        kept.pop(ctx.comm.rank, None)\n        of_shard") + "\n\nkept = {}\n",
          "holds 1 whole layer: who keeps them"),
    Wrong("keeps the last gradient whole", "sharded_linear",
          changed(TRAINS, "        return None, of",
                  "        kept[ctx.comm.rank] = grad.t() @ x\n        return None, of")
          + "\n\nkept = {}\n", "what keeps them"),
    Wrong("keeps all gradients whole until the step", "sharded_linear",
          changed(TRAINS, "        return None, of", "        shard.whole = grad.t() @ x\n        return None, of"),
          "those of the layers before"),
]  # fmt: skip

AHEADS = [
    blank("prefetched"),
    Wrong("waits at once", "prefetched", """
def prefetched(comm, shards, shapes, x, layer):
    for shard, shape in zip(shards, shapes):
        whole = comm.all_gather_async(shard, math.prod(shape)).wait()
        x = layer(x, whole.view(*shape))
        del whole
    return x
""", "somebody waits for the wire"),
    Wrong("starts all at once", "prefetched", """
def prefetched(comm, shards, shapes, x, layer):
    coming = [comm.all_gather_async(shard, math.prod(shape)) for shard, shape in zip(shards, shapes)]
    for handle, shape in zip(coming, shapes):
        x = layer(x, handle.wait().view(*shape))
    return x
""", "6 whole layers"),
    Wrong("two ahead", "prefetched", """
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
    Wrong("forgets the last layer", "prefetched", """
def prefetched(comm, shards, shapes, x, layer):
    coming = comm.all_gather_async(shards[0], math.prod(shapes[0]))
    for index in range(len(shapes) - 1):
        whole = coming.wait()
        coming = comm.all_gather_async(shards[index + 1], math.prod(shapes[index + 1]))
        x = layer(x, whole.view(*shapes[index]))
    coming.wait()
    return x
""", "who computes the layer that was fetched last"),
    Wrong("reads what has not arrived", "prefetched", """
def prefetched(comm, shards, shapes, x, layer):
    for shard, shape in zip(shards, shapes):
        whole = torch.zeros(math.prod(shape), dtype=shard.dtype)
        coming = comm.all_gather_async(shard, out=whole)
        x = layer(x, whole.view(*shape))
        coming.wait()
    return x
""", "wait() for it"),
    Wrong("reads garbage", "prefetched", """
def prefetched(comm, shards, shapes, x, layer):
    for shard, shape in zip(shards, shapes):
        whole = torch.full((math.prod(shape),), 7.0, dtype=shard.dtype)
        coming = comm.all_gather_async(shard, out=whole)
        x = layer(x, whole.view(*shape))
        coming.wait()
    return x
""", "still filling"),
    Wrong("reads past the end", "prefetched",
          changed(AHEAD, "if following < len(shapes):", "if True:"), "list index out of range"),
    Wrong("off by one", "prefetched", """
def prefetched(comm, shards, shapes, x, layer):
    before = None
    for shard, shape in zip(shards, shapes):
        coming = comm.all_gather_async(shard, math.prod(shape))
        x = layer(x, (before or coming).wait().view(*shape))
        before = coming
    return x
""", "is invalid for input of size"),
    Wrong("gathers the first one twice", "prefetched",
          changed(AHEAD, "    for index", "    comm.all_gather(shards[0], numels[0])\n    for index"),
          "in the order of use"),
    Wrong("works on the input", "prefetched",
          changed(AHEAD, "    return x\n", "    shards[0].zero_()\n    return x\n"), "overwrote"),
    Wrong("never calls layer", "prefetched",
          changed(AHEAD, "layer(x, whole.view(*shape))", "F.relu(F.linear(x, whole.view(*shape)))"),
          "call the `layer` that you are handed"),
    Wrong("computes twice", "prefetched",
          changed(AHEAD, "        x = layer", "        layer(x, whole.view(*shape))\n        x = layer"),
          "each layer computes once"),
    Wrong("a single layer is none", "prefetched",
          changed(AHEAD, "    numels", "    if len(shapes) == 1:\n        return x\n    numels"),
          "a single layer is one, too"),
    Wrong("a global keeps the last layer", "prefetched",
          changed(AHEAD, "        x = layer", "        last[comm.rank] = whole\n        x = layer") + "\n\nlast = {}\n",
          "are alive that it did not return"),
]  # fmt: skip

ZOO = [*FORWARDS, *TRAININGS, *AHEADS, *zero3_plans.ZOO]
