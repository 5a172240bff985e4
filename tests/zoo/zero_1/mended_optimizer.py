"""Answers to `MendedOptimizer` of lesson 03, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed

MENDED = """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters, self.make = comm, parameters, make
        self.numels = [parameter.numel() for parameter in parameters]
        row = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.shard = row.tensor_split(comm.size)[comm.rank].clone()
        self.optimizer = make(self.shard)

    @torch.no_grad()
    def step(self):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        row = torch.cat([gradient.flatten() for gradient in gradients])
        self.shard.grad = self.comm.reduce_scatter(row, average=True)
        self.optimizer.step()
        self.shard.grad = None
        row = self.comm.all_gather(self.shard, sum(self.numels))
        for parameter, part in zip(self.parameters, row.split(self.numels), strict=True):
            parameter.copy_(part.view_as(parameter))
"""
# Whole tensors, each with one owner; right, but for what it keeps. OWNERS says who owns which.
WHOLE_TENSORS = """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.owners = OWNERS
        mine = [parameter for parameter, owner in zip(parameters, self.owners) if owner == comm.rank]
        self.optimizer = None
        for parameter in mine:
            if self.optimizer is None:
                self.optimizer = make(parameter)
            else:
                self.optimizer.add_param_group({"params": [parameter]})

    @torch.no_grad()
    def step(self):
        kept = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            mean = torch.zeros(parameter.shape, dtype=parameter.dtype)
            if parameter.grad is not None:
                mean += parameter.grad
            parameter.grad = torch.empty_like(parameter).copy_(self.comm.all_reduce(mean, average=True))
        if self.optimizer:
            self.optimizer.step()
        for parameter, owner, gradient in zip(self.parameters, self.owners, kept):
            parameter.grad = gradient
            if owner is not None:
                parameter.copy_(self.comm.broadcast(parameter.clone(memory_format=torch.contiguous_format), src=owner))
"""

WRONG = [
    blank("MendedOptimizer", "class MendedOptimizer:\n"),
    Wrong("the sketch itself", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm = comm
        each = len(parameters) // comm.size
        self.mine = parameters[comm.rank * each : (comm.rank + 1) * each]
        self.optimizer = make(self.mine[0])

    @torch.no_grad()
    def step(self):
        for parameter in self.mine:
            self.comm.all_reduce(parameter.grad)
        self.optimizer.step()
        for parameter in self.mine:
            self.comm.broadcast(parameter.data, src=self.comm.rank)
""", "all ranks must name the same src"),
    Wrong("only drops the remainder",
          changed(WHOLE_TENSORS,
                  "OWNERS",
                  """[
            index // (len(parameters) // comm.size) if index < len(parameters) // comm.size * comm.size else None
            for index in range(len(parameters))
        ]"""),
          "no rank owns them"),
    Wrong("only splits by tensor count",
          changed(WHOLE_TENSORS,
                  "OWNERS",
                  "[index * comm.size // len(parameters) for index in range(len(parameters))]"),
          "cut through tensors"),
    Wrong("only reduces different tensors with each other",
          changed(MENDED,
                  "reduce_scatter(row",
                  "all_reduce(row.tensor_split(self.comm.size)[self.comm.rank].clone()"),
          "the ranks part ways"),
    Wrong("only reduces different elements of equal number with each other",
          changed(MENDED,
                  "self.shard.grad = self.comm.reduce_scatter(row, average=True)",
                  "each = -(-row.numel() // self.comm.size)\n"
                  "        padded = torch.nn.functional.pad(row, (0, each * self.comm.size - row.numel()))\n"
                  "        piece = padded.view(self.comm.size, each)[self.comm.rank].clone()\n"
                  "        self.shard.grad = self.comm.all_reduce(piece, average=True)[: self.shard.numel()]"),
          "gradients of different elements"),
    Wrong("only never averages",
          changed(MENDED, "row, average=True", "row"),
          "take their mean"),
    Wrong("averages twice",
          changed(MENDED, "(row, average=True)", "(row, average=True) / self.comm.size"),
          "divided by N twice"),
    Wrong("own gradients",
          changed(MENDED,
                  "self.comm.reduce_scatter(row, average=True)",
                  "row.tensor_split(self.comm.size)[self.comm.rank].clone()"),
          "without those of the other ranks"),
    Wrong("does not copy back",
          changed(MENDED, "parameter.copy_(part.view_as(parameter))", "pass"),
          "every tensor as it began"),
    Wrong("puts new tensors into the list",
          changed(MENDED,
                  "parameter.copy_(part.view_as(parameter))",
                  "self.parameters = [*self.parameters[1:], torch.nn.Parameter(part.view_as(parameter).clone())]"),
          "as it began"),
    Wrong("does not gather",
          changed(MENDED,
                  "self.comm.all_gather(self.shard, sum(self.numels))",
                  "torch.cat([parameter.flatten() for parameter in self.parameters])\n"
                  "        row.tensor_split(self.comm.size)[self.comm.rank].copy_(self.shard)"),
          "the other ranks' pieces as they began"),
    Wrong("a new optimizer in each step",
          changed(MENDED,
                  "self.optimizer.step()",
                  "self.optimizer = self.make(self.shard)\n        self.optimizer.step()"),
          "make it once"),
    Wrong("optimizes everything", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.row = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.optimizer = make(self.row)

    @torch.no_grad()
    def step(self):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.row.grad = self.comm.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]), average=True)
        self.optimizer.step()
        parts = self.row.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))
