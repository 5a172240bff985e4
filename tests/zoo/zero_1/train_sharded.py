"""Answers to `train_sharded` of lesson 03, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("03_zero_1", "train_sharded")

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
