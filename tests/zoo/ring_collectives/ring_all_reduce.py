"""Answers to `ring_all_reduce` of lesson 01, wrong and right."""

from zoo.answers import Right, everywhere, model

MODEL = model("01_ring_collectives", "ring_all_reduce")

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