""", "They see every element"),
    Wrong("a decoy",
          changed(changed(MENDED,
                          "(self.shard)\n",
                          "(self.shard)\n        self.decoy = make(row)\n"),
                  "self.shard.grad = None",
                  "self.decoy.param_groups[0]['params'][0].grad = torch.zeros_like(row)\n"
                  "        self.decoy.step()\n"
                  "        self.shard.grad = None"),
          "numbers, and"),
    Wrong("whole states of its own", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.optimizer = torch.optim.AdamW(parameters, lr=0.1, eps=1.0, weight_decay=0.0)

    @torch.no_grad()
    def step(self):
        kept = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            mean = torch.zeros(parameter.shape, dtype=parameter.dtype)
            mean += 0 if parameter.grad is None else parameter.grad
            parameter.grad = self.comm.all_reduce(mean, average=True)
        self.optimizer.step()
        for parameter, gradient in zip(self.parameters, kept):
            parameter.grad = gradient
""", "that make() did not give"),
    Wrong("a row of float32",
          changed(changed(MENDED, "().flatten()", "().float().flatten()"), "gradient.", "gradient.float()."),
          "keep the dtype"),
    Wrong("a view of what is transposed",
          changed(MENDED, "().flatten()", "().view(-1)"),
          "view size is not compatible"),
    Wrong("a view of a transposed gradient",
          changed(MENDED, "gradient.flatten()", "gradient.view(-1)"),
          "Use .reshape(...) instead"),
    Wrong("keeps the row",
          changed(changed(MENDED, ".clone()", ""), "row = self", "self.row = row = self"),
          "does a whole row outlive the step"),
    Wrong("leaves its optimizer with comm",
          changed(changed(MENDED,
                          "self.optimizer =",
                          "comm.optimizer ="),
                  "self.optimizer.step()",
                  "self.comm.optimizer.step()"),
          "what do the two share"),
    Wrong("an Adam by hand",
          changed(changed(MENDED,
                          "self.optimizer = make(self.shard)",
                          "self.m = self.v = 0.0 * self.shard\n"
                          "        self.t, self.decay = 0, 0.0"),
                  "self.optimizer.step()",
                  """g, self.t = self.shard.grad, self.t + 1
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
        self.shard.mul_(1 - 0.1 * self.decay)
        self.shard.sub_(0.1 * self.m / (1 - 0.9**self.t) / ((self.v / (1 - 0.999**self.t)).sqrt() + 1.0))"""),
          "without the weight decay"),
    Wrong("in the order of memory",
          changed(changed(MENDED,
                          "().flatten()",
                          "().as_strided((parameter.numel(),), (1,))"),
                  "copy_(part.view_as(parameter))",
                  "as_strided((parameter.numel(),), (1,)).copy_(part)"),
          "in one order, that of flatten()"),
    Wrong("skips what it lacks", """
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.pieces = [p.detach().flatten().tensor_split(comm.size)[comm.rank].clone() for p in parameters]
        self.optimizers = [make(piece) for piece in self.pieces]

    @torch.no_grad()
    def step(self):
        for parameter, piece, optimizer in zip(self.parameters, self.pieces, self.optimizers):
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            piece.grad = self.comm.reduce_scatter(gradient.flatten(), average=True)
            if parameter.grad is not None:
                optimizer.step()
            parameter.copy_(self.comm.all_gather(piece, parameter.numel()).view_as(parameter))
""", "does its rank take part"),
    Wrong("no gradient, no step",
          changed(MENDED,
                  "step(self):\n",
                  "step(self):\n"
                  "        if any(parameter.grad is None for parameter in self.parameters):\n"
                  "            return\n"),
          "and the others still train"),
    Wrong("clears the gradients",
          changed(MENDED, ".copy_", ".grad = None\n            parameter.copy_"),
          "changes the .grad"),
    Wrong("moves the parameters",
          changed(MENDED, "copy_(part.view_as(parameter))", "data = part.view_as(parameter)"),
          "have moved to new memory"),
    # Written from the text alone.
    Wrong("in the order of memory",
          changed(changed(changed(MENDED,
                                  "parameter.detach().flatten()",
                                  "parameter.detach().as_strided((parameter.numel(),), (1,))"),
                          "gradient.flatten()",
                          "gradient.as_strided((gradient.numel(),), (1,))"),
                  "parameter.copy_(part.view_as(parameter))",
                  "parameter.as_strided((parameter.numel(),), (1,)).copy_(part)"),
          "a gradient's memory need not be"),
]  # fmt: skip

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
