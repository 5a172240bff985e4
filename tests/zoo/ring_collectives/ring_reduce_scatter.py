"""Answers to `ring_reduce_scatter` of lesson 01, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed

REDUCE_SCATTER = """
def ring_reduce_scatter(comm, tensor):
    work = tensor.clone()
    for step in range(comm.size - 1):
        mine = chunk(work, comm.rank - 2 - step, comm.size)
        arrived = torch.empty_like(mine)
        pass_on(comm, chunk(work, comm.rank - 1 - step, comm.size), arrived)
        mine += arrived
    return chunk(work, comm.rank, comm.size).clone()
"""
CARRIED = """
def ring_reduce_scatter(comm, tensor):
    carried = chunk(tensor, comm.rank - 1, comm.size).clone()
    for step in range(1, comm.size):
        own = chunk(tensor, comm.rank - 1 - step, comm.size)
        came = torch.zeros_like(own)
        receiving = comm.irecv(came, (comm.rank - 1) % comm.size)
        sending = comm.isend(carried, (comm.rank + 1) % comm.size)
        receiving.wait()
        sending.wait()
        carried = came + own
    return carried
"""

WRONG = [
    blank("ring_reduce_scatter"),
    Wrong("chunks in two pieces",
          changed(REDUCE_SCATTER,
                  "pass_on(comm, chunk(work, comm.rank - 1 - step, comm.size), arrived)",
                  "leaving = chunk(work, comm.rank - 1 - step, comm.size)\n"
                  "        pass_on(comm, leaving[:1], arrived[:1])\n"
                  "        pass_on(comm, leaving[1:], arrived[1:])"),
          "messages a rank sends: 6"),
    Wrong("keeps all that came",
          changed(changed(REDUCE_SCATTER,
                          "work = tensor.clone()",
                          "work, kept = tensor.clone(), []"),
                  "mine += arrived",
                  "kept.append(arrived)\n        mine += arrived"),
          "is used up when added"),
    Wrong("returns a view of its copy",
          changed(REDUCE_SCATTER, ").clone()", ")"),
          "a view of something larger"),
    Wrong("keeps its copy",
          changed(REDUCE_SCATTER,
                  "def ring_reduce_scatter(comm, tensor):\n    work",
                  "KEPT = {}\n"
                  "def ring_reduce_scatter(comm, tensor):\n"
                  "    KEPT[comm.rank] = work"),
          "are alive that it did not return"),
    Wrong("one rank returns its input",
          changed(REDUCE_SCATTER,
                  "work = tensor",
                  "if comm.size == 1:\n"
                  "        return tensor\n"
                  "    work = tensor"),
          "so that who changes one changes both"),
    Wrong("knows two dtypes",
          changed(REDUCE_SCATTER,
                  "work = tensor",
                  "if tensor.dtype not in (torch.float32, torch.float64):\n"
                  "        raise TypeError('floats only')\n"
                  "    work = tensor"),
          "floats only"),
    Wrong("sums in float32",
          changed(changed(REDUCE_SCATTER,
                          "tensor.clone()",
                          "tensor.to(torch.float32, copy=True)"),
                  ".clone()",
                  ".to(tensor.dtype, copy=True)"),
          "travel in 4 bytes each, and the input's take 8: work and send"),
    Wrong("unsharded result", """
def ring_reduce_scatter(comm, tensor):
    work = tensor.clone()
    for step in range(comm.size - 1):
        mine = chunk(work, comm.rank - 2 - step, comm.size)
        arrived = torch.empty_like(mine)
        pass_on(comm, chunk(work, comm.rank - 1 - step, comm.size), arrived)
        mine += arrived
    return ring_all_gather(comm, chunk(work, comm.rank, comm.size).clone(), tensor.numel())

def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    return whole
""", "unsharded"),
    Wrong("whole-tensor ring", """
def ring_reduce_scatter(comm, tensor):
    total, travelling = tensor.clone(), tensor.clone()
    for step in range(comm.size - 1):
        arrived = torch.empty_like(tensor)
        pass_on(comm, travelling, arrived)
        total += arrived
        travelling = arrived
    return chunk(total, comm.rank, comm.size).clone()
""", "whole tensors"),
    Wrong("star", """
