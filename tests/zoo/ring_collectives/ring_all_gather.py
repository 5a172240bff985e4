"""Answers to `ring_all_gather` of lesson 01, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("01_ring_collectives", "ring_all_gather")

RIGHT = [
    Right("plain",
          changed(MODEL, "shard.new_empty(numel)", "torch.empty(numel, dtype=shard.dtype, device=shard.device)")),
    Right("views list", """
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
    Right("first send the shard itself", """
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
    Right("recursion", """
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
    Right("deque rotate narrow", """
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
    Right("all receives first", """
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
    Right("skip empties", """
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
    # A second reading of the text alone.
    Right("resized from nothing", """
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
    Right("blocking, rank 0 first", """
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
    Right("a while loop over indices", """
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
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("recursion with blocking calls", """
def ring_all_gather(comm, shard, numel):
    n, r = comm.size, comm.rank
    row = torch.empty(numel, dtype=shard.dtype)
    a, b = chunk_bounds(numel, n, r)
    row[a:b] = shard
    def turn(which):
        came = (which - 1) % n
        if came == r:
            return row
        go = slice(*chunk_bounds(numel, n, which))
        come = slice(*chunk_bounds(numel, n, came))
        if r % 2:
            comm.recv(row[come], (r - 1) % n)
            comm.send(row[go], (r + 1) % n)
        else:
            pending = comm.irecv(row[come], (r - 1) % n)
            comm.send(row[go], (r + 1) % n)
            pending.wait()
        return turn(came)
    return turn(r)
"""),
]  # fmt: skip
