"""Answers to `train_sharded` of lesson 03, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("03_zero_1", "train_sharded")

WRONG = [
    blank("train_sharded"),
    Wrong("sum for mean",
          changed(MODEL, "(row), average=True", "(row)"),
          "sum of the gradients"),
    Wrong("averages twice",
          changed(MODEL, "average=True)", "average=True) / comm.size"),
          "divided by N twice"),
    Wrong("own gradients",
          changed(MODEL,
                  "comm.reduce_scatter(gradient(row), average=True)",
                  "gradient(row).tensor_split(comm.size)[comm.rank]"),
          "without those of the other ranks"),
    Wrong("own gradients, whole", """
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    optimizer = adam(row)
    for _ in range(steps):
        row.grad = gradient(row)
        optimizer.step()
    return row
""", "what its own gradients alone train"),
    Wrong("does not gather",
          changed(MODEL, "        comm.all_gather(shard, out=row)\n", ""),
          "its own shard alone is new"),
    Wrong("returns its shard",
          changed(MODEL, "return row", "return shard"),
          "only its own shard"),
    Wrong("updates after gathering",
          changed(MODEL,
                  "optimizer.step()\n        comm.all_gather(shard, out=row)",
                  "comm.all_gather(shard.clone(), out=row)\n        optimizer.step()"),
          "one step late"),
    Wrong("gathers the wrong tensor",
          changed(MODEL, "shard, out", "shard.grad, out"),
          "gradients where parameters"),
    Wrong("trains a copy that nobody gathers",
          changed(changed(MODEL,
                          "[comm.rank]",
                          "[comm.rank].clone()"),
                  "shard, out",
                  "row.tensor_split(comm.size)[comm.rank], out"),
          "the row as it began"),
    Wrong("a state that outlives the call", """
states = {}

def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    if comm.rank in states:
        optimizer.state[shard] = states[comm.rank]
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(row), average=True)
        optimizer.step()
        comm.all_gather(shard, out=row)
    states[comm.rank] = optimizer.state[shard]
    return row
""", "what outlives a call"),
    Wrong("fp16 on the wire",
          changed(MODEL,
                  "comm.reduce_scatter(gradient(row), average=True)",
                  "(comm.reduce_scatter(gradient(row).half()) / comm.size).to(row.dtype)"),
          "too few: gradients"),
    Wrong("fp32 on the wire",
          changed(MODEL, ", average=True", ".float(), average=True).to(row.dtype"),
          "too many: gradients"),
    Wrong("gathers at the end",
          changed(MODEL,
                  "        comm.all_gather(shard, out=row)\n    return row",
                  "    return comm.all_gather(shard, row.numel())"),
          "if nobody gathers before the end"),
    Wrong("gradients of the row as it began",
          changed(changed(MODEL, "row = row", "begin, row = row, row"), "gradient(row)", "gradient(begin)"),
          "computed at the row as it began"),
    Wrong("another Adam",
          changed(MODEL, "adam(shard)", "torch.optim.AdamW([shard], lr=0.1)"),
          "another optimizer than adam()"),
    Wrong("asks for a gradient too often",
          changed(MODEL, "for _ in", "gradient(row[:])\n    for _ in"),
          "calls gradient 6 times"),
    Wrong("keeps every row", """
def train_sharded(comm, row, gradient, steps):
    rows = [row.clone()]
    shard = row.tensor_split(comm.size)[comm.rank].clone()
    optimizer = adam(shard)
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(rows[-1]), average=True)
        optimizer.step()
        rows.append(comm.all_gather(shard, row.numel()))
    return rows[-1]