def ring_reduce_scatter(comm, tensor):
    total = tensor.clone()
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sent = [comm.isend(chunk(tensor, other, comm.size), other) for other in others]
    mine = chunk(total, comm.rank, comm.size)
    for other in others:
        arrived = torch.empty_like(mine)
        mine += comm.recv(arrived, other)
    for request in sent:
        request.wait()
    return mine.clone()
""", "in this ring it sends to rank"),
    Wrong("own summand only",
          "def ring_reduce_scatter(comm, tensor):\n    return chunk(tensor, comm.rank, comm.size).clone()",
          "nothing was added"),
    Wrong("chunk of the neighbour", """
def ring_reduce_scatter(comm, tensor):
    work = tensor.clone()
    for step in range(comm.size - 1):
        mine = chunk(work, comm.rank - 1 - step, comm.size)
        arrived = torch.empty_like(mine)
        pass_on(comm, chunk(work, comm.rank - step, comm.size), arrived)
        mine += arrived
    return chunk(work, comm.rank + 1, comm.size).clone()
""", "shift your chunk index by one"),
    Wrong("averages what is to be summed",
          changed(REDUCE_SCATTER, ").clone()", ") / comm.size"),
          "asks for the sum"),
    Wrong("mutates its input",
          changed(REDUCE_SCATTER, "tensor.clone()", "tensor"),
          "overwrote"),
    Wrong("returns nothing",
          changed(REDUCE_SCATTER, "return chunk(work, comm.rank, comm.size).clone()", "pass"),
          "end with return"),
    Wrong("wrong dtype",
          changed(REDUCE_SCATTER, ").clone()", ").half()"),
          "float16, not torch.float64"),
    Wrong("sends first",
          changed(REDUCE_SCATTER,
                  "pass_on(comm, chunk(work, comm.rank - 1 - step, comm.size), arrived)",
                  "comm.send(chunk(work, comm.rank - 1 - step, comm.size), (comm.rank + 1) % comm.size)\n"
                  "        comm.recv(arrived, (comm.rank - 1) % comm.size)"),
          "Post a receive before you wait for a send"),
    Wrong("assumes that sizes divide", """
def ring_reduce_scatter(comm, tensor):
    each = tensor.numel() // comm.size
    parts = [part.clone() for part in tensor[: each * comm.size].split(each)]
    for step in range(comm.size - 1):
        arrived = torch.empty_like(parts[0])
        pass_on(comm, parts[(comm.rank - 1 - step) % comm.size], arrived)
        parts[(comm.rank - 2 - step) % comm.size] += arrived
    return parts[comm.rank]
""", "do not divide them"),
    Wrong("steps too many",
          changed(REDUCE_SCATTER,
                  "return",
                  "if comm.size > 1:\n"
                  "        pass_on(comm, tensor[:1], tensor[:1].clone())\n"
                  "    return"),
          "steps are enough"),
    Wrong("receives float32 of any dtype",
          changed(REDUCE_SCATTER, "empty_like(mine)", "empty(len(mine))"),
          "new tensors take the input's dtype (empty_like, new_empty)"),
    # Look right on one call, in one dtype, on ordinary numbers.
    Wrong("does not wait for what it sends",
          changed(CARRIED, "        sending.wait()\n", ""),
          "waited for what it is sending"),
    Wrong("does not wait for what it receives",
          changed(CARRIED, "        receiving.wait()\n", ""),
          "waited for what it is receiving"),
    Wrong("loses NaN",
          changed(CARRIED, "return carried", "return torch.nan_to_num(carried)"),
          "NaN and inf are not to be lost"),
    Wrong("adds in float32",
          changed(CARRIED, "came + own", "(came.float() + own.float()).to(own.dtype)"),
          "nearly right is not right"),
    Wrong("passes on what came",
          changed(CARRIED, "came + own", "came"),
          "passed on and never added to"),
    Wrong("adds its own once more",
          changed(CARRIED, "return carried", "return carried + chunk(tensor, comm.rank, comm.size)"),
          "with its own summand in it twice"),
    # Keep something between calls, or lose what is rare.
    Wrong("loses its own NaN", """
def ring_reduce_scatter(comm, tensor):
    hand = chunk(tensor, comm.rank - 1, comm.size).clone()
    for s in range(comm.size - 1):
        mine = chunk(tensor, comm.rank - 2 - s, comm.size)
        got = torch.empty_like(mine)
        pass_on(comm, hand, got)
        hand = got.add_(torch.where(mine == mine, mine, 0))
    return hand
""", "NaN and inf are not"),
]  # fmt: skip

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
