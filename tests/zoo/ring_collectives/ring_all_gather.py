"""Answers to `ring_all_gather` of lesson 01, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("01_ring_collectives", "ring_all_gather")

WRONG = [
    blank("ring_all_gather"),
    Wrong("one rank returns its shard",
          changed(MODEL,
                  "whole =",
                  "if comm.size == 1:\n"
                  "        return shard\n"
                  "    whole ="),
          "returned the memory of its input"),
    Wrong("gathers in float64",
          changed(changed(MODEL,
                          "shard.new_empty(numel)",
                          "torch.empty(numel, dtype=torch.float64)"),
                  "return whole",
                  "return whole.to(shard.dtype)"),
          "what rounds them? Numbers stay in the input's dtype"),
    Wrong("gathers into a list", """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    parts = [chunk(whole, index, comm.size).clone() for index in range(comm.size)]
    parts[comm.rank].copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, parts[(comm.rank - step) % comm.size], parts[(comm.rank - step - 1) % comm.size])
    return torch.cat(parts)
""", "receive each chunk where it belongs"),
    Wrong("everybody to everybody", """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sent = [comm.isend(shard, other) for other in others]
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for other in others:
        comm.recv(chunk(whole, other, comm.size), other)
    for request in sent:
        request.wait()
    return whole
""", "in this ring it sends to rank"),
    Wrong("forgets its own shard",
          changed(MODEL,
                  "new_empty(numel)\n    chunk(whole, comm.rank, comm.size).copy_(shard)",
                  "new_zeros(numel)"),
          "put your own shard into the whole tensor before"),
    Wrong("a step too few",
          changed(changed(MODEL, "new_empty", "new_zeros"), ".size - 1", ".size - 2"),
          "which comes last, is missing: N ranks need N-1 steps"),
    Wrong("calls the library",
          "def ring_all_gather(comm, shard, numel):\n    return comm.all_gather(shard, numel)",
          "comm.all_gather, which is the library's own"),
    Wrong("only rank 0 is skipped",
          changed(MODEL, "return whole", "return whole if comm.rank else whole.clone().zero_()"),
          "`if comm.rank:`"),
    Wrong("own shard only",
          "def ring_all_gather(comm, shard, numel):\n    return shard.clone()",
          "its own shard only"),
    Wrong("order of arrival",
          changed(MODEL,
                  "return whole",
                  "return torch.cat([chunk(whole, comm.rank + i, comm.size) for i in range(comm.size)])"),
          "in which they came"),
    Wrong("messages of different sizes", """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    travelling = shard.clone()
    for step in range(comm.size - 1):
        arrived = torch.empty_like(shard)
        pass_on(comm, travelling, arrived)
        chunk(whole, comm.rank - step - 1, comm.size).copy_(arrived)
        travelling = arrived
    return whole
""", "two ranks met with different messages"),
    Wrong("below the contract",
          changed(MODEL, "return whole", "comm.transport.sent = []\n    return whole"),
          "below the contract"),
    # Look right on one call, in one dtype, on ordinary numbers.
    Wrong("takes one 16-bit dtype for the other",
          changed(changed(MODEL,
                          "shard.new_empty(numel)",
                          "torch.empty(numel, dtype=torch.float16 if shard.dtype == torch.bfloat16 else shard.dtype)"),
                  "return whole",
                  "return whole.to(shard.dtype)"),
          "of bfloat16"),
    Wrong("receives into copies",
          changed(changed(MODEL, "new_empty", "new_zeros"), "1, comm.size", "1, comm.size).clone("),
          "each one receives into the whole tensor itself"),
    Wrong("one buffer for all calls",
          changed(changed(MODEL,
                          "def ring_all_gather",
                          "WHOLES = {}\n\ndef ring_all_gather"),
                  "shard.new_empty(numel)",
                  "WHOLES.setdefault((comm.rank, numel, shard.dtype), shard.new_empty(numel))"),
          "a second call changed what the first had returned"),
    Wrong("remembers what it gathered", """
SEEN = {}

def ring_all_gather(comm, shard, numel):
    key = comm.rank, comm.size, numel, shard.dtype
    if key in SEEN:
        return SEEN[key].clone()
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    SEEN[key] = whole.clone()
    return whole
""", "are alive that it did not return"),
    Wrong("pads to the longest", """
def ring_all_gather(comm, shard, numel):
    most = -(-numel // comm.size)
    parts = shard.new_zeros(comm.size, most)
    parts[comm.rank, : len(shard)] = shard
    for step in range(comm.size - 1):
        pass_on(comm, parts[(comm.rank - step) % comm.size], parts[(comm.rank - step - 1) % comm.size])
    lengths = [stop - start for start, stop in (chunk_bounds(numel, comm.size, rank) for rank in range(comm.size))]
    return torch.cat([part[:length] for part, length in zip(parts, lengths)])
""", "send a chunk as long as it is, without padding"),
    Wrong("sends its shard and never keeps it", """
def ring_all_gather(comm, shard, numel):
    whole, moving = shard.new_zeros(numel), shard
    for step in range(1, comm.size):
        place = chunk(whole, comm.rank - step, comm.size)
        pass_on(comm, moving, place)
        moving = place
    return whole
""", "its own shard is missing"),
    # Hold on most inputs: sums of 32 bits, edges, a rank that has nothing.
    Wrong("one step too many", """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    if comm.size > 1:
        for s in range(comm.size):
            pass_on(comm, chunk(whole, comm.rank - s, comm.size), chunk(whole, comm.rank - s - 1, comm.size))
    return whole
""", "N-1 steps are enough"),
]  # fmt: skip

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
