"""Wrong answers to the exercises of lesson 01 that look right on one call, in one dtype, on ordinary numbers."""

from zoo.wrong import Wrong, changed

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
GATHER = """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    return whole
"""
BYTES = """
def ring_bytes(numel, itemsize, ranks, rank):
    def length(index):
        start, stop = chunk_bounds(numel, ranks, index % ranks)
        return stop - start
    return itemsize * (2 * numel - length(rank) - length(rank + 1)) if ranks > 1 else 0
"""
MENDED = """
def mended_broadcast(comm, tensor, src):
    right, box = (comm.rank + 1) % comm.size, tensor
    if comm.rank != src:
        comm.recv(box, (comm.rank - 1) % comm.size)
    if right != src:
        comm.send(box, right)
    return tensor
"""


ZOO = [
    Wrong("a start and a length", "chunk_bounds", '''
def chunk_bounds(numel, ranks, rank):
    short, longer = divmod(numel, ranks)
    return rank * short + min(rank, longer), short + (rank < longer)
''', "the second number is a length"),
    Wrong("a start without the longer ones", "chunk_bounds", '''
def chunk_bounds(numel, ranks, rank):
    short, longer = divmod(numel, ranks)
    return rank * short, (rank + 1) * short + (rank < longer)
''', "starts before rank 0's stops"),
    Wrong("all that is left over to the first", "chunk_bounds", '''
def chunk_bounds(numel, ranks, rank):
    short, rest = divmod(numel, ranks)
    return rank * short + rest * (rank > 0), (rank + 1) * short + rest
''', "each of the first ranks has one of what is left over"),
    Wrong("bits", "ring_bytes", changed(BYTES, "itemsize * ", "itemsize * 8 * "), "Those are bits"),
    Wrong("leaves out one chunk of both halves", "ring_bytes", changed(BYTES, " - length(rank + 1)", ""),
          "each of the two halves leaves out one chunk"),
    Wrong("does not wait for what it sends", "ring_reduce_scatter", changed(CARRIED, "        sending.wait()\n", ""),
          "waited for what it is sending"),
    Wrong("does not wait for what it receives", "ring_reduce_scatter",
          changed(CARRIED, "        receiving.wait()\n", ""), "waited for what it is receiving"),
    Wrong("loses NaN", "ring_reduce_scatter", changed(CARRIED, "return carried", "return torch.nan_to_num(carried)"),
          "NaN and inf are not to be lost"),
    Wrong("adds in float32", "ring_reduce_scatter",
          changed(CARRIED, "came + own", "(came.float() + own.float()).to(own.dtype)"),
          "nearly right is not right"),
    Wrong("passes on what came", "ring_reduce_scatter", changed(CARRIED, "came + own", "came"),
          "passed on and never added to"),
    Wrong("adds its own once more", "ring_reduce_scatter",
          changed(CARRIED, "return carried", "return carried + chunk(tensor, comm.rank, comm.size)"),
          "with its own summand in it twice"),
    Wrong("takes one 16-bit dtype for the other", "ring_all_gather",
          changed(changed(GATHER, "shard.new_empty(numel)",
                          "torch.empty(numel, dtype=torch.float16 if shard.dtype == torch.bfloat16 else shard.dtype)"),
                  "return whole", "return whole.to(shard.dtype)"), "of bfloat16"),
    Wrong("receives into copies", "ring_all_gather",
          changed(changed(GATHER, "comm.rank - step - 1, comm.size))", "comm.rank - step - 1, comm.size).clone())"),
                  "new_empty", "new_zeros"), "each one receives into the whole tensor itself"),
    Wrong("one buffer for all calls", "ring_all_gather",
          changed("WHOLES = {}\n" + GATHER, "shard.new_empty(numel)",
                  "WHOLES.setdefault((comm.rank, numel, shard.dtype), shard.new_empty(numel))"),
          "a second call changed what the first had returned"),
    Wrong("remembers what it gathered", "ring_all_gather",
          changed(changed("SEEN = {}\n" + GATHER, "    whole = shard",
                  "    key = comm.rank, comm.size, numel, shard.dtype\n"
                  "    if key in SEEN:\n        return SEEN[key].clone()\n    whole = shard"),
                  "return whole", "SEEN[key] = whole.clone()\n    return whole"),
          "are alive that it did not return"),
    Wrong("pads to the longest", "ring_all_gather", '''
def ring_all_gather(comm, shard, numel):
    most = -(-numel // comm.size)
    parts = shard.new_zeros(comm.size, most)
    parts[comm.rank, : len(shard)] = shard
    for step in range(comm.size - 1):
        pass_on(comm, parts[(comm.rank - step) % comm.size], parts[(comm.rank - step - 1) % comm.size])
    lengths = [stop - start for start, stop in (chunk_bounds(numel, comm.size, rank) for rank in range(comm.size))]
    return torch.cat([part[:length] for part, length in zip(parts, lengths)])
''', "send a chunk as long as it is, without padding"),
    Wrong("sends its shard and never keeps it", "ring_all_gather", '''
def ring_all_gather(comm, shard, numel):
    whole, moving = shard.new_zeros(numel), shard
    for step in range(1, comm.size):
        place = chunk(whole, comm.rank - step, comm.size)
        pass_on(comm, moving, place)
        moving = place
    return whole
''', "its own shard is missing"),
    Wrong("divides first", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    scaled = tensor / comm.size if average else tensor
    return ring_all_gather(comm, ring_reduce_scatter(comm, scaled), tensor.numel())
''', "such as tensor / comm.size"),
    Wrong("averages unless told not to", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=True):
    shard = ring_reduce_scatter(comm, tensor)
    if average:
        shard /= comm.size
    return ring_all_gather(comm, shard, tensor.numel())
''', "average left out (the ranks"),
    Wrong("adds on the way", "mended_broadcast",
          changed(changed(MENDED, "box = (comm.rank + 1) % comm.size, tensor",
                          "box = (comm.rank + 1) % comm.size, tensor.clone()"), "(comm.rank - 1) % comm.size)",
                  "(comm.rank - 1) % comm.size)\n        box += tensor\n        tensor.copy_(box)"),
          "overwrite, and do not add"),
    Wrong("returns a clone", "mended_broadcast", changed(MENDED, "return tensor", "return tensor.clone()"),
          "is a copy of its tensor"),
    Wrong("through float32", "mended_broadcast",
          changed(changed(MENDED, "box = (comm.rank + 1) % comm.size, tensor",
                          "box = (comm.rank + 1) % comm.size, tensor.float()"),
                  "return tensor", "return tensor.copy_(box)"),
          "its elements travel in 4 bytes each"),
    Wrong("back through float64", "mended_broadcast",
          changed(MENDED, "return tensor", "return tensor.copy_(tensor.double())"), "what rounds them?"),
    Wrong("copies only what is not zero", "mended_broadcast",
          changed(changed(MENDED, "box = (comm.rank + 1) % comm.size, tensor",
                          "box = (comm.rank + 1) % comm.size, tensor.clone()"), "    return",
                  "    if box.any():\n        tensor.copy_(box)\n    return"), "zeros are numbers like others"),
    Wrong("loses NaN", "mended_broadcast",
          changed(MENDED, "    return", "    if comm.rank != src:\n        torch.nan_to_num_(tensor)\n    return"),
          "NaN and inf are not to be lost"),
    Wrong("sends on before it receives", "mended_broadcast", '''
def mended_broadcast(comm, tensor, src):
    right = (comm.rank + 1) % comm.size
    if right != src:
        comm.send(tensor, right)
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    return tensor
''', "receive before you send on"),
]  # fmt: skip
