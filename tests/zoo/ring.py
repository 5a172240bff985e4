"""Wrong answers to the exercises of lesson 01."""

from zoo import ring_mended, ring_numbers, ring_slips
from zoo.wrong import Wrong, blank, changed

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
ALL_GATHER = """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    return whole
"""


ZOO = [
    *ring_numbers.ZOO,
    *ring_mended.ZOO,
    *ring_slips.ZOO,
    *map(blank, ("ring_reduce_scatter", "ring_all_gather", "ring_all_reduce")),
    Wrong("chunks in two pieces", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "pass_on(comm, chunk(work, comm.rank - 1 - step, comm.size), arrived)",
                  "leaving = chunk(work, comm.rank - 1 - step, comm.size)\n"
                  "        pass_on(comm, leaving[:1], arrived[:1])\n"
                  "        pass_on(comm, leaving[1:], arrived[1:])"), "messages a rank sends: 6"),
    Wrong("keeps all that came", "ring_reduce_scatter",
          changed(changed(REDUCE_SCATTER, "work = tensor.clone()", "work, kept = tensor.clone(), []"),
                  "mine += arrived", "kept.append(arrived)\n        mine += arrived"), "is used up when added"),
    Wrong("returns a view of its copy", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "comm.rank, comm.size).clone()", "comm.rank, comm.size)"),
          "a view of something larger"),
    Wrong("keeps its copy", "ring_reduce_scatter",
          changed("KEPT = {}" + REDUCE_SCATTER, "work = tensor.clone()", "KEPT[comm.rank] = work = tensor.clone()"),
          "are alive that it did not return"),
    Wrong("one rank returns its input", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "work = tensor.clone()",
                  "if comm.size == 1:\n        return tensor\n    work = tensor.clone()"),
          "so that who changes one changes both"),
    Wrong("one rank returns its shard", "ring_all_gather",
          changed(ALL_GATHER, "    whole =", "    if comm.size == 1:\n        return shard\n    whole ="),
          "returned the memory of its input"),
    Wrong("one rank returns its tensor", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    if comm.size == 1:
        return tensor
    shard = ring_reduce_scatter(comm, tensor)
    if average:
        shard /= comm.size
    return ring_all_gather(comm, shard, tensor.numel())
''', "average=False: rank 0 returned the memory of its input"),
    Wrong("knows two dtypes", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "    work =",
                  "    if tensor.dtype not in (torch.float32, torch.float64):\n"
                  "        raise TypeError('floats only')\n    work ="), "floats only"),
    Wrong("sums in float32", "ring_reduce_scatter",
          changed(changed(REDUCE_SCATTER, "tensor.clone()", "tensor.to(torch.float32, copy=True)"),
                  "comm.size).clone()", "comm.size).to(tensor.dtype, copy=True)"),
          "travel in 4 bytes each, and the input's take 8: work and send"),
    Wrong("gathers in float64", "ring_all_gather",
          changed(changed(ALL_GATHER, "shard.new_empty(numel)", "torch.empty(numel, dtype=torch.float64)"),
                  "return whole", "return whole.to(shard.dtype)"),
          "what rounds them? Numbers stay in the input's dtype"),
    Wrong("the mean in a new tensor", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    whole = ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
    return whole / comm.size if average else whole
''', "two whole tensors at once"),
    Wrong("gathers into a list", "ring_all_gather", '''
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    parts = [chunk(whole, index, comm.size).clone() for index in range(comm.size)]
    parts[comm.rank].copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, parts[(comm.rank - step) % comm.size], parts[(comm.rank - step - 1) % comm.size])
    return torch.cat(parts)
''', "receive each chunk where it belongs"),
    Wrong("everybody to everybody", "ring_all_gather", '''
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
''', "in this ring it sends to rank"),
    Wrong("forgets its own shard", "ring_all_gather",
          changed(changed(ALL_GATHER, "    chunk(whole, comm.rank, comm.size).copy_(shard)\n", ""),
                  "new_empty", "new_zeros"), "put your own shard into the whole tensor before"),
    Wrong("a step too few", "ring_all_gather",
          changed(changed(ALL_GATHER, "comm.size - 1", "comm.size - 2"), "new_empty", "new_zeros"),
          "which comes last, is missing: N ranks need N-1 steps"),
    Wrong("calls the library", "ring_all_gather",
          "def ring_all_gather(comm, shard, numel):\n    return comm.all_gather(shard, numel)",
          "comm.all_gather, which is the library's own"),
    Wrong("reduces twice what is a mean", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    whole = ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
    return whole // comm.size if average else whole
''', "divide with / and not with //"),
    Wrong("into its input", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    shard = ring_reduce_scatter(comm, tensor)
    if average:
        shard /= comm.size
    return tensor.copy_(ring_all_gather(comm, shard, tensor.numel()))
''', "it overwrote"),
    Wrong("gathers everything, then adds", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    total, travelling = tensor.clone(), tensor
    for step in range(comm.size - 1):
        arrived = torch.empty_like(tensor)
        pass_on(comm, travelling, arrived)
        total += arrived
        travelling = arrived
    return total / comm.size if average else total
''', "whole tensors"),
    Wrong("keeps a copy", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    copy = tensor.clone()
    shard = ring_reduce_scatter(comm, copy)
    if average:
        shard /= comm.size
    return ring_all_gather(comm, shard, tensor.numel())
''', "the halves need none"),
    Wrong("unsharded result", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "return chunk(work, comm.rank, comm.size).clone()",
                  "return ring_all_gather(comm, chunk(work, comm.rank, comm.size).clone(), tensor.numel())")
          + ALL_GATHER,
          "unsharded"),
    Wrong("whole-tensor ring", "ring_reduce_scatter", '''
def ring_reduce_scatter(comm, tensor):
    total, travelling = tensor.clone(), tensor.clone()
    for step in range(comm.size - 1):
        arrived = torch.empty_like(tensor)
        pass_on(comm, travelling, arrived)
        total += arrived
        travelling = arrived
    return chunk(total, comm.rank, comm.size).clone()
''', "whole tensors"),
    Wrong("star", "ring_reduce_scatter", '''
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
''', "in this ring it sends to rank"),
    Wrong("own summand only", "ring_reduce_scatter",
          "def ring_reduce_scatter(comm, tensor):\n    return chunk(tensor, comm.rank, comm.size).clone()",
          "nothing was added"),
    Wrong("chunk of the neighbour", "ring_reduce_scatter", '''
def ring_reduce_scatter(comm, tensor):
    work = tensor.clone()
    for step in range(comm.size - 1):
        mine = chunk(work, comm.rank - 1 - step, comm.size)
        arrived = torch.empty_like(mine)
        pass_on(comm, chunk(work, comm.rank - step, comm.size), arrived)
        mine += arrived
    return chunk(work, comm.rank + 1, comm.size).clone()
''', "shift your chunk index by one"),
    Wrong("averages what is to be summed", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "comm.rank, comm.size).clone()", "comm.rank, comm.size) / comm.size"),
          "asks for the sum"),
    Wrong("mutates its input", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "work = tensor.clone()", "work = tensor"), "overwrote"),
    Wrong("returns nothing", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "return chunk(work, comm.rank, comm.size).clone()", "pass"), "end with return"),
    Wrong("wrong dtype", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "comm.size).clone()", "comm.size).half()"), "float16, not torch.float64"),
    Wrong("sends first", "ring_reduce_scatter", '''
def ring_reduce_scatter(comm, tensor):
    work = tensor.clone()
    for step in range(comm.size - 1):
        mine = chunk(work, comm.rank - 2 - step, comm.size)
        arrived = torch.empty_like(mine)
        comm.send(chunk(work, comm.rank - 1 - step, comm.size), (comm.rank + 1) % comm.size)
        comm.recv(arrived, (comm.rank - 1) % comm.size)
        mine += arrived
    return chunk(work, comm.rank, comm.size).clone()
''', "Post a receive before you wait for a send"),
    Wrong("assumes that sizes divide", "ring_reduce_scatter", '''
def ring_reduce_scatter(comm, tensor):
    each = tensor.numel() // comm.size
    parts = [part.clone() for part in tensor[: each * comm.size].split(each)]
    for step in range(comm.size - 1):
        arrived = torch.empty_like(parts[0])
        pass_on(comm, parts[(comm.rank - 1 - step) % comm.size], arrived)
        parts[(comm.rank - 2 - step) % comm.size] += arrived
    return parts[comm.rank]
''', "do not divide them"),
    Wrong("steps too many", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "return chunk",
                  "if comm.size > 1:\n        pass_on(comm, tensor[:1], tensor[:1].clone())\n    return chunk"),
          "steps are enough"),
    Wrong("only rank 0 is skipped", "ring_all_gather",
          changed(ALL_GATHER, "return whole", "return whole if comm.rank else whole.clone().zero_()"),
          "`if comm.rank:`"),
    Wrong("own shard only", "ring_all_gather", "def ring_all_gather(comm, shard, numel):\n    return shard.clone()",
          "its own shard only"),
    Wrong("order of arrival", "ring_all_gather",
          changed(ALL_GATHER, "return whole",
                  "return torch.cat([chunk(whole, comm.rank + i, comm.size) for i in range(comm.size)])"),
          "in which they came"),
    Wrong("messages of different sizes", "ring_all_gather", '''
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
''', "two ranks met with different messages"),
    Wrong("forgets the average", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    return ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
''', "the mean: divide by comm.size"),
    Wrong("always averages", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    return ring_all_gather(comm, ring_reduce_scatter(comm, tensor) / comm.size, tensor.numel())
''', "average=False asks for the sum"),
    Wrong("one chunk of the sum", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    return ring_reduce_scatter(comm, tensor)
''', "one chunk only"),
    Wrong("calls the library", "ring_all_reduce",
          "def ring_all_reduce(comm, tensor, average=False):\n    return comm.all_reduce(tensor.clone(), average)",
          "comm.all_reduce, which is the library's own"),
    Wrong("imports the library", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    from zerolab.collectives import RingCollectives
    return RingCollectives(comm).all_reduce(tensor)
''', "imports zerolab.collectives"),
    Wrong("imports the solution", "ring_all_reduce", '''
import solutions
ring_all_reduce = solutions.ring_all_reduce
''', "module 'solutions' has no attribute"),
    Wrong("torch's own collective", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    torch.distributed.all_reduce(tensor)
    return tensor
''', "torch.distributed is off limits"),
    Wrong("torch's own by import", "ring_all_reduce", '''
from torch.distributed import all_reduce
def ring_all_reduce(comm, tensor, average=False):
    all_reduce(tensor)
    return tensor
''', "imports torch.distributed"),
    Wrong("reads the solution", "ring_all_reduce", '''
exec(open("solutions/01_ring_collectives.ipynb").read())
''', "an answer has no need of files"),
    Wrong("below the contract", "ring_all_gather",
          changed(ALL_GATHER, "return whole", "comm.transport.sent = []\n    return whole"), "below the contract"),
    Wrong("prints 100 %", "ring_all_reduce", '''
def ring_all_reduce(comm, tensor, average=False):
    print("100 %, 10 of 10 points")
    return tensor.clone()
''', "nothing was added"),
    Wrong("calls exit", "ring_all_reduce",
          "def ring_all_reduce(comm, tensor, average=False):\n    raise SystemExit(0)", "it calls exit"),
    Wrong("loops for ever", "ring_all_reduce",
          "def ring_all_reduce(comm, tensor, average=False):\n    while True:\n        pass", "does not end"),
    Wrong("raises", "ring_all_reduce",
          "def ring_all_reduce(comm, tensor, average=False):\n    return tensor + undefined_helper", "keep helpers"),
    Wrong("is not Python", "ring_all_reduce", "def ring_all_reduce(comm, tensor average):\n    pass", "is not Python"),
    Wrong("defines another name", "ring_all_reduce", "def all_reduce(comm, tensor):\n    pass", "no function named"),
    Wrong("receives float32 of any dtype", "ring_reduce_scatter",
          changed(REDUCE_SCATTER, "torch.empty_like(mine)", "torch.empty(len(mine))"),
          "new tensors take the input's dtype (empty_like, new_empty)"),
]  # fmt: skip

# These take down the process that runs them, or reach for the checker in it, so they are tried in a worker.
HOSTILE = [
    Wrong("loops on import", "ring_all_gather", "while True:\n    pass", "does not end"),
    Wrong("ends the process", "ring_all_reduce",
          "import torch\ndef ring_all_reduce(comm, tensor, average=False):\n"
          "    torch.os._exit(9)", "ended at once"),
    Wrong("exits on import", "mended_broadcast", "raise SystemExit('100 %')", "it calls exit"),
    Wrong("patches the checker", "ring_reduce_scatter", '''
def ring_reduce_scatter(comm, tensor):
    kind = type(comm).__base__
    kind.isend = kind.irecv
    raise ValueError("too late to notice")
''', "it replaces"),
]  # fmt: skip

GREEDY = "def ring_bytes(numel, itemsize, ranks, rank):\n    return len(bytearray(2**36))"
