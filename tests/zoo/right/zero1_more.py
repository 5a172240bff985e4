"""More right answers to the exercises of lesson 03: generators, queues of handles, parameter groups, lists."""

from zoo.right.answer import Right

RIGHT = [
    Right("stable pairs", "whole_tensors", """
def whole_tensors(numels, ranks):
    queue = [[numel, number] for number, numel in enumerate(numels)]
    queue.sort(key=lambda item: item[0], reverse=True)
    load = {rank: 0 for rank in range(ranks)}
    save = [-1] * len(queue)
    while queue:
        numel, number = queue.pop(0)
        rank = sorted(load, key=lambda r: (load[r], r))[0]
        save[number] = rank
        load[rank] += numel
    return save, 2 * 4 * max(load.values())
"""),
    Right("tuple result", "whole_tensors", """
def whole_tensors(numels, ranks):
    loads, owner = torch.zeros(ranks, dtype=torch.long), {}
    for number in sorted(range(len(numels)), key=lambda i: (-numels[i], i)):
        owner[number] = int((loads == loads.min()).nonzero()[0])
        loads[owner[number]] += numels[number]
    return tuple(owner[i] for i in range(len(numels))), int(loads.max()) * 8
"""),
    Right("generator steps", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    def train(whole):
        shard = torch.nn.Parameter(whole.tensor_split(comm.size)[comm.rank].detach().clone())
        save = adam(shard)
        for _ in range(steps):
            save.zero_grad()
            shard.grad = comm.reduce_scatter(gradient(whole), average=True)
            save.step()
            with torch.no_grad():
                whole = comm.all_gather(shard.detach(), numel=whole.numel())
            yield whole
    for row in train(row):
        pass
    return row.clone()
"""),
    Right("async both", "train_sharded", """
def train_sharded(comm, row, gradient, steps):
    whole = torch.empty_like(row).copy_(row)
    low = sum(len(part) for part in row.tensor_split(comm.size)[: comm.rank])
    shard = whole[low : low + len(row.tensor_split(comm.size)[comm.rank])]
    optimizer = adam(shard)
    mean = torch.empty_like(shard)
    while steps > 0:
        g = gradient(whole)
        comm.reduce_scatter_async(g, out=mean).wait()
        del g
        shard.grad = mean.div_(comm.size)
        optimizer.step()
        comm.all_gather_async(shard, out=whole).wait()
        steps -= 1
    return whole
"""),
    Right("queue class", "step_overlapped", """
class Queue:
    def __init__(self, comm):
        self.comm, self.load = comm, []
    def put(self, handle):
        self.load.append(handle)
    def empty(self):
        return [handle.wait() for handle in self.load]
def step_overlapped(comm, rows, gradients, update):
    incoming, outgoing = [], Queue(comm)
    for gradient in gradients:
        incoming.append(comm.reduce_scatter_async(gradient, average=True))
    for row, handle in zip(rows, incoming):
        part = torch.tensor_split(row, comm.size)[comm.rank].clone()
        update(part, handle.wait())
        outgoing.put(comm.all_gather_async(part, numel=row.numel()))
    return outgoing.empty()
"""),
    Right("reversed buckets", "step_overlapped", """
def step_overlapped(comm, rows, gradients, update):
    order = list(reversed(range(len(rows))))
    wholes = {i: rows[i].clone() for i in order}
    reduced = {i: comm.reduce_scatter_async(gradients[i], average=True) for i in order}
    gathered = {}
    for i in order:
        shard = wholes[i].tensor_split(comm.size)[comm.rank]
        update(shard, reduced.pop(i).wait())
        gathered[i] = comm.all_gather_async(shard, out=wholes[i])
    return [gathered[i].wait() for i in range(len(rows))]
"""),
    Right("param groups", "train_grouped", """
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
    Right("masks", "train_grouped", """
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
    Right("split per tensor async", "MendedOptimizer", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm = comm
        self.jobs = []
        for parameter in parameters:
            piece = parameter.detach().clone().reshape(-1).tensor_split(comm.size)[comm.rank].clone()
            self.jobs.append((parameter, piece, make(piece) if piece.numel() else None))
    def step(self):
        handles = []
        for parameter, _, _ in self.jobs:
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            handles.append(self.comm.reduce_scatter_async(grad.detach().flatten(), average=True))
        gathers = []
        for (parameter, piece, optimizer), handle in zip(self.jobs, handles):
            piece.grad = handle.wait()
            if optimizer is not None:
                optimizer.step()
            piece.grad = None
            gathers.append(self.comm.all_gather_async(piece, parameter.numel()))
        for (parameter, _, _), gather in zip(self.jobs, gathers):
            parameter.data.copy_(gather.wait().reshape(parameter.shape))
"""),
    Right("overlapping slices", "MendedOptimizer", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.total = sum(p.numel() for p in parameters)
        lengths = [len(part) for part in torch.empty(self.total).tensor_split(comm.size)]
        low = sum(lengths[: comm.rank])
        high, at, pieces = low + lengths[comm.rank], 0, []
        for p in parameters:
            a, b = max(low, at), min(high, at + p.numel())
            if a < b:
                pieces.append(p.detach().reshape(-1)[a - at : b - at])
            at += p.numel()
        self.mine = torch.cat(pieces) if pieces else parameters[0].detach().new_empty(0)
        self.save = make(self.mine)
    @torch.no_grad()
    def step(self):
        row = torch.cat([(p * 0 if p.grad is None else p.grad).reshape(-1) for p in self.parameters])
        self.mine.grad = self.comm.reduce_scatter(row, average=True)
        self.save.step()
        row = self.comm.all_gather(self.mine, self.total)
        for p in self.parameters:
            p.copy_(row[: p.numel()].view(p.shape))
            row = row[p.numel():]
"""),
    Right("by chunks", "step_bytes", """
def step_bytes(numel, ranks, way):
    from collections import Counter
    calls = Counter(["reduce_scatter", "all_gather"] + ["all_gather"] * (way == "stage 1, all-reduce"))
    return sum(times * (ranks - 1) * (4 * numel // ranks) for times in calls.values())
"""),
]  # fmt: skip
