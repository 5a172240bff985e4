"""Right answers to `ring_all_reduce` of lesson 01."""

from zoo.answers import Right, changed, model

MODEL = model("01_ring_collectives", "ring_all_reduce")

RIGHT = [
    Right("gather then div_ in place", """
def ring_all_reduce(comm, tensor, average=False):
    result = ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
    return result.div_(comm.size) if average else result
"""),
    Right("multiply by inverse", changed(MODEL, "shard /= comm.size", "shard.mul_(1 / comm.size)")),
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
]  # fmt: skip
