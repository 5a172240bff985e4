"""Wrong answers to the exercises of lesson 03 that arrange a step: overlapped, and mended."""

from zoo.wrong import Wrong, blank, changed

OVERLAPPED = """
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    reductions = [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]
    gathers = []
    for row, reduction in zip(rows, reductions):
        shard = row.tensor_split(comm.size)[comm.rank]
        update(shard, reduction.wait())
        gathers.append(comm.all_gather_async(shard, out=row))
    return [gather.wait() for gather in gathers]
"""
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
# Whole tensors, each with one owner; right, but for what it keeps. {owners} says who owns which.
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
BY_COUNT = "[index * comm.size // len(parameters) for index in range(len(parameters))]"
DROPS_REST = """[
            index // (len(parameters) // comm.size) if index < len(parameters) // comm.size * comm.size else None
            for index in range(len(parameters))
        ]"""
MIXED = """each = -(-row.numel() // self.comm.size)
        padded = torch.nn.functional.pad(row, (0, each * self.comm.size - row.numel()))
        piece = padded.view(self.comm.size, each)[self.comm.rank].clone()
        self.shard.grad = self.comm.all_reduce(piece, average=True)[: self.shard.numel()]"""
SKETCH = """
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
"""

BUCKETS = [
    blank("step_overlapped"),
    Wrong("sum for mean", "step_overlapped", changed(OVERLAPPED, ", average=True", ""), "take their mean"),
    Wrong("own gradients", "step_overlapped",
          changed(OVERLAPPED, "reduction.wait()", "gradients[len(gathers)].tensor_split(comm.size)[comm.rank].clone()"),
          "without those of the other ranks"),
    Wrong("averages twice", "step_overlapped", changed(OVERLAPPED, "reduction.wait()", "reduction.wait() / comm.size"),
          "divided by N twice"),
    Wrong("gathers before the update", "step_overlapped", '''
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    reductions = [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]
    for row, reduction in zip(rows, reductions):
        shard = row.tensor_split(comm.size)[comm.rank]
        comm.all_gather_async(shard.clone(), out=row).wait()
        update(shard, reduction.wait())
    return rows
''', "own shards alone are new"),
    Wrong("gathers the gradients", "step_overlapped", '''
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    reductions = [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]
    gathers = []
    for row, reduction in zip(rows, reductions):
        shard, mean = row.tensor_split(comm.size)[comm.rank], reduction.wait()
        update(shard, mean)
        gathers.append(comm.all_gather_async(mean, out=row))
    return [gather.wait() for gather in gathers]
''', "gradients where parameters"),
    Wrong("returns handles", "step_overlapped",
          changed(OVERLAPPED, "[gather.wait() for gather in gathers]", "gathers"), "wait() gives the row"),
    Wrong("forgets the last", "step_overlapped",
          changed(OVERLAPPED, "return [gather.wait() for gather in gathers]",
                  "return [gather.wait() for gather in gathers[:-1]]"), "one row too few"),
    Wrong("one bucket late", "step_overlapped", '''
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    reductions = [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]
    gathers = []
    for row, reduction in zip(rows[:-1], reductions):
        shard = row.tensor_split(comm.size)[comm.rank]
        update(shard, reduction.wait())
        gathers.append(comm.all_gather_async(shard, out=row))
    return [gather.wait() for gather in gathers] + rows[-1:]
''', "the last bucket as it began"),
    Wrong("guesses the update", "step_overlapped",
          changed(OVERLAPPED, "update(shard, reduction.wait())", "shard.sub_(0.1 * reduction.wait())"),
          "it never calls update"),
    Wrong("updates twice", "step_overlapped",
          changed(OVERLAPPED, "        update(shard,", "        update(shard.clone(), shard)\n        update(shard,"),
          "once for each"),
    Wrong("backwards", "step_overlapped",
          changed(OVERLAPPED, "rows = [row.clone() for row in rows]",
                  "rows, gradients = [row.clone() for row in rows[::-1]], gradients[::-1]"), "in another order"),
    Wrong("reduces into the gradients", "step_overlapped",
          changed(OVERLAPPED, "average=True)",
                  "average=True, out=gradient.tensor_split(comm.size)[comm.rank])"), "it overwrote rank 0's"),
    Wrong("overwrites the rows", "step_overlapped",
          changed(OVERLAPPED, "row.clone() for", "row for"), "it overwrote"),
    Wrong("one long bucket", "step_overlapped", '''
def step_overlapped(comm, rows, gradients, update):
    row, sizes = torch.cat(rows), [row.numel() for row in rows]
    shard = row.tensor_split(comm.size)[comm.rank]
    update(shard, comm.reduce_scatter(torch.cat(gradients), average=True))
    comm.all_gather(shard, out=row)
    return list(row.split(sizes))
''', "reduce_scatter and one all_gather for each"),
    Wrong("all-reduce", "step_overlapped",
          changed(changed(OVERLAPPED, "reduce_scatter_async(gradient,", "all_reduce_async(gradient.clone(),"),
                  "reduction.wait()", "reduction.wait().tensor_split(comm.size)[comm.rank]"),
          "all_reduce, which nobody needs"),
    Wrong("waits at once", "step_overlapped", '''
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    for row, gradient in zip(rows, gradients):
        shard = row.tensor_split(comm.size)[comm.rank]
        update(shard, comm.reduce_scatter_async(gradient, average=True).wait())
        comm.all_gather_async(shard, out=row).wait()
    return rows
''', "what keeps it from travelling meanwhile"),
    Wrong("gathers at the end", "step_overlapped", '''
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    shards = [row.tensor_split(comm.size)[comm.rank] for row in rows]
    reductions = [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]
    for shard, reduction in zip(shards, reductions):
        update(shard, reduction.wait())
    gathers = [comm.all_gather_async(shard, out=row) for shard, row in zip(shards, rows)]
    return [gather.wait() for gather in gathers]
''', "all gathers start after the last update"),
    Wrong("keeps its rows", "step_overlapped",
          changed("kept = {}" + OVERLAPPED, "[row.clone() for row in rows]",
                  "[kept.setdefault((comm.rank, at), row.clone()).resize_(row.numel()).copy_(row)"
                  " for at, row in enumerate(rows)]"), "each call needs memory of its own"),
    Wrong("waits for each reduction", "step_overlapped",
          changed(OVERLAPPED, "average=True) for", "average=True).wait() for").replace("reduction.wait()", "reduction"),
          "before the first update"),
    Wrong("waits for each gather", "step_overlapped",
          changed(OVERLAPPED, "gathers.append(comm.all_gather_async(shard, out=row))",
                  "gathers.append(comm.all_gather(shard, out=row))").replace("gather.wait()", "gather"),
          "after an update"),
]  # fmt: skip

