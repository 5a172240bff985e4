"""Answers to `train_grouped` of lesson 03, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("parts of their own", """
def train_grouped(comm, row, gradients, groups):
    cuts = [0]
    for chunk in row.tensor_split(comm.size):
        cuts.append(cuts[-1] + chunk.numel())
    low, high = cuts[comm.rank : comm.rank + 2]
    jobs = []
    for start, stop, decay in groups:
        start, stop = max(start, low), min(stop, high)
        if start < stop:
            part = row[start:stop].clone()
            jobs.append((slice(start - low, stop - low), part, adam(part, decay)))
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for where, part, optimizer in jobs:
            part.grad = mean[where].clone()
            optimizer.step()
    mine = torch.cat([part for _, part, _ in jobs]) if jobs else row[:0].clone()
    return comm.all_gather(mine, row.numel())
"""),
    Right("bounds", """
def train_grouped(comm, row, gradients, groups):
    sizes = [len(part) for part in row.tensor_split(comm.size)]
    low = sum(sizes[:comm.rank])
    high = low + sizes[comm.rank]
    shard = row[low:high].clone()
    parts = []
    for start, stop, decay in groups:
        a, b = max(start, low) - low, min(stop, high) - low
        if a < b:
            parts.append((a, b, adam(shard[a:b], decay)))
    optimizers = [(o.param_groups[0]["params"][0], a, b, o) for a, b, o in parts]
    for g in gradients:
        mean = comm.reduce_scatter(g, average=True)
        for p, a, b, o in optimizers:
            p.grad = mean[a:b]
            o.step()
    return comm.all_gather(shard, row.numel())
"""),
    Right("gather each", """
def train_grouped(comm, row, gradients, groups):
    whole = row.clone()
    shard = whole.tensor_split(comm.size)[comm.rank]
    first = shard.storage_offset()
    pieces = []
    for start, stop, decay in groups:
        a = min(max(start - first, 0), len(shard))
        b = min(max(stop - first, 0), len(shard))
        if b > a:
            piece = shard[a:b]
            pieces.append((piece, slice(a, b), adam(piece, weight_decay=decay)))
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for piece, place, optimizer in pieces:
            piece.grad = mean[place]
            optimizer.step()
            optimizer.zero_grad()
        comm.all_gather(shard, out=whole)
    return whole
"""),
    Right("empties too", """
class Part:
    def __init__(self, shard, a, b, decay):
        self.range = a, b
        self.values = shard[a:b]
        self.optimizer = adam(self.values, decay)
    def step(self, mean):
        self.values.grad = mean[self.range[0]:self.range[1]].clone()
        self.optimizer.step()
def train_grouped(comm, row, gradients, groups):
    index = torch.arange(row.numel()).tensor_split(comm.size)[comm.rank]
    shard = row.tensor_split(comm.size)[comm.rank].clone()
    parts = []
    for start, stop, decay in groups:
        inside = ((index >= start) & (index < stop)).nonzero().flatten().tolist()
        if inside:
            parts.append(Part(shard, inside[0], inside[-1] + 1, decay))
    for g in gradients:
        mean = comm.reduce_scatter(g) / comm.size
        for part in parts:
            part.step(mean)
    return comm.all_gather(shard, numel=row.numel())
"""),
    Right("parameters cat", """
def train_grouped(comm, row, gradients, groups):
    chunks = row.tensor_split(comm.size)
    low = sum(c.numel() for c in chunks[:comm.rank])
    high = low + chunks[comm.rank].numel()
    mine = [(max(s, low), min(e, high), d) for s, e, d in groups if max(s, low) < min(e, high)]
    parameters = [torch.nn.Parameter(row[s:e].clone()) for s, e, _ in mine]
    optimizers = [adam(p, d) for p, (_, _, d) in zip(parameters, mine)]
    for g in gradients:
        mean = comm.reduce_scatter(g, average=True).split([p.numel() for p in parameters] or 1)
        for p, m, o in zip(parameters, mean, optimizers):
            p.grad = m
            o.step()
            p.grad = None
    shard = torch.cat([p.detach() for p in parameters]) if parameters else chunks[comm.rank].clone()
    return comm.all_gather(shard, out=torch.empty_like(row))
