"""Right answers to lessons 00 to 02: callable objects, blocking messages, chunks without elements that are not sent."""

from zoo.right.answer import Right

START = [
    Right('callable object, torch int64', 'state_bytes', """
import torch
class Calc:
    def __call__(self, parameters, ranks, stage, recipe):
        n = torch.tensor([parameters] * 3, dtype=torch.int64)
        cut = torch.tensor([stage >= 3, stage >= 2, stage >= 1])
        n = torch.where(cut, -torch.div(-n, ranks, rounding_mode="floor"), n)
        return dict(zip(("parameters", "gradients", "optimizer_states"), (n * torch.tensor(recipe)).tolist()))
state_bytes = Calc()
"""),
    Right('bisect on a falling row', 'choose_stage', """
from bisect import bisect_left
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    need = [-sum(state_bytes(parameters, ranks, s, recipe).values()) for s in range(4)]
    place = bisect_left(need, -gpu_bytes)
    return place if place < 4 else None
"""),
    Right('bisect with a key over a range', 'most_parameters', """
import bisect
def most_parameters(gpu_bytes, ranks, stage, recipe):
    need = lambda n: sum(state_bytes(n, ranks, stage, recipe).values())
    return bisect.bisect_right(range(gpu_bytes * ranks + 2), gpu_bytes, key=need) - 1
"""),
    Right('torch int64 with argmax by hand', 'name_the_peak', """
import torch
def name_the_peak(samples):
    kinds = sorted(samples[0])
    table = torch.tensor([[s[k] for k in kinds] for s in samples], dtype=torch.int64)
    totals = table.sum(1)
    where = int((totals == totals.max()).nonzero()[0])
    return where, kinds[int(table[where].argmax())]
"""),
    Right('ratio of integers', 'fewest_ranks', """
def fewest_ranks(factor, stage, recipe):
    up, down = float(factor).as_integer_ratio()
    whole, cut = sum(recipe[:3 - stage]), sum(recipe[3 - stage:])
    gain = down * (whole + cut) - up * whole
    if gain <= 0:
        return None
    return -(-up * cut // gain)
"""),
]  # fmt: skip

