"""Right reduce-scatters and all-gathers of lesson 01, in other styles than the model's."""

from zoo.right.answer import Right

RIGHT = [
    Right("work copy", "ring_reduce_scatter", """
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
    Right("ping pong, no copy", "ring_reduce_scatter", """
def ring_reduce_scatter(comm, tensor):
    carried = chunk(tensor, comm.rank - 1, comm.size).clone()
    for step in range(2, comm.size + 1):
        mine = chunk(tensor, comm.rank - step, comm.size)
        came = tensor.new_empty(mine.numel())
        pass_on(comm, carried, came)
        carried = came + mine
    return carried
"""),
    Right("first from input, add_", "ring_reduce_scatter", """
def ring_reduce_scatter(comm, tensor):
    if comm.size == 1:
        return tensor.clone()
    going = chunk(tensor, comm.rank - 1, comm.size)
    for which in range(comm.rank - 2, comm.rank - 1 - comm.size, -1):
        own = chunk(tensor, which, comm.size)
        coming = torch.empty(own.shape, dtype=own.dtype)
        pass_on(comm, going, coming)
        going = coming.add_(own)
    return going
"""),
    Right("recursion", "ring_reduce_scatter", """
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
    Right("raw isend irecv, left right", "ring_reduce_scatter", """
def ring_reduce_scatter(comm, tensor):
    n, r = comm.size, comm.rank
    right, left = (r + 1) % n, (r + n - 1) % n
    parts = [part.clone() for part in tensor.tensor_split(n)]
    for s in range(n - 1):
        out, into = (r - s - 1) % n, (r - s - 2) % n
        box = torch.zeros_like(parts[into])
        a = comm.isend(parts[out], right)
        b = comm.irecv(box, left)
        a.wait()
        b.wait()
        torch.add(box, parts[into], out=parts[into])
    return parts[r]
"""),
    Right("a class with a method load", "ring_reduce_scatter", """
class Traveller:
    def __init__(self, comm, tensor):
        self.comm, self.tensor = comm, tensor
        self.index = comm.rank - 1
        self.load = self.own().clone()
    def own(self):
        return chunk(self.tensor, self.index, self.comm.size)
    def step(self):
        self.index -= 1
        fresh = self.own().clone()
        inbox = fresh.new_empty(fresh.shape)
        pass_on(self.comm, self.load, inbox)
        self.load = fresh.add_(inbox)
def ring_reduce_scatter(comm, tensor):
    traveller = Traveller(comm, tensor)
    for _ in range(comm.size - 1):
        traveller.step()
    return traveller.load
"""),
    Right("blocking send recv by rank", "ring_reduce_scatter", """
def ring_reduce_scatter(comm, tensor):
    size, rank = comm.size, comm.rank
    carry = chunk(tensor, rank - 1, size).clone()
    for step in range(1, size):
        own = chunk(tensor, rank - 1 - step, size)
        incoming = own.new_empty(own.numel())
        if rank == 0:
            comm.send(carry, (rank + 1) % size)
            comm.recv(incoming, (rank - 1) % size)
        else:
            comm.recv(incoming, rank - 1)
            comm.send(carry, (rank + 1) % size)
        incoming += own
        carry = incoming
    return carry
"""),
    Right("a generator", "ring_reduce_scatter", """
def ring_reduce_scatter(comm, tensor):
    def route():
        for back in range(2, comm.size + 1):
            yield chunk(tensor, comm.rank - back, comm.size)
    total = chunk(tensor, comm.rank - 1, comm.size).clone()
    for own in route():
        received = torch.empty_like(own)
        pass_on(comm, total, received)
        total = torch.add(received, own)
    return total
"""),
    Right("two fixed buffers", "ring_reduce_scatter", """
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
    Right("skip empty chunks", "ring_reduce_scatter", """
def ring_reduce_scatter(comm, tensor):
    carry = chunk(tensor, comm.rank - 1, comm.size).clone()
    for step in range(comm.size - 1):
        own = chunk(tensor, comm.rank - 2 - step, comm.size)
        waiting = []
        incoming = own.clone()
        if own.numel():
            waiting.append(comm.irecv(incoming, (comm.rank - 1) % comm.size))
        if carry.numel():
            waiting.append(comm.isend(carry, (comm.rank + 1) % comm.size))
        for request in waiting:
            request.wait()
        carry = incoming + own
    return carry
"""),
    Right("plain", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    whole = torch.empty(numel, dtype=shard.dtype, device=shard.device)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    return whole
"""),
    Right("views list", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    result = shard.new_zeros(numel)
    places = result.tensor_split(comm.size)
    places[comm.rank][:] = shard
    here = comm.rank
    while (before := (here - 1) % comm.size) != comm.rank:
        pass_on(comm, places[here], places[before])
        here = before
    return result
"""),
    Right("first send the shard itself", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    moving = shard
    for distance in range(1, comm.size):
        landing = chunk(whole, comm.rank - distance, comm.size)
        pass_on(comm, moving, landing)
        moving = landing
    start, stop = chunk_bounds(numel, comm.size, comm.rank)
    whole[start:stop] = shard
    return whole
"""),
    Right("recursion", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    def fill(whole, outgoing, index):
        if index % comm.size == comm.rank:
            return whole
        place = chunk(whole, index, comm.size)
        pass_on(comm, outgoing, place)
        return fill(whole, place, index - 1)
    whole = torch.empty((numel,), dtype=shard.dtype)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    return fill(whole, shard, comm.rank - 1)
"""),
    Right("deque rotate narrow", "ring_all_gather", """
from collections import deque
def ring_all_gather(comm, shard, numel):
    whole = torch.full((numel,), 0, dtype=shard.dtype)
    bounds = deque(chunk_bounds(numel, comm.size, r) for r in range(comm.size))
    bounds.rotate(-comm.rank)
    views = [whole.narrow(0, a, b - a) for a, b in bounds]
    views[0].copy_(shard)
    for outgoing, incoming in zip([views[0], *views[:0:-1]], views[:0:-1]):
        pass_on(comm, outgoing, incoming)
    return whole
"""),
    Right("all receives first", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    receives = [comm.irecv(chunk(whole, comm.rank - 1 - s, comm.size), left) for s in range(comm.size - 1)]
    sends = []
    for s, receive in enumerate(receives):
        sends.append(comm.isend(chunk(whole, comm.rank - s, comm.size), right))
        receive.wait()
    for send in sends:
        send.wait()
    return whole
"""),
    Right("skip empties", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    out = shard.new_empty(numel)
    chunk(out, comm.rank, comm.size).copy_(shard)
    for s in range(comm.size - 1):
        a, b = chunk(out, comm.rank - s, comm.size), chunk(out, comm.rank - s - 1, comm.size)
        request = comm.irecv(b, (comm.rank - 1) % comm.size) if len(b) else None
        if len(a):
            comm.isend(a, (comm.rank + 1) % comm.size).wait()
        if request:
            request.wait()
    return out
"""),
]  # fmt: skip
