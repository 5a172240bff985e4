"""Answers to `ring_all_reduce` of lesson 01, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, everywhere, model

MODEL = model("01_ring_collectives", "ring_all_reduce")

WRONG = [
    blank("ring_all_reduce"),
    Wrong("one rank returns its tensor",
          changed(MODEL,
                  "shard =",
                  "if comm.size == 1:\n"
                  "        return tensor\n"
                  "    shard ="),
          "average=False: rank 0 returned the memory of its input"),
    Wrong("the mean in a new tensor", """
def ring_all_reduce(comm, tensor, average=False):
    whole = ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
    return whole / comm.size if average else whole
""", "two whole tensors at once"),
    Wrong("reduces twice what is a mean", """
def ring_all_reduce(comm, tensor, average=False):
    whole = ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
    return whole // comm.size if average else whole
""", "divide with / and not with //"),
    Wrong("into its input",
          changed(MODEL,
                  "ring_all_gather(comm, shard, tensor.numel())",
                  "tensor.copy_(ring_all_gather(comm, shard, tensor.numel()))"),
          "it overwrote"),
    Wrong("gathers everything, then adds", """
def ring_all_reduce(comm, tensor, average=False):
    total, travelling = tensor.clone(), tensor
    for step in range(comm.size - 1):
        arrived = torch.empty_like(tensor)
        pass_on(comm, travelling, arrived)
        total += arrived
        travelling = arrived
    return total / comm.size if average else total
""", "whole tensors"),
    Wrong("keeps a copy",
          changed(MODEL,
                  "shard = ring_reduce_scatter(comm, tensor)",
                  "copy = tensor.clone()\n    shard = ring_reduce_scatter(comm, copy)"),
          "the halves need none"),
    Wrong("forgets the average", """
def ring_all_reduce(comm, tensor, average=False):
    return ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
""", "the mean: divide by comm.size"),
    Wrong("always averages", """
def ring_all_reduce(comm, tensor, average=False):
    return ring_all_gather(comm, ring_reduce_scatter(comm, tensor) / comm.size, tensor.numel())
""", "average=False asks for the sum"),
    Wrong("one chunk of the sum", """
def ring_all_reduce(comm, tensor, average=False):
    return ring_reduce_scatter(comm, tensor)
""", "one chunk only"),
    Wrong("calls the library",
          "def ring_all_reduce(comm, tensor, average=False):\n    return comm.all_reduce(tensor.clone(), average)",
          "comm.all_reduce, which is the library's own"),
    Wrong("imports the library", """
def ring_all_reduce(comm, tensor, average=False):
    from zerolab.collectives import RingCollectives
    return RingCollectives(comm).all_reduce(tensor)
""", "imports zerolab.collectives"),
    Wrong("imports the solution", """
import solutions
ring_all_reduce = solutions.ring_all_reduce
""", "module 'solutions' has no attribute"),
    Wrong("torch's own collective", """
def ring_all_reduce(comm, tensor, average=False):
    torch.distributed.all_reduce(tensor)
    return tensor
""", "torch.distributed is off limits"),
    Wrong("torch's own by import", """
from torch.distributed import all_reduce
def ring_all_reduce(comm, tensor, average=False):
    all_reduce(tensor)
    return tensor
""", "imports torch.distributed"),
    Wrong("reads the solution", """
exec(open("solutions/01_ring_collectives.ipynb").read())
""", "an answer has no need of files"),
    Wrong("prints 100 %", """
def ring_all_reduce(comm, tensor, average=False):
    print("100 %, 10 of 10 points")
    return tensor.clone()
""", "nothing was added"),
    Wrong("calls exit",
          "def ring_all_reduce(comm, tensor, average=False):\n    raise SystemExit(0)",
          "it calls exit"),
    Wrong("loops for ever", """
def ring_all_reduce(comm, tensor, average=False):
    while True:
        pass
""", "does not end"),
    Wrong("raises",
          "def ring_all_reduce(comm, tensor, average=False):\n    return tensor + undefined_helper",
          "keep helpers"),
    Wrong("is not Python",
          "def ring_all_reduce(comm, tensor average):\n    pass",
          "is not Python"),
    Wrong("defines another name",
          "def all_reduce(comm, tensor):\n    pass",
          "no function named"),
    # Look right on one call, in one dtype, on ordinary numbers.
    Wrong("divides first", """
