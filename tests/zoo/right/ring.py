"""Right answers to the exercises of lesson 01, in other styles than the model's."""

from zoo.right import ring_halves, ring_more, ring_numbers
from zoo.right.answer import Right

RIGHT = [
    *ring_numbers.RIGHT,
    *ring_halves.RIGHT,
    *ring_more.RIGHT,
    Right("two halves div_", "ring_all_reduce", """
def ring_all_reduce(comm, tensor, average=False):
    mine = ring_reduce_scatter(comm, tensor)
    if average:
        mine /= comm.size
    return ring_all_gather(comm, mine, tensor.numel())
"""),
    Right("gather then div_ in place", "ring_all_reduce", """
def ring_all_reduce(comm, tensor, average=False):
    result = ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
    return result.div_(comm.size) if average else result
"""),
    Right("multiply by inverse", "ring_all_reduce", """
def ring_all_reduce(comm, tensor, average=False):
    part = ring_reduce_scatter(comm, tensor)
    if average:
        part.mul_(1 / comm.size)
    return ring_all_gather(comm, part, tensor.numel())
"""),
    Right("own ring in one buffer", "ring_all_reduce", """
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
    Right("partial finish", "ring_all_reduce", """
def ring_all_reduce(comm, tensor, average=False):
    finish = torch.Tensor.div_ if average else lambda part, size: part
    return ring_all_gather(comm, finish(ring_reduce_scatter(comm, tensor), comm.size), numel=tensor.numel())
"""),
    Right("divide out of place chunk", "ring_all_reduce", """
def ring_all_reduce(comm, tensor, average=False):
    chunk_sum = ring_reduce_scatter(comm, tensor)
    scale = comm.size if average else None
    chunk_sum = chunk_sum if scale is None else chunk_sum / scale
    return ring_all_gather(comm, chunk_sum, len(tensor))
"""),
    Right("plain", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    right = (comm.rank + 1) % comm.size
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if right != src:
        comm.send(tensor, right)
    return tensor
"""),
    Right("distance", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    distance = (comm.rank - src) % comm.size
    if distance > 0:
        comm.recv(tensor, (comm.rank + comm.size - 1) % comm.size)
    if distance < comm.size - 1:
        comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
"""),
    Right("order list", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    order = [*range(src, comm.size), *range(src)]
    at = order.index(comm.rank)
    if order[:at]:
        comm.irecv(tensor, order[at - 1]).wait()
    if order[at + 1:]:
        request = comm.isend(tensor, order[at + 1])
        request.wait()
    return tensor
"""),
    Right("buffer then copy_", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    if comm.size > 1:
        if comm.rank == src:
            comm.send(tensor, (src + 1) % comm.size)
        else:
            box = torch.empty_like(tensor)
            comm.recv(box, (comm.rank - 1) % comm.size)
            tensor.copy_(box)
            if (comm.rank + 1) % comm.size != src:
                comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
"""),
    Right("hops loop", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    for hop in range(comm.size - 1):
        giver, taker = (src + hop) % comm.size, (src + hop + 1) % comm.size
        if comm.rank == giver:
            comm.send(tensor, taker)
        elif comm.rank == taker:
            comm.recv(tensor, giver)
    return tensor
"""),
    Right("flattened", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    flat = tensor.view(-1)
    before, after = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    steps = []
    if comm.rank != src: steps.append(lambda: comm.recv(flat, before))
    if after != src: steps.append(lambda: comm.send(flat, after))
    for step in steps:
        step()
    return tensor
"""),
]  # fmt: skip