"""),
    # Generators, queues of handles, parameter groups, lists.
    Right("param groups", """
def train_grouped(comm, row, gradients, groups):
    whole = row.clone()
    shard = whole.tensor_split(comm.size)[comm.rank]
    first = sum(len(part) for part in whole.tensor_split(comm.size)[: comm.rank])
    optimizer, parts = None, []
    for start, stop, weight_decay in groups:
        a, b = max(start - first, 0), min(stop - first, len(shard))
        if a >= b:
            continue
        part = shard[a:b]
        parts.append((part, a, b))
        if optimizer is None:
            optimizer = adam(part, weight_decay)
        else:
            optimizer.add_param_group({"params": [part], "weight_decay": weight_decay})
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for part, a, b in parts:
            part.grad = mean[a:b]
        if optimizer is not None:
            optimizer.step()
        comm.all_gather(shard, out=whole)
    return whole
"""),
    Right("masks", """
def train_grouped(comm, row, gradients, groups):
    mine = torch.arange(row.numel()).tensor_split(comm.size)[comm.rank].tolist()
    places = [[i for i in mine if start <= i < stop] for start, stop, _ in groups]
    parts = [torch.nn.Parameter(row[p].clone()) for p in places]
    optimizers = [adam(part, decay) for part, (_, _, decay) in zip(parts, groups)]
    for g in gradients:
        mean = comm.reduce_scatter(g, average=True)
        for p, part, optimizer in zip(places, parts, optimizers):
            part.grad = mean[[i - mine[0] for i in p]] if p else torch.zeros_like(part)
            optimizer.step()
    shard = torch.cat([part.detach() for part in parts])
    return comm.all_gather(shard, row.numel())
"""),
    # Written from the text alone.
    Right("copies of parts, joined", """
from bisect import bisect_left
def train_grouped(comm, row, gradients, groups):
    places = torch.arange(row.numel()).tensor_split(comm.size)[comm.rank].tolist()
    cuts = [(bisect_left(places, a), bisect_left(places, b), decay) for a, b, decay in groups]
    mine = row.tensor_split(comm.size)[comm.rank]
    parts = [torch.nn.Parameter(mine[a:b].clone()) for a, b, _ in cuts]
    optimizers = [adam(part, decay) if part.numel() else None for part, (_, _, decay) in zip(parts, cuts)]
    whole = row.clone()
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for part, optimizer, (a, b, _) in zip(parts, optimizers, cuts):
            if optimizer:
                part.grad = mean[a:b].clone()
                optimizer.step()
                optimizer.zero_grad()
        del mean
        if parts:
            comm.all_gather(torch.cat([part.detach() for part in parts]), out=whole)
    return whole
"""),
    Right("a class, gathers each step, empty parts too", """
class Part:
    def __init__(self, whole, begin, end, decay):
        self.begin, self.end = begin, max(begin, end)
        self.tensor = whole[self.begin:self.end]
        self.optimizer = adam(self.tensor, decay)

    def step(self, mean):
        self.tensor.grad = mean[self.begin:self.end]
        self.optimizer.step()
        self.tensor.grad = None


def train_grouped(comm, row, gradients, groups):
    new = row.clone()
    shard = new.tensor_split(comm.size)[comm.rank]
    low = shard.storage_offset()
    parts = [Part(shard, min(max(a - low, 0), len(shard)), min(b - low, len(shard)), decay) for a, b, decay in groups]
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for part in reversed(parts):
            part.step(mean)
        comm.all_gather(shard, out=new)
    return new
"""),
]  # fmt: skip
