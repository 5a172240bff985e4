"""Right answers to the exercises of lesson 03 on rows, in other styles than the model's."""

from zoo.right.answer import Right

RIGHT = [
    Right("heap", "whole_tensors", """
import heapq
def whole_tensors(numels, ranks):
    loads = [(0, rank) for rank in range(ranks)]
    owners = [None] * len(numels)
    for minus, number in sorted((-numel, number) for number, numel in enumerate(numels)):
        load, rank = heapq.heappop(loads)
        owners[number] = rank
        heapq.heappush(loads, (load - minus, rank))
    return owners, max(load for load, _ in loads) * 8
"""),
    Right("min of ranks", "whole_tensors", """
def whole_tensors(numels, ranks):
    held = dict.fromkeys(range(ranks), 0)
    owners = {}
    for number, numel in sorted(enumerate(numels), key=lambda pair: pair[1], reverse=True):
        owners[number] = min(held, key=held.get)
        held[owners[number]] += numel
    return [owners[number] for number in range(len(numels))], 2 * 4 * max(held.values())
"""),
    Right("tensors", "whole_tensors", """
def whole_tensors(numels, ranks):
    held = torch.zeros(ranks, dtype=torch.int64)
    owners = torch.zeros(len(numels), dtype=torch.int64)
    for number in torch.tensor(numels, dtype=torch.int64).argsort(descending=True, stable=True).tolist():
        rank = min(range(ranks), key=lambda r: (int(held[r]), r))
        owners[number] = rank
        held[rank] += numels[number]
    return owners.tolist(), int(held.max()) * 8
"""),
    Right("class", "whole_tensors", """
class Rank:
    def __init__(self, number):
        self.number, self.tensors = number, []
    def load(self, numels):
        return sum(numels[tensor] for tensor in self.tensors)
def whole_tensors(numels, ranks):
    everybody = [Rank(number) for number in range(ranks)]
    left = list(range(len(numels)))
    while left:
        largest = max(left, key=lambda number: (numels[number], -number))
        left.remove(largest)
        min(everybody, key=lambda rank: rank.load(numels)).tensors.append(largest)
    owners = [next(r.number for r in everybody if n in r.tensors) for n in range(len(numels))]
    return owners, max(8 * rank.load(numels) for rank in everybody)
"""),
    Right("a gathered row copied", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    part = torch.nn.Parameter(row.tensor_split(comm.size)[comm.rank].clone())
    optimizer, whole = adam(part), row.clone()
    for _ in range(steps):
        g = gradient(whole)
        part.grad = comm.reduce_scatter(g, average=True)
        optimizer.step()
        whole.copy_(comm.all_gather(part.detach(), row.numel()))
    return whole
"""),
    Right("clone out of place", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    whole = row.clone()
    part = whole.tensor_split(comm.size)[comm.rank].clone()
    optimizer = adam(part)
    for _ in range(steps):
        g = gradient(whole)
        part.grad = comm.reduce_scatter(g.clone(), average=True)
        optimizer.step()
        whole = comm.all_gather(part, row.numel())
    return whole
"""),
    Right("view in place", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    for _ in range(steps):
        g = gradient(row)
        shard.grad = comm.reduce_scatter(g) / comm.size
        optimizer.step()
        comm.all_gather(shard, out=row)
    return row
"""),
    Right("handles", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    mine = torch.nn.Parameter(row.detach().tensor_split(comm.size)[comm.rank].clone())
    opt = adam(mine)
    result = torch.clone(row)
    while steps:
        steps -= 1
        mine.grad = comm.reduce_scatter_async(gradient(result), average=True).wait()
        opt.step()
        opt.zero_grad()
        comm.all_gather_async(mine.data, out=result).wait()
    return result
"""),
    Right("trainer class", "train_sharded", """
class Trainer:
    def __init__(self, comm, row):
        self.comm, self.row = comm, row.clone()
        self.shard = self.row.tensor_split(comm.size)[comm.rank]
        self.optimizer = adam(self.shard)
        self.mean = torch.empty_like(self.shard)
    def step(self, gradient):
        self.comm.reduce_scatter(gradient(self.row), average=True, out=self.mean)
        self.shard.grad = self.mean
        self.optimizer.step()
        self.comm.all_gather(self.shard, out=self.row)
def train_sharded(comm, row, gradient, steps):
    trainer = Trainer(comm, row)
    for _ in range(steps):
        trainer.step(gradient)
    return trainer.row
"""),
    Right("copy back", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    result = row.clone()
    lengths = [len(c) for c in row.tensor_split(comm.size)]
    start = sum(lengths[:comm.rank])
    part = row[start:start + lengths[comm.rank]].clone()
    optimizer = adam(part)
    for _ in range(steps):
        g = gradient(result)
        copy = torch.empty_like(g).copy_(g)
        part.grad = comm.reduce_scatter(copy).div_(comm.size)
        optimizer.step()
        result[:] = comm.all_gather(part, row.numel())
        part.grad = None
    return result
"""),
    Right("reduces in place", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    for _ in range(steps):
        g = gradient(row)
        mine = g.tensor_split(comm.size)[comm.rank]
        shard.grad = comm.reduce_scatter(g, average=True, out=mine)
        optimizer.step()
        comm.all_gather(shard, out=row)
    return row
"""),
    Right("parts of their own", "train_grouped", """
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
    Right("bounds", "train_grouped", """
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
    Right("gather each", "train_grouped", """
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
    Right("empties too", "train_grouped", """
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
    Right("parameters cat", "train_grouped", """
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
    Right("pieces in the class, by instance", "MendedOptimizer", """
import torch
class MendedOptimizer:
    pieces = {}
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, list(parameters)
        self.numel = sum(p.numel() for p in self.parameters)
        self.pieces[id(self)] = self._row(self.parameters).tensor_split(comm.size)[comm.rank].clone()
        self.optimizer = make(self.pieces[id(self)])
    def _row(self, tensors):
        return torch.cat([t.detach().reshape(-1) for t in tensors])
    @torch.no_grad()
    def step(self):
        row = self._row([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])
        self.pieces[id(self)].grad = self.comm.reduce_scatter(row, average=True)
        self.optimizer.step()
        self.pieces[id(self)].grad = None
        whole = self.comm.all_gather(self.pieces[id(self)], self.numel)
        for p, new in zip(self.parameters, whole.split([p.numel() for p in self.parameters])):
            p.copy_(new.view(p.shape))
"""),
    Right("pieces in the module, by instance", "MendedOptimizer", """
import torch
PIECES = {}
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, list(parameters)
        self.numel = sum(p.numel() for p in self.parameters)
        PIECES[self] = self._row(self.parameters).tensor_split(comm.size)[comm.rank].clone()
        self.optimizer = make(PIECES[self])
    def _row(self, tensors):
        return torch.cat([t.detach().reshape(-1) for t in tensors])
    @torch.no_grad()
    def step(self):
        row = self._row([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])
        PIECES[self].grad = self.comm.reduce_scatter(row, average=True)
        self.optimizer.step()
        PIECES[self].grad = None
        whole = self.comm.all_gather(PIECES[self], self.numel)
        for p, new in zip(self.parameters, whole.split([p.numel() for p in self.parameters])):
            p.copy_(new.view(p.shape))
"""),
]  # fmt: skip