RING = [
    Right('recursion', 'chunk_bounds', """
def chunk_bounds(numel, ranks, rank):
    start = chunk_bounds(numel, ranks, rank - 1)[1] if rank else 0
    return start, start + -(-(numel - start) // (ranks - rank))
"""),
    Right('blocking send and recv, one rank goes first', 'ring_reduce_scatter', """
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
    Right('generator of steps, empty chunks are not sent', 'ring_reduce_scatter', """
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
    Right('recursion with blocking calls', 'ring_all_gather', """
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
    Right('own ring in a copy', 'ring_all_reduce', """
def ring_all_reduce(comm, tensor, average=False):
    out = tensor.clone()
    n, r = comm.size, comm.rank
    for s in range(n - 1):
        mine = chunk(out, r - s - 2, n)
        came = mine.clone()
        pass_on(comm, chunk(out, r - s - 1, n), came)
        mine += came
        del came
    if average:
        chunk(out, r, n).div_(n)
    for s in range(n - 1):
        pass_on(comm, chunk(out, r - s, n), chunk(out, r - s - 1, n))
    return out
"""),
    Right('counts elements by owner', 'ring_bytes', """
from collections import Counter
def ring_bytes(numel, itemsize, ranks, rank):
    held = Counter(owner for owner in range(ranks) for _ in range(*chunk_bounds(numel, ranks, owner)))
    kept = (rank, 0 if rank == ranks - 1 else rank + 1)
    return sum(held[o] for k in kept for o in range(ranks) if o != k) * itemsize
"""),
    Right('through a flat temporary', 'mended_broadcast', """
def mended_broadcast(comm, tensor, src):
    right = (comm.rank + 1) % comm.size
    flat = tensor.reshape(-1).clone()
    if comm.rank != src:
        comm.irecv(flat, comm.rank - 1 if comm.rank else comm.size - 1).wait()
        tensor.view(-1)[:] = flat
    if right != src:
        comm.isend(flat, right).wait()
    return tensor
"""),
]  # fmt: skip

FLAT = [
    Right('a class that counts blocks', 'lay_out', """
class Row:
    def __init__(self, align):
        self.align, self.blocks, self.starts = align, 0, []
    def add(self, size):
        self.starts.append(self.blocks * self.align)
        self.blocks += size // self.align + bool(size % self.align)
def lay_out(numels, ranks, align):
    row = Row(align)
    for size in numels:
        row.add(size)
    each = (row.blocks + ranks - 1) // ranks
    return row.starts, each * ranks * align
"""),
    Right('clamps', 'owned', """
def owned(starts, numels, length, ranks, rank):
    each = length // ranks
    clamp = lambda x, n: sorted((0, x, n))[1]
    low, high = rank * each, (rank + 1) * each
    found = ((i, clamp(low - s, n), clamp(high - s, n)) for i, (s, n) in enumerate(zip(starts, numels)))
    return [piece for piece in found if piece[2] > piece[1]]
"""),
    Right('set_ and a class; parameters without elements are left', 'flatten', """
class Home:
    def __init__(self, row):
        self.row = row
    def move(self, p, start):
        n = p.numel()
        if n == 0:
            return
        room = self.row.detach()[start : start + n].reshape(p.shape)
        room[...] = p.detach()
        with torch.no_grad():
            p.set_(room)
def flatten(module, ranks, align):
    ps = dict.fromkeys(module.parameters())
    starts, length = lay_out([p.numel() for p in ps], ranks, align)
    row = torch.zeros(length, dtype=next(iter(ps)).dtype)
    home = Home(row)
    for p, start in zip(ps, starts):
        home.move(p, start)
    return row
"""),
    Right('fills a row, writes copies, divides itself', 'average_gradients', """
@torch.no_grad()
def average_gradients(comm, parameters):
    mine = list(filter(lambda p: p.requires_grad, parameters))
    total = sum(p.numel() for p in mine)
    row, at = torch.zeros(total), 0
    for p in mine:
        if p.grad is not None:
            row[at : at + p.numel()].copy_(p.grad.flatten())
        at += p.numel()
    comm.all_reduce_async(row).wait()
    row /= comm.size
    for p in reversed(mine):
        at -= p.numel()
        p.grad = row[at : at + p.numel()].clone().reshape_as(p)
"""),
    Right('iterator by hand, forward order inside a row', 'reduce_overlapped', """
def buckets_of(numels, limit):
    buckets = []
    size = 0
    for layer in reversed(range(len(numels))):
        if not buckets or size + numels[layer] > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(layer)
        size += numels[layer]
    return buckets

def reduce_overlapped(comm, numels, backward, limit):
    work = []
    queue = [sorted(b) for b in buckets_of(numels, limit)]
    rows = {b[0]: torch.zeros(sum(map(numels.__getitem__, b))) for b in queue}
    def offset(b, layer):
        return sum(numels[l] for l in b if l < layer)
    def go():
        b = queue.pop(0)
        work.append((b, comm.all_reduce_async(rows[b[0]], average=True)))
    while True:
        try:
            layer, gradient = next(backward)
        except StopIteration:
            break
        while queue[0][0] > layer:
            go()
        at = offset(queue[0], layer)
        rows[queue[0][0]][at : at + numels[layer]] = gradient
        if queue[0][0] == layer:
            go()
    while queue:
        go()
    means = {}
    for b, handle in work:
        row = handle.wait()
        for l in b:
            means[l] = row[offset(b, l) : offset(b, l) + numels[l]]
    return [means[l] for l in sorted(means)]
"""),
    Right('recursion on tails', 'culprit', """
def culprit(calls, index=0):
    heads = [c[index:index + 1] for c in calls]
    if not any(heads):
        return None
    odd = [r for r, h in enumerate(heads) if heads.count(h) == 1]
    if odd:
        return odd[0], index
    return culprit(calls, index + 1)
"""),
]  # fmt: skip