FAULTS = [
    Wrong("blank", "MendedOptimizer", "class MendedOptimizer:\n    raise NotImplementedError()", "not written yet"),
    Wrong("the sketch itself", "MendedOptimizer", SKETCH, "all ranks must name the same src"),
    Wrong("only drops the remainder", "MendedOptimizer", changed(WHOLE_TENSORS, "OWNERS", DROPS_REST),
          "no rank owns them"),
    Wrong("only splits by tensor count", "MendedOptimizer", changed(WHOLE_TENSORS, "OWNERS", BY_COUNT),
          "cut through tensors"),
    Wrong("only reduces different tensors with each other", "MendedOptimizer",
          changed(MENDED, "self.comm.reduce_scatter(row, average=True)",
                  "self.comm.all_reduce(row.tensor_split(self.comm.size)[self.comm.rank].clone(), average=True)"),
          "the ranks part ways"),
    Wrong("only reduces different elements of equal number with each other", "MendedOptimizer",
          changed(MENDED, "self.shard.grad = self.comm.reduce_scatter(row, average=True)", MIXED),
          "gradients of different elements"),
    Wrong("only never averages", "MendedOptimizer", changed(MENDED, ", average=True", ""), "take their mean"),
    Wrong("averages twice", "MendedOptimizer", changed(MENDED, "average=True)", "average=True) / self.comm.size"),
          "divided by N twice"),
    Wrong("own gradients", "MendedOptimizer",
          changed(MENDED, "self.comm.reduce_scatter(row, average=True)",
                  "row.tensor_split(self.comm.size)[self.comm.rank].clone()"),
          "without those of the other ranks"),
    Wrong("does not copy back", "MendedOptimizer", changed(MENDED, "parameter.copy_(part.view_as(parameter))", "pass"),
          "every tensor as it began"),
    Wrong("puts new tensors into the list", "MendedOptimizer",
          changed(MENDED, "parameter.copy_(part.view_as(parameter))",
                  "self.parameters = [*self.parameters[1:], torch.nn.Parameter(part.view_as(parameter).clone())]"),
          "as it began"),
    Wrong("does not gather", "MendedOptimizer",
          changed(MENDED, "row = self.comm.all_gather(self.shard, sum(self.numels))",
                  "row = torch.cat([parameter.flatten() for parameter in self.parameters])\n"
                  "        row.tensor_split(self.comm.size)[self.comm.rank].copy_(self.shard)"),
          "the other ranks' pieces as they began"),
    Wrong("a new optimizer in each step", "MendedOptimizer",
          changed(MENDED, "        self.optimizer.step()",
                  "        self.optimizer = self.make(self.shard)\n        self.optimizer.step()"),
          "make it once"),
    Wrong("optimizes everything", "MendedOptimizer", '''
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
''', "They see every element"),
    Wrong("a decoy", "MendedOptimizer",
          changed(MENDED, "self.optimizer = make(self.shard)",
                  "self.optimizer = make(self.shard)\n        self.decoy = make(row)").replace(
                      "self.optimizer.step()", "self.optimizer.step()\n        self.decoy.param_groups[0]"
                      "['params'][0].grad = torch.zeros_like(row)\n        self.decoy.step()"),
          "numbers, and"),
    Wrong("whole states of its own", "MendedOptimizer", '''
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
''', "that make() did not give"),
    Wrong("a row of float32", "MendedOptimizer",
          changed(changed(MENDED, "parameter.detach().flatten()", "parameter.detach().float().flatten()"),
                  "gradient.flatten()", "gradient.float().flatten()"), "keep the dtype"),
    Wrong("a view of what is transposed", "MendedOptimizer",
          changed(MENDED, "parameter.detach().flatten()", "parameter.detach().view(-1)"),
          "view size is not compatible"),
    Wrong("a view of a transposed gradient", "MendedOptimizer",
          changed(MENDED, "gradient.flatten()", "gradient.view(-1)"), "Use .reshape(...) instead"),
    Wrong("keeps the row", "MendedOptimizer",
          changed(changed(MENDED, "[comm.rank].clone()", "[comm.rank]"), "row = self.comm.all_gather",
                  "self.row = row = self.comm.all_gather"), "does a whole row outlive the step"),
    Wrong("leaves its optimizer with comm", "MendedOptimizer",
          changed(changed(MENDED, "self.optimizer = make", "comm.optimizer = make"),
                  "self.optimizer.step()", "self.comm.optimizer.step()"), "what do the two share"),
    Wrong("an Adam by hand", "MendedOptimizer",
          changed(changed(MENDED, "self.optimizer = make(self.shard)", "self.m = self.v = 0.0 * self.shard\n"
                  "        self.t, self.decay = 0, DECAY"),
                  "self.optimizer.step()", "g, self.t = self.shard.grad, self.t + 1\n"
                  "        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g\n"
                  "        self.shard.mul_(1 - 0.1 * self.decay)\n"
                  "        self.shard.sub_(0.1 * self.m / (1 - 0.9**self.t)"
                  " / ((self.v / (1 - 0.999**self.t)).sqrt() + 1.0))").replace("DECAY", "0.0"),
          "without the weight decay"),
    Wrong("in the order of memory", "MendedOptimizer",
          changed(changed(MENDED, "parameter.detach().flatten()",
                          "parameter.detach().as_strided((parameter.numel(),), (1,))"),
                  "parameter.copy_(part.view_as(parameter))",
                  "parameter.as_strided((parameter.numel(),), (1,)).copy_(part)"), "in one order, that of flatten()"),
    Wrong("skips what it lacks", "MendedOptimizer", '''
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
''', "does its rank take part"),
    Wrong("no gradient, no step", "MendedOptimizer",
          changed(MENDED, "    def step(self):\n",
                  "    def step(self):\n        if any(parameter.grad is None for parameter in self.parameters):\n"
                  "            return\n"), "and the others still train"),
    Wrong("clears the gradients", "MendedOptimizer",
          changed(MENDED, "            parameter.copy_",
                  "            parameter.grad = None\n            parameter.copy_"),
          "changes the .grad"),
    Wrong("moves the parameters", "MendedOptimizer",
          changed(MENDED, "parameter.copy_(part.view_as(parameter))", "parameter.data = part.view_as(parameter)"),
          "have moved to new memory"),
]  # fmt: skip

ZOO = [*BUCKETS, *FAULTS]
