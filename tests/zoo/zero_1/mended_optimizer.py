"""Answers to `MendedOptimizer` of lesson 03, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("pieces in the class, by instance", """
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
    Right("pieces in the module, by instance", """
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
    Right("shard only", """
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
    Right("per tensor padded", """
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
    Right("all reduce row", """
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
    Right("row of zeros filled", """
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
    # Generators, queues of handles, parameter groups, lists.
    Right("split per tensor async", """
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
    Right("overlapping slices", """
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
    # Written from the text alone.
    Right("pieces read from the parameters each step", """
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
]  # fmt: skip
