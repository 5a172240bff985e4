"""Right answers to `ring_reduce_scatter` of lesson 01."""

from zoo.answers import Right

RIGHT = [
    Right("work copy", """
def ring_reduce_scatter(comm, tensor):
    work = tensor.clone()
    for step in range(comm.size - 1):
        leaving = chunk(work, comm.rank - 1 - step, comm.size)
        arriving = chunk(work, comm.rank - 2 - step, comm.size)
        buffer = torch.empty_like(arriving)
        pass_on(comm, leaving, buffer)
        arriving += buffer
    return chunk(work, comm.rank, comm.size).clone()
"""),
    Right("recursion", """
def ring_reduce_scatter(comm, tensor):
    def complete(index, depth):
        # The sum of chunk `index` over `depth` ranks, the last of which is this one.
        own = chunk(tensor, index, comm.size)
        if depth == 1:
            return own.clone()
        outgoing = complete(index + 1, depth - 1)
        incoming = torch.empty_like(own)
        pass_on(comm, outgoing, incoming)
        return incoming.add_(own)
    return complete(comm.rank, comm.size)
"""),
    Right("two fixed buffers", """
def ring_reduce_scatter(comm, tensor):
    start, stop = chunk_bounds(tensor.numel(), comm.size, 0)
    pair = [tensor.new_empty(stop - start), tensor.new_empty(stop - start)]
    first = chunk(tensor, comm.rank - 1, comm.size)
    pair[0][:len(first)].copy_(first)
    count = len(first)
    for step in range(comm.size - 1):
        own = chunk(tensor, comm.rank - 2 - step, comm.size)
        pass_on(comm, pair[0][:count], pair[1][:len(own)])
        count = len(own)
        pair[1][:count] += own
        pair.reverse()
    return pair[0][:count].clone()
"""),
    Right("even ranks send first", """
def ring_reduce_scatter(comm, tensor):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    carry = chunk(tensor, comm.rank - 1, comm.size).clone()
    for back in range(2, comm.size + 1):
        mine = chunk(tensor, comm.rank - back, comm.size)
        box = torch.empty_like(mine)
        if comm.rank % 2 == 0:
            comm.send(carry, right)
            comm.recv(box, left)
        else:
            comm.recv(box, left)
            comm.send(carry, right)
        carry = torch.stack([box, mine]).sum(0, dtype=tensor.dtype)
    return carry
"""),
    Right("nothing comes back as it came", """
def ring_reduce_scatter(comm, tensor):
    if tensor.numel() == 0:
        return tensor
    hand = chunk(tensor, comm.rank - 1, comm.size).clone()
    for s in range(comm.size - 1):
        mine = chunk(tensor, comm.rank - 2 - s, comm.size)
        came = torch.empty_like(mine)
        pass_on(comm, hand, came)
        hand = came.add_(mine)
    return hand
"""),
]  # fmt: skip
