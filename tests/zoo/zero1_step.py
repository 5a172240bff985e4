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
        self.comm, self.parameters = comm, parameters
        self.row = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.shard = self.row.tensor_split(comm.size)[comm.rank]
        self.optimizer = make(self.shard)

    @torch.no_grad()
    def step(self):
        gradients = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        self.shard.grad = self.comm.reduce_scatter(gradients, average=True)
        self.optimizer.step()
        self.comm.all_gather(self.shard, out=self.row)
        parts = self.row.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
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
        for parameter in self.parameters:
            self.comm.all_reduce(parameter.grad, average=True)
        if self.optimizer:
            self.optimizer.step()
        for parameter, owner in zip(self.parameters, self.owners):
            if owner is not None:
                self.comm.broadcast(parameter.data, src=owner)
"""
BY_COUNT = "[index * comm.size // len(parameters) for index in range(len(parameters))]"
DROPS_REST = """[
            index // (len(parameters) // comm.size) if index < len(parameters) // comm.size * comm.size else None
            for index in range(len(parameters))
        ]"""
MIXED = """each = -(-gradients.numel() // self.comm.size)
        padded = torch.nn.functional.pad(gradients, (0, each * self.comm.size - gradients.numel()))
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
          changed(OVERLAPPED, "reduction.wait()", "gradients[len(gathers)].tensor_split(comm.size)[comm.rank]"),
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
''', "starts only after bucket 0's all_gather"),
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
          changed(MENDED, "self.comm.reduce_scatter(gradients, average=True)",
                  "self.comm.all_reduce(gradients.tensor_split(self.comm.size)[self.comm.rank].clone(), average=True)"),
          "the ranks part ways"),
    Wrong("only reduces different elements of equal number with each other", "MendedOptimizer",
          changed(MENDED, "self.shard.grad = self.comm.reduce_scatter(gradients, average=True)", MIXED),
          "gradients of different elements"),
    Wrong("only never averages", "MendedOptimizer", changed(MENDED, ", average=True", ""), "take their mean"),
    Wrong("averages twice", "MendedOptimizer", changed(MENDED, "average=True)", "average=True) / self.comm.size"),
          "divided by N twice"),
    Wrong("own gradients", "MendedOptimizer",
          changed(MENDED, "self.comm.reduce_scatter(gradients, average=True)",
                  "gradients.tensor_split(self.comm.size)[self.comm.rank].clone()"),
          "without those of the other ranks"),
    Wrong("does not copy back", "MendedOptimizer", changed(MENDED, "parameter.copy_(part.view_as(parameter))", "pass"),
          "every tensor as it began"),
    Wrong("puts new tensors into the list", "MendedOptimizer",
          changed(MENDED, "for parameter, part in zip(self.parameters, parts, strict=True):\n"
                  "            parameter.copy_(part.view_as(parameter))",
                  "self.parameters = [torch.nn.Parameter(part.clone()) for part in parts]"),
          "'NoneType' object"),
    Wrong("does not gather", "MendedOptimizer",
          changed(MENDED, "        self.comm.all_gather(self.shard, out=self.row)\n", ""),
          "the other ranks' pieces as they began"),
    Wrong("a new optimizer in each step", "MendedOptimizer",
          changed(MENDED, "        self.optimizer.step()",
                  "        self.optimizer = adam(self.shard)\n        self.optimizer.step()"),
          "make it once"),
    Wrong("optimizes everything", "MendedOptimizer", '''
class MendedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.row = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self.optimizer = make(self.row)

    @torch.no_grad()
    def step(self):
        gradients = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        self.row.grad = self.comm.all_reduce(gradients, average=True)
        self.optimizer.step()
        parts = self.row.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))
''', "They see every element"),
    Wrong("a decoy", "MendedOptimizer",
          changed(MENDED, "self.optimizer = make(self.shard)",
                  "self.optimizer = make(self.shard)\n        self.decoy = make(self.row)").replace(
                      "self.optimizer.step()", "self.optimizer.step()\n        self.decoy.param_groups[0]"
                      "['params'][0].grad = torch.zeros_like(self.row)\n        self.decoy.step()"),
          "numbers, and two for each"),
    Wrong("clears the gradients", "MendedOptimizer",
          changed(MENDED, "            parameter.copy_",
                  "            parameter.grad = None\n            parameter.copy_"),
          "changes the .grad"),
    Wrong("moves the parameters", "MendedOptimizer",
          changed(MENDED, "parameter.copy_(part.view_as(parameter))", "parameter.data = part.view_as(parameter)"),
          "have moved to new memory"),
]  # fmt: skip

ZOO = [*BUCKETS, *FAULTS]
