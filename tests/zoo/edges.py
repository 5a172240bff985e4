"""Wrong answers to lessons 00 to 02 that hold on most inputs: sums of 32 bits, edges, and a rank that has nothing."""

from zoo.wrong import Wrong

START = [
    Wrong('int32 totals', 'name_the_peak', """
import torch
def name_the_peak(samples):
    kinds = list(samples[0])
    table = torch.tensor([[s[k] for k in kinds] for s in samples]).to(torch.int32)
    totals = [int(t) for t in table.sum(1, dtype=torch.int32)]
    index = totals.index(max(totals))
    return index, kinds[int(table[index].argmax())]
""", 'more than 32 bits'),
    Wrong("'other' is nobody's", 'name_the_peak', """
def name_the_peak(samples):
    totals = [sum(s.values()) for s in samples]
    index = totals.index(max(totals))
    return index, max((k for k in samples[index] if k != "other"), key=samples[index].get)
""", 'pass over other'),
]  # fmt: skip

RING = [
    Wrong('one element to spare too early', 'chunk_bounds', """
def chunk_bounds(numel, ranks, rank):
    size, more = divmod(numel, ranks)
    start = rank * size + min(rank, more)
    return start, start + size + (1 if rank <= more and more else 0)
""", 'which ranks have one more'),
    Wrong('one step too many', 'ring_all_gather', """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_empty(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    if comm.size > 1:
        for s in range(comm.size):
            pass_on(comm, chunk(whole, comm.rank - s, comm.size), chunk(whole, comm.rank - s - 1, comm.size))
    return whole
""", 'N-1 steps are enough'),
]  # fmt: skip

FLAT = [
    Wrong('a row has at least one unit', 'lay_out', """
def lay_out(numels, ranks, align):
    starts, end = [], 0
    for n in numels:
        starts.append(-(-end // align) * align)
        end = starts[-1] + n
    unit = ranks * align
    return starts, max(1, -(-end // unit)) * unit
""", 'Without parameters there is nothing to hold'),
    Wrong('an empty parameter starts where the last ended', 'lay_out', """
def lay_out(numels, ranks, align):
    starts, end = [], 0
    for n in numels:
        begin = -(-end // align) * align if n else end
        starts.append(begin)
        end = begin + n
    unit = ranks * align
    return starts, -(-end // unit) * unit
""", 'yet its start is a multiple'),
    Wrong('as long as rank 0', 'culprit', """
def culprit(calls):
    for index in range(len(calls[0])):
        column = [c[index] if index < len(c) else None for c in calls]
        for rank, call in enumerate(column):
            if column.count(call) == 1:
                return rank, index
    return None
""", 'go as far as the longest list'),
    Wrong('who has nothing returns', 'average_gradients', """
def average_gradients(comm, parameters):
    live = [p for p in parameters if p.requires_grad]
    if all(p.grad is None for p in live):
        for p in live:
            p.grad = torch.zeros_like(p)
        return
    row = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in live])
    comm.all_reduce(row, average=True)
    for p, piece in zip(live, row.split([p.numel() for p in live])):
        p.grad = piece.view(p.shape)
""", 'none with .grad on rank 1'),
    Wrong('full is closed', 'reduce_overlapped', """
def buckets_of(numels, limit):
    buckets, size = [[]], 0
    for layer in reversed(range(len(numels))):
        if buckets[-1] and (size + numels[layer] > limit or size >= limit):
            buckets.append([])
            size = 0
        buckets[-1].append(layer)
        size += numels[layer]
    return buckets if numels else []

def reduce_overlapped(comm, numels, backward, limit):
    buckets = buckets_of(numels, limit)
    rows = [torch.zeros(sum(numels[l] for l in b)) for b in buckets]
    place = {}
    for b, row in zip(buckets, rows):
        for l, piece in zip(b, row.split([numels[l] for l in b])):
            place[l] = piece
    handles = []
    def launch_down_to(layer):
        while len(handles) < len(buckets) and buckets[len(handles)][-1] >= layer:
            handles.append(comm.all_reduce_async(rows[len(handles)], average=True))
    for layer, gradient in backward:
        launch_down_to(layer + 1)
        place[layer].copy_(gradient)
        launch_down_to(layer)
    launch_down_to(0)
    for h in handles:
        h.wait()
    return [place[l] for l in range(len(numels))]
""", 'not even a full one'),
]  # fmt: skip
