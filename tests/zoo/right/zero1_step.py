"""Right answers to the exercises of lesson 03 that arrange a step: overlapped, mended, and its cost."""

from zoo.right.answer import Right

RIGHT = [
    Right("all reduces first", "step_overlapped", """
def step_overlapped(comm, rows, gradients, update):
    reductions = [comm.reduce_scatter_async(g, average=True) for g in gradients]
    results, gathers = [], []
    for row, reduction in zip(rows, reductions):
        whole = row.clone()
        shard = whole.tensor_split(comm.size)[comm.rank]
        update(shard, reduction.wait())
        gathers.append(comm.all_gather_async(shard, out=whole))
        results.append(whole)
    for gather in gathers:
        gather.wait()
    return results
"""),
    Right("one ahead", "step_overlapped", """
def step_overlapped(comm, rows, gradients, update):
    n = len(rows)
    ahead = comm.reduce_scatter_async(gradients[0], average=True)
    gathers = []
    for i in range(n):
        mean = ahead.wait()
        if i + 1 < n:
            ahead = comm.reduce_scatter_async(gradients[i + 1], average=True)
        shard = rows[i].tensor_split(comm.size)[comm.rank].clone()
        update(shard, mean)
        gathers.append(comm.all_gather_async(shard, rows[i].numel()))
    return [gather.wait() for gather in gathers]
"""),
    Right("class of bucket", "step_overlapped", """
class Travelling:
    def __init__(self, comm, row, gradient):
        self.comm, self.whole = comm, torch.clone(row)
        self.reduction = comm.reduce_scatter_async(gradient)
    def step(self, update):
        shard = torch.tensor_split(self.whole, self.comm.size)[self.comm.rank]
        update(shard, self.reduction.wait().div_(self.comm.size))
        self.gather = self.comm.all_gather_async(shard, out=self.whole)
    def result(self):
        return self.gather.wait()
def step_overlapped(comm, rows, gradients, update):
    under_way = [Travelling(comm, row, gradient) for row, gradient in zip(rows, gradients)]
    for bucket in under_way:
        bucket.step(update)
    return [bucket.result() for bucket in under_way]
"""),
    Right("closures", "step_overlapped", """
def step_overlapped(comm, rows, gradients, update):
    def reduce(i):
        return comm.reduce_scatter_async(gradients[i].clone(), average=True)
    def finish(i, handle):
        part = rows[i].tensor_split(comm.size)[comm.rank].clone()
        mean = handle.wait()
        following = reduce(i + 1) if i + 1 < len(rows) else None
        update(part, mean)
        return comm.all_gather_async(part, rows[i].numel()), following
    gathers, handle = [], reduce(0) if rows else None
    for i in range(len(rows)):
        gather, handle = finish(i, handle)
        gathers.append(gather)
    return [g.wait() for g in gathers]
"""),
    Right("two ahead", "step_overlapped", """
def step_overlapped(comm, rows, gradients, update):
    waiting = []
    todo = iter(gradients)
    def more():
        for g in todo:
            waiting.append(comm.reduce_scatter_async(g, average=True))
            return
    more()
    more()
    gathers, results = [], [row.clone() for row in rows]
    for whole in results:
        shard = whole.tensor_split(comm.size)[comm.rank]
        mean = waiting.pop(0).wait()
        more()
        update(shard, mean)
        gathers.append(comm.all_gather_async(shard, out=whole))
    [g.wait() for g in gathers]
    return results
"""),
    Right("shard only", "MendedOptimizer", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm = comm
        self.parameters = list(parameters)
        self.numel = sum(p.numel() for p in self.parameters)
        row = torch.cat([p.detach().flatten() for p in self.parameters])
        self.shard = row.tensor_split(comm.size)[comm.rank].clone()
        self.optimizer = make(self.shard)
    def step(self):
        row = torch.cat([p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in self.parameters])
        self.shard.grad = self.comm.reduce_scatter(row, average=True)
        del row
        self.optimizer.step()
        self.shard.grad = None
        whole = self.comm.all_gather(self.shard, self.numel)
        at = 0
        with torch.no_grad():
            for p in self.parameters:
                p.copy_(whole[at:at + p.numel()].view(p.shape))
                at += p.numel()
"""),
    Right("per tensor padded", "MendedOptimizer", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.shards = [p.detach().reshape(-1).tensor_split(comm.size)[comm.rank].clone() for p in parameters]
        self.optimizers = [make(s) for s in self.shards]
    @torch.no_grad()
    def step(self):
        for p, shard, optimizer in zip(self.parameters, self.shards, self.optimizers):
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            shard.grad = self.comm.reduce_scatter(gradient.reshape(-1), average=True)
            optimizer.step()
            p.copy_(self.comm.all_gather(shard, p.numel()).view_as(p))
"""),
    Right("all reduce row", "MendedOptimizer", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.sizes = [p.numel() for p in parameters]
        flat = self.flat([p.data for p in parameters])
        self.mine = torch.nn.Parameter(flat.tensor_split(comm.size)[comm.rank].clone())
        self.optimizer = make(self.mine)
    @staticmethod
    def flat(tensors):
        return torch.cat([t.contiguous().view(-1) for t in tensors])
    def step(self):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        mean = self.comm.all_reduce(self.flat(gradients), average=True)
        self.mine.grad = mean.tensor_split(self.comm.size)[self.comm.rank].clone()
        self.optimizer.step()
        row = self.comm.all_gather(self.mine.data, sum(self.sizes))
        for p, piece in zip(self.parameters, row.split(self.sizes)):
            p.data.copy_(piece.reshape(p.shape))
"""),
    Right("row of zeros filled", "MendedOptimizer", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm = comm
        self.places, end = [], 0
        for parameter in parameters:
            self.places.append((parameter, slice(end, end + parameter.numel())))
            end += parameter.numel()
        self.numel, self.dtype = end, parameters[0].dtype
        self.piece = self.fill(lambda parameter: parameter.detach()).tensor_split(comm.size)[comm.rank].clone()
        self.optimizer = make(self.piece)
    def fill(self, of):
        row = torch.zeros(self.numel, dtype=self.dtype)
        for parameter, place in self.places:
            tensor = of(parameter)
            if tensor is not None:
                row[place] = tensor.reshape(-1)
        return row
    def step(self):
        self.piece.grad = self.comm.reduce_scatter(self.fill(lambda parameter: parameter.grad), average=True)
        self.optimizer.step()
        self.optimizer.zero_grad()
        row = self.comm.all_gather(self.piece, self.numel)
        for parameter, place in self.places:
            parameter.data.copy_(row[place].view(parameter.shape))
"""),
    Right("plain", "step_bytes", """
def step_bytes(numel, ranks, way):
    one = numel * 4 // ranks * (ranks - 1)
    return {"stage 0": 2, "stage 1, all-reduce": 3, "stage 1, reduce-scatter": 2}[way] * one
"""),
    Right("conditional", "step_bytes", """
def step_bytes(numel, ranks, way):
    passes = 3 if way == "stage 1, all-reduce" else 2
    return passes * (ranks - 1) * (numel // ranks) * 4
"""),
    Right("match", "step_bytes", """
def step_bytes(numel, ranks, way):
    gather = reduce_scatter = (ranks - 1) * numel * 4 // ranks
    all_reduce = reduce_scatter + gather
    match way:
        case "stage 0":
            return all_reduce
        case "stage 1, all-reduce":
            return all_reduce + gather
        case _:
            return reduce_scatter + gather
"""),
    Right("ring loop", "step_bytes", """
def step_bytes(numel, ranks, way):
    chunk = 4 * numel // ranks
    sent = 0
    for _ in range(2 + way.endswith("all-reduce")):
        for _ in range(ranks - 1):
            sent += chunk
    return sent
"""),
]  # fmt: skip
