"""Answers to `ring_reduce_scatter` of lesson 01, wrong and right."""

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
    Right("ping pong, no copy", """
def ring_reduce_scatter(comm, tensor):
    carried = chunk(tensor, comm.rank - 1, comm.size).clone()
    for step in range(2, comm.size + 1):
        mine = chunk(tensor, comm.rank - step, comm.size)
        came = tensor.new_empty(mine.numel())
        pass_on(comm, carried, came)
        carried = came + mine
    return carried
"""),
    Right("first from input, add_", """
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
    Right("raw isend irecv, left right", """
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
    Right("a class with a method load", """
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
    Right("blocking send recv by rank", """
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
    Right("a generator", """
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
    Right("skip empty chunks", """
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
    # A second reading of the text alone.
    Right("recv returns what came", """
def ring_reduce_scatter(comm, tensor):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    total = chunk(tensor, left, comm.size).clone()
    for index in range(comm.rank - 2, comm.rank - 1 - comm.size, -1):
        own = chunk(tensor, index, comm.size)
        going = comm.isend(total, right)
        came = comm.recv(torch.empty_like(own), left)
        going.wait()
        total = came + own
    return total
"""),
    Right("functools.reduce", """
from functools import reduce
def ring_reduce_scatter(comm, tensor):
    def one_step(sum_so_far, index):
        incoming = torch.empty_like(chunk(tensor, index, comm.size))
        pass_on(comm, sum_so_far, incoming)
        return torch.add(incoming, chunk(tensor, index, comm.size))
    route = range(comm.rank - 2, comm.rank - comm.size - 1, -1)
    return reduce(one_step, route, chunk(tensor, comm.rank - 1, comm.size).clone())
"""),
    Right("pieces in a dict", """
def ring_reduce_scatter(comm, tensor):
    pieces = dict(enumerate(map(torch.clone, torch.tensor_split(tensor, comm.size))))
    for step in range(1, comm.size):
        leaving = pieces.pop((comm.rank - step) % comm.size)
        at = (comm.rank - step - 1) % comm.size
        arriving = leaving.new_zeros(pieces[at].shape)
        pass_on(comm, leaving, arriving)
        pieces[at] += arriving
    (result,) = pieces.values()
    return result
"""),
    Right("a context manager", """
from contextlib import contextmanager
@contextmanager
def under_way(*requests):
    yield
    for request in requests:
        request.wait()
def ring_reduce_scatter(comm, tensor):
    n, r = comm.size, comm.rank
    load = chunk(tensor, r - 1, n).clone()
    for s in range(n - 1):
        mine = chunk(tensor, r - 2 - s, n)
        inbox = torch.empty(len(mine), dtype=tensor.dtype)
        with under_way(comm.irecv(inbox, (r - 1) % n), comm.isend(load, (r + 1) % n)):
            addend = mine
        load = inbox.add_(addend)
    return load
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
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("blocking send and recv, one rank goes first", """
def ring_reduce_scatter(comm, tensor):
    n, r = comm.size, comm.rank
    total = torch.tensor_split(tensor, n)[(r - 1) % n].clone()
    for s in range(n - 1):
        mine = torch.tensor_split(tensor, n)[(r - s - 2) % n]
        got = torch.empty(mine.numel(), dtype=tensor.dtype)
        if r == 0:
            comm.send(total, 1)
            comm.recv(got, n - 1)
        else:
            comm.recv(got, r - 1)
            comm.send(total, (r + 1) % n)
        total = mine + got
    return total
"""),
    Right("generator of steps, empty chunks are not sent", """
def ring_reduce_scatter(comm, tensor):
    me, n = comm.rank, comm.size
    cuts = tensor.tensor_split(n)
    def steps():
        for s in range(n - 1):
            yield cuts[(me - s - 1) % n], cuts[(me - s - 2) % n]
    acc = cuts[(me - 1) % n].detach().clone()
    for out, own in steps():
        nxt = own.clone()
        inbox = torch.empty_like(nxt)
        waiting = []
        if inbox.numel():
            waiting.append(comm.irecv(inbox, (me + n - 1) % n))
        if acc.numel():
            waiting.append(comm.isend(acc, (me + 1) % n))
        [w.wait() for w in waiting]
        acc = nxt.add_(inbox)
        del inbox
    return acc
"""),
]  # fmt: skip