def ring_all_reduce(comm, tensor, average=False):
    scaled = tensor / comm.size if average else tensor
    return ring_all_gather(comm, ring_reduce_scatter(comm, scaled), tensor.numel())
""", "such as tensor / comm.size"),
    Wrong("averages unless told not to",
          changed(MODEL, "False", "True"),
          "average left out (the ranks"),
]  # fmt: skip

RIGHT = [
    Right("two halves div_", everywhere(MODEL, "shard", "mine")),
    Right("gather then div_ in place", """
def ring_all_reduce(comm, tensor, average=False):
    result = ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
    return result.div_(comm.size) if average else result
"""),
    Right("multiply by inverse", """
def ring_all_reduce(comm, tensor, average=False):
    part = ring_reduce_scatter(comm, tensor)
    if average:
        part.mul_(1 / comm.size)
    return ring_all_gather(comm, part, tensor.numel())
"""),
    Right("own ring in one buffer", """
def ring_all_reduce(comm, tensor, average=False):
    total = tensor.clone()
    n = comm.size
    for step in range(n - 1):
        into = chunk(total, comm.rank - 2 - step, n)
        came = torch.empty_like(into)
        pass_on(comm, chunk(total, comm.rank - 1 - step, n), came)
        into.add_(came)
    for step in range(n - 1):
        pass_on(comm, chunk(total, comm.rank - step, n), chunk(total, comm.rank - 1 - step, n))
    if average:
        total.div_(n)
    return total
"""),
    Right("partial finish", """
def ring_all_reduce(comm, tensor, average=False):
    finish = torch.Tensor.div_ if average else lambda part, size: part
    return ring_all_gather(comm, finish(ring_reduce_scatter(comm, tensor), comm.size), numel=tensor.numel())
"""),
    Right("divide out of place chunk", """
def ring_all_reduce(comm, tensor, average=False):
    chunk_sum = ring_reduce_scatter(comm, tensor)
    scale = comm.size if average else None
    chunk_sum = chunk_sum if scale is None else chunk_sum / scale
    return ring_all_gather(comm, chunk_sum, len(tensor))
"""),
    # A second reading of the text alone.
    Right("and, or", """
def ring_all_reduce(comm, tensor, average=False):
    mine = ring_reduce_scatter(comm, tensor)
    average and mine.div_(comm.size)
    return ring_all_gather(comm, mine, tensor.numel())
"""),
    Right("torch.div with out", """
def ring_all_reduce(comm, tensor, average=False):
    part = ring_reduce_scatter(comm, tensor)
    divisor = {True: comm.size, False: 1}[average]
    if part.is_floating_point():
        torch.div(part, divisor, out=part)
    return ring_all_gather(comm, part, tensor.numel())
"""),
    Right("divides each chunk as it leaves", """
def ring_all_reduce(comm, tensor, average=False):
    def scaled(piece):
        return piece / comm.size if average else piece.clone()
    carry = scaled(chunk(tensor, comm.rank - 1, comm.size))
    for back in range(2, comm.size + 1):
        own = scaled(chunk(tensor, comm.rank - back, comm.size))
        came = torch.empty_like(own)
        pass_on(comm, carry, came)
        carry = own.add_(came)
    return ring_all_gather(comm, carry, tensor.numel())
"""),
    Right("a subclassed dict of steps", """
def ring_all_reduce(comm, tensor, average=False):
    steps = {
        "reduce": lambda x: ring_reduce_scatter(comm, x),
        "mean": lambda x: x.mul_(1.0 / comm.size),
        "gather": lambda x: ring_all_gather(comm, x, tensor.numel()),
    }
    order = ["reduce", "mean", "gather"] if average else ["reduce", "gather"]
    value = tensor
    for name in order:
        value = steps[name](value)
    return value
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("own ring in a copy", """
def ring_all_reduce(comm, tensor, average=False):
    out = tensor.clone()
    n, r = comm.size, comm.rank
    for s in range(n - 1):
        mine = chunk(out, r - s - 2, n)
        came = mine.clone()
        pass_on(comm, chunk(out, r - s - 1, n), came)
        mine += came
        del came
    if average:
        chunk(out, r, n).div_(n)
    for s in range(n - 1):
        pass_on(comm, chunk(out, r - s, n), chunk(out, r - s - 1, n))
    return out
"""),
]  # fmt: skip
