"""Right answers to the exercises of lesson 03, written from their texts alone."""

from zoo.right.answer import Right

RIGHT = [
    Right("recursion", "whole_tensors", """
def whole_tensors(numels, ranks):
    def share(left, loads, owner):
        if not left:
            return owner, loads
        at = max(left, key=lambda i: (numels[i], -i))
        to = loads.index(min(loads))
        loads = loads[:to] + [loads[to] + numels[at]] + loads[to + 1:]
        return share([i for i in left if i != at], loads, {**owner, at: to})
    owner, loads = share(list(range(len(numels))), [0] * ranks, {})
    return [owner[i] for i in range(len(numels))], max(loads) * 8
"""),
    Right("in place in the gradient", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    whole = row.detach().clone()
    mine = whole.tensor_split(comm.size)[comm.rank]
    optimizer = adam(mine)
    for _ in range(steps):
        slope = gradient(whole)
        part = slope.tensor_split(comm.size)[comm.rank]
        comm.reduce_scatter(slope, out=part)
        mine.grad = part.div_(comm.size)
        optimizer.step()
        mine.grad = None
        del slope, part
        comm.all_gather(mine, out=whole)
    return whole
"""),
    Right("a generator of rows, divided before", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    def rows():
        shard = row.tensor_split(comm.size)[comm.rank].clone()
        optimizer = adam(shard)
        at = row
        while True:
            slope = gradient(at).div_(comm.size)
            del at
            shard.grad = comm.reduce_scatter(slope)
            del slope
            optimizer.step()
            at = comm.all_gather(shard, numel=len(row))
            yield at
    trained = row.clone()
    for _, trained in zip(range(steps), rows()):
        pass
    return trained
"""),
    Right("asynchronous forms, a class", "train_sharded", """
class Trainer:
    def __init__(self, comm, row):
        self.comm, self.row = comm, row.clone()
        self.part = torch.chunk(self.row, 1)[0].tensor_split(comm.size)[comm.rank]
        self.optimizer = adam(self.part)

    def step(self, gradient):
        self.part.grad = self.comm.reduce_scatter_async(gradient(self.row), average=True).wait()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.comm.all_gather_async(self.part, out=self.row).wait()


def train_sharded(comm, row, gradient, steps):
    trainer = Trainer(comm, row)
    [trainer.step(gradient) for _ in range(steps)]
    return trainer.row
"""),
    Right("a generator of updated shards, divided by hand", "step_overlapped", """
def step_overlapped(comm, rows, gradients, update):
    def updated():
        handles = {}
        for i in range(len(rows)):
            for j in (i, i + 1):
                if j < len(rows) and j not in handles:
                    handles[j] = comm.reduce_scatter_async(gradients[j].clone())
            shard = torch.tensor_split(rows[i], comm.size)[comm.rank].clone()
            update(shard, handles[i].wait() / comm.size)
            yield shard
    gathers = []
    for row, shard in zip(rows, updated()):
        gathers.append(comm.all_gather_async(shard, numel=row.numel()))
    return list(map(lambda handle: handle.wait(), gathers))
"""),
    Right("copies of parts, joined", "train_grouped", """
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
    Right("a class, gathers each step, empty parts too", "train_grouped", """
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
    Right("pieces read from the parameters each step", "MendedOptimizer", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm = comm
        self.pairs = [(p, torch.empty_like(self.part(comm, p.detach()))) for p in parameters]
        self.optimizers = [make(piece) for _, piece in self.pairs]

    @staticmethod
    def part(comm, tensor):
        return tensor.flatten().tensor_split(comm.size)[comm.rank]

    @torch.no_grad()
    def step(self):
        for (p, piece), optimizer in zip(self.pairs, self.optimizers):
            piece.copy_(self.part(self.comm, p))
            mean = torch.zeros(p.shape, dtype=p.dtype)
            if p.grad is not None:
                mean += p.grad
            self.comm.all_reduce(mean, average=True)
            piece.grad = self.part(self.comm, mean)
            optimizer.step()
            piece.grad = None
            p.copy_(self.comm.all_gather(piece, p.numel()).view_as(p))
"""),
    Right("fractions and match", "step_bytes", """
from fractions import Fraction
def step_bytes(numel, ranks, way):
    once = 4 * numel * Fraction(ranks - 1, ranks)
    match way:
        case "stage 1, all-reduce":
            total = once + once + once
        case _:
            total = once + once
    return int(total)
"""),
]  # fmt: skip
