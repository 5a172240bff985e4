"""Answers to `MendedOptimizer` of lesson 03 that are right, each in a style of its own."""

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
