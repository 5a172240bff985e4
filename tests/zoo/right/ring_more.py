"""More right answers to the exercises of lesson 01, of a second reading of the texts alone."""

from zoo.right.answer import Right

RIGHT = [
    Right("lengths by a formula", "chunk_bounds", """
def chunk_bounds(numel, ranks, rank):
    length = lambda r: (numel + ranks - 1 - r) // ranks
    before = sum(map(length, range(rank)))
    return before, before + length(rank)
"""),
    Right("a list that is dealt out", "chunk_bounds", """
def chunk_bounds(numel, ranks, rank):
    owners = sorted(element % ranks for element in range(numel))
    return owners.index(rank) if rank in owners else numel, numel - sum(owner > rank for owner in owners)
"""),
    Right("a list, not a tuple", "chunk_bounds", """
def chunk_bounds(numel, ranks, rank):
    parts = torch.arange(numel).tensor_split(ranks)
    start = sum(part.numel() for part in parts[:rank])
    return [start, start + parts[rank].numel()]
"""),
    Right("recv returns what came", "ring_reduce_scatter", """
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
    Right("functools.reduce", "ring_reduce_scatter", """
from functools import reduce
def ring_reduce_scatter(comm, tensor):
    def one_step(sum_so_far, index):
        incoming = torch.empty_like(chunk(tensor, index, comm.size))
        pass_on(comm, sum_so_far, incoming)
        return torch.add(incoming, chunk(tensor, index, comm.size))
    route = range(comm.rank - 2, comm.rank - comm.size - 1, -1)
    return reduce(one_step, route, chunk(tensor, comm.rank - 1, comm.size).clone())
"""),
    Right("pieces in a dict", "ring_reduce_scatter", """
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
    Right("a context manager", "ring_reduce_scatter", """
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
    Right("even ranks send first", "ring_reduce_scatter", """
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
    Right("resized from nothing", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(0).resize_(numel)
    for back in range(comm.size):
        place = chunk(whole, comm.rank - back, comm.size)
        if back == 0:
            place.copy_(shard)
        else:
            pass_on(comm, before, place)
        before = place
    return whole
"""),
    Right("blocking, rank 0 first", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    out = torch.zeros(numel, dtype=shard.dtype, device=shard.device)
    start, stop = chunk_bounds(numel, comm.size, comm.rank)
    out[start:stop] += shard
    for s in range(comm.size - 1):
        calls = [
            lambda: comm.send(chunk(out, comm.rank - s, comm.size), (comm.rank + 1) % comm.size),
            lambda: comm.recv(chunk(out, comm.rank - s - 1, comm.size), (comm.rank - 1) % comm.size),
        ]
        for call in calls if comm.rank == 0 else reversed(calls):
            call()
    return out
"""),
    Right("a while loop over indices", "ring_all_gather", """
def ring_all_gather(comm, shard, numel):
    result = torch.empty(numel).to(shard.dtype) if numel == 0 else shard.new_empty((numel,))
    index = comm.rank
    chunk(result, index, comm.size)[:] = shard
    steps = comm.size
    while steps > 1:
        pass_on(comm, chunk(result, index, comm.size), chunk(result, index - 1, comm.size))
        index, steps = index - 1, steps - 1
    return result
"""),
    Right("and, or", "ring_all_reduce", """
def ring_all_reduce(comm, tensor, average=False):
    mine = ring_reduce_scatter(comm, tensor)
    average and mine.div_(comm.size)
    return ring_all_gather(comm, mine, tensor.numel())
"""),
    Right("torch.div with out", "ring_all_reduce", """
def ring_all_reduce(comm, tensor, average=False):
    part = ring_reduce_scatter(comm, tensor)
    divisor = {True: comm.size, False: 1}[average]
    if part.is_floating_point():
        torch.div(part, divisor, out=part)
    return ring_all_gather(comm, part, tensor.numel())
"""),
    Right("divides each chunk as it leaves", "ring_all_reduce", """
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
    Right("a subclassed dict of steps", "ring_all_reduce", """
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
    Right("simulated messages", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    sizes = [len(part) for part in torch.arange(numel).tensor_split(ranks)]
    scatter = [sizes[(rank - 1 - step) % ranks] for step in range(ranks - 1)]
    gather = [sizes[(rank - step) % ranks] for step in range(ranks - 1)]
    return itemsize * sum(scatter + gather)
"""),
    Right("differences of bounds", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    never = 0
    for index in {0: rank, 1: (rank + 1) % ranks}.values():
        start, stop = chunk_bounds(numel, ranks, index)
        never += stop - start
    return itemsize * (numel * 2 - never)
"""),
    Right("set of chunks", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank):
    everyone = set(range(ranks))
    def cost(chunks):
        return sum(stop - start for start, stop in [chunk_bounds(numel, ranks, c) for c in chunks])
    return (cost(everyone - {rank}) + cost(everyone - {(rank + 1) % ranks})) * itemsize
"""),
    Right("as bytes", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    raw = tensor.view(-1).view(torch.uint8)
    if comm.rank != src:
        comm.recv(raw, (comm.rank - 1) % comm.size)
    if (comm.rank + 1 - src) % comm.size:
        comm.send(raw, (comm.rank + 1) % comm.size)
    return tensor
"""),
    Right("a recursive relay", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    def relay(holder, left):
        if not left:
            return tensor
        following = (holder + 1) % comm.size
        if comm.rank == holder:
            comm.send(tensor, following)
        if comm.rank == following:
            comm.recv(tensor, holder)
        return relay(following, left - 1)
    return relay(src, comm.size - 1)
"""),
    Right("match", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    right, left = (comm.rank + 1) % comm.size, (comm.rank + comm.size - 1) % comm.size
    match (comm.rank == src, right == src):
        case True, True:
            pass
        case True, False:
            comm.isend(tensor, right).wait()
        case False, True:
            comm.irecv(tensor, left).wait()
        case _:
            comm.irecv(tensor, left).wait()
            comm.isend(tensor, right).wait()
    return tensor
"""),
    Right("set_ to the received", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        came = torch.empty_like(tensor)
        comm.recv(came, (comm.rank - 1) % comm.size)
        tensor[...] = came
    if (comm.rank + 1) % comm.size != src:
        comm.send(tensor.clone(), (comm.rank + 1) % comm.size)
    return tensor
"""),
    Right("nothing comes back as it came", "ring_reduce_scatter", """
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
