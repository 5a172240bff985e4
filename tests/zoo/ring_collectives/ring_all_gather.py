"""Right answers to `ring_all_gather` of lesson 01."""

from zoo.answers import Right

RIGHT = [
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
]  # fmt: skip
