"""Answers to `train_grouped` of lesson 03 that are right, each in a style of its own."""

from zoo.answers import Right

RIGHT = [
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
]  # fmt: skip
