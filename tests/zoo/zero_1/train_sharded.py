"""Answers to `train_sharded` of lesson 03 that are right, each in a style of its own."""

from zoo.answers import Right, changed, model

MODEL = model("03_zero_1", "train_sharded")

RIGHT = [
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
]  # fmt: skip