""", "rows or gradients of earlier steps"),
    Wrong("a new optimizer in each step",
          changed(MODEL,
                  "optimizer = adam(shard)\n    for _ in range(steps):",
                  "for _ in range(steps):\n        optimizer = adam(shard)"),
          "make it once"),
    Wrong("gradients pile up",
          changed(MODEL,
                  "shard.grad = comm.reduce_scatter(gradient(row), average=True)",
                  "part = comm.reduce_scatter(gradient(row), average=True)\n"
                  "        shard.grad = part if shard.grad is None else shard.grad + part"),
          "earlier steps are still in"),
    Wrong("forgets the last step",
          changed(MODEL, "(steps):", "(steps - 1):"),
          "calls gradient 4 times"),
    Wrong("leaves the last mean unused",
          changed(MODEL, "optimizer.step()", "if _ < steps - 1:\n            optimizer.step()"),
          "after one step too few"),
    Wrong("rank 0 is skipped",
          changed(MODEL, "optimizer.step()", "if comm.rank:\n            optimizer.step()"),
          "only rank 0's shard is wrong"),
    Wrong("the neighbour's shard",
          changed(MODEL, "comm.rank", "comm.rank - 1"),
          "but its own chunk begins at"),
    Wrong("cuts evenly", """
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    each = row.numel() // comm.size
    shard = row[comm.rank * each : (comm.rank + 1) * each]
    optimizer = adam(shard)
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(row)[: each * comm.size], average=True)
        optimizer.step()
        comm.all_gather(shard, out=row[: each * comm.size])
    return row
""", "at its end as they began"),
    Wrong("overwrites the row",
          changed(MODEL, "row.clone()", "row"),
          "it overwrote"),
    Wrong("all-reduce",
          changed(MODEL,
                  "reduce_scatter(gradient(row), average=True)",
                  "all_reduce(gradient(row), average=True).tensor_split(comm.size)[comm.rank]"),
          "hands everybody gradients"),
    Wrong("gathers twice",
          changed(MODEL, "return row", "    comm.broadcast(row[:0], src=0)\n    return row"),
          "two calls a step"),
    Wrong("optimizes the row",
          changed(changed(MODEL,
                          "(shard)",
                          "(row)\n    row.grad = torch.zeros_like(row)"),
                  "shard.grad = comm.reduce_scatter(gradient(row), average=True)",
                  "row.grad.tensor_split(comm.size)[comm.rank].copy_(comm.reduce_scatter(gradient(row), "
                  "average=True))"),
          "know more than the shard"),
    # One slip away from right.
    Wrong("broadcasts each shard",
          changed(MODEL,
                  "comm.all_gather(shard, out=row)",
                  "[comm.broadcast(part, src=r) for r, part in enumerate(row.tensor_split(comm.size))]"),
          "a broadcast passes each shard on"),
    Wrong("gathers the gradients",
          changed(MODEL,
                  "reduce_scatter(gradient(row), average=True)",
                  "all_gather(gradient(row)).view(comm.size, -1).mean(0).tensor_split(comm.size)[comm.rank]"),
          "which collective adds them up on the way?"),
    Wrong("four ranks",
          changed(MODEL, ", average=True)", ") / 4"),
          "divided by 4 on any number of ranks"),
    Wrong("two ranks",
          changed(MODEL, ", average=True)", ") / 2"),
          "divided by 2 on any number of ranks"),
]  # fmt: skip

RIGHT = [
    Right("a gathered row copied", """
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
    Right("clone out of place", """
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
    Right("view in place",
          changed(MODEL,
                  "shard.grad = comm.reduce_scatter(gradient(row), average=True)",
                  "g = gradient(row)\n"
                  "        shard.grad = comm.reduce_scatter(g) / comm.size")),
    Right("handles", """
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
    Right("trainer class", """
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
    Right("copy back", """
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
    Right("reduces in place",
          changed(MODEL,
                  "shard.grad = comm.reduce_scatter(gradient(row), average=True)",
                  "g = gradient(row)\n"
                  "        mine = g.tensor_split(comm.size)[comm.rank]\n"
                  "        shard.grad = comm.reduce_scatter(g, average=True, out=mine)")),
    # Generators, queues of handles, parameter groups, lists.
    Right("generator steps", """
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
    Right("async both", """
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
    # Written from the text alone.
    Right("in place in the gradient", """
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
    Right("a generator of rows, divided before", """
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
    Right("asynchronous forms, a class", """
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
]  # fmt: skip
