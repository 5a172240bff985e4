"""Answers to `train_mixed` of lesson 06, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("06_mixed_precision", "train_mixed")

RIGHT = [
    Right("alpha", changed(MODEL, "main -= rate * mean.float()", "main.add_(mean, alpha=-rate)")),
    Right("new parameters each step",
          changed(changed(MODEL,
                          "start.bfloat16()",
                          "start.to(torch.bfloat16)"),
                  "comm.all_gather(main.bfloat16(), out=params)",
                  "params = comm.all_gather(main.to(torch.bfloat16), start.numel())")),
    Right("torch's SGD", """
def train_mixed(comm, start, backward, steps, rate):
    main = torch.nn.Parameter(start.tensor_split(comm.size)[comm.rank].clone())
    params, sgd = start.bfloat16(), torch.optim.SGD([main], lr=rate)
    for _ in range(steps):
        main.grad = comm.reduce_scatter(backward(params), average=True).float()
        sgd.step()
        comm.all_gather(main.detach().bfloat16(), params.numel(), out=params)
    return params, main.detach()
"""),
    Right("addcmul", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.chunk(1)[0].tensor_split(comm.size)[comm.rank].clone()
    minus = torch.full((1,), -rate)
    for step in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main.addcmul_(mean.float(), minus)
        params[:] = comm.all_gather(main.bfloat16(), numel=params.numel())
    return params, main
"""),
    Right("reduces into the gradient", """
def train_mixed(comm, start, backward, steps, rate):
    params, main = start.bfloat16(), start.tensor_split(comm.size)[comm.rank].clone()
    def one():
        gradient = backward(params)
        part = gradient.tensor_split(comm.size)[comm.rank]
        comm.reduce_scatter(gradient, average=True, out=part)
        main.sub_(part.float(), alpha=rate)
        comm.all_gather(main.bfloat16(), out=params)
    [one() for _ in range(steps)]
    return params, main
"""),
    Right("gradient named, new parameters", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.to(torch.bfloat16)
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        gradient = backward(params)
        mean = comm.reduce_scatter(gradient, average=True)
        main = main - rate * mean.float()
        shard = main.to(torch.bfloat16)
        params = comm.all_gather(shard, start.numel())
    return params, main
"""),
    Right("views of a big bf16 row, methods save and load", """
class Shard:
    def __init__(self, comm, start):
        self.row = torch.empty(start.numel(), dtype=torch.bfloat16)
        self.row[:] = start
        self.view = self.row.tensor_split(comm.size)[comm.rank]
        self.master = start.tensor_split(comm.size)[comm.rank].detach().clone()
    def load(self, mean, rate):
        self.master.add_(mean.to(self.master.dtype) * -rate)
    def save(self, comm):
        self.view.copy_(self.master)
        comm.all_gather(self.view, out=self.row)
def train_mixed(comm, start, backward, steps, rate):
    shard = Shard(comm, start)
    for step in range(steps):
        shard.load(comm.reduce_scatter(backward(shard.row), average=True), rate)
        shard.save(comm)
    return (shard.row, shard.master)
"""),
    Right("asynchronous, a list comes back", """
def train_mixed(comm, start, backward, steps, rate):
    params = torch.zeros(start.shape, dtype=torch.bfloat16).copy_(start)
    bounds = [0]
    for part in start.tensor_split(comm.size):
        bounds.append(bounds[-1] + len(part))
    main = start[bounds[comm.rank] : bounds[comm.rank + 1]].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter_async(backward(params), average=True).wait()
        main = torch.add(main, mean.float(), alpha=-rate)
        params = comm.all_gather_async(main.bfloat16(), start.numel()).wait()
    return params, main
"""),
    Right("set_", """
def train_mixed(comm, start, backward, steps, rate):
    params, main = start.bfloat16(), start.tensor_split(comm.size)[comm.rank].clone()
    remaining = iter(range(steps))
    while next(remaining, None) is not None:
        mean = comm.reduce_scatter(backward(params), average=True)
        with torch.no_grad():
            main.subtract_(torch.mul(mean.float(), rate))
        params.set_(comm.all_gather(main.bfloat16(), params.numel()))
    return params, main
"""),
    Right("sub with alpha", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.to(torch.bfloat16)
    main = start.tensor_split(comm.size)[comm.rank].clone()
    while steps:
        steps -= 1
        main.sub_(comm.reduce_scatter(backward(params), average=True), alpha=rate)
        params = comm.all_gather(main.to(torch.bfloat16), numel=start.numel())
    return params, main
"""),
    Right("cast into a view of the row", """
def train_mixed(comm, start, backward, steps, rate):
    params = torch.empty_like(start, dtype=torch.bfloat16).copy_(start)
    own = params.tensor_split(comm.size)[comm.rank]
    main = start.tensor_split(comm.size)[comm.rank].clone(memory_format=torch.contiguous_format)
    for _ in range(steps):
        g = backward(params)
        main -= comm.reduce_scatter(g, average=True).to(torch.float32).mul_(rate)
        own.copy_(main)
        comm.all_gather(own, out=params)
    return params, main
"""),
    # Have to hold at the edges.
    Right("reduces into the gradient, casts into the row", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    mine = params.tensor_split(comm.size)[comm.rank]
    main = torch.empty_like(mine, dtype=torch.float32)
    main.copy_(start.tensor_split(comm.size)[comm.rank])
    while steps > 0:
        grad = backward(params)
        part = grad.tensor_split(comm.size)[comm.rank]
        comm.reduce_scatter(grad, average=True, out=part)
        main -= part.to(torch.float32).mul_(rate)
        mine.copy_(main)
        comm.all_gather(mine, out=params)
        del grad, part
        steps -= 1
    return params, main
"""),
    Right("recursion, gathers in advance", """
def train_mixed(comm, start, backward, steps, rate):
    main = start.tensor_split(comm.size)[comm.rank] * 1.0
    params = torch.empty(start.shape, dtype=torch.bfloat16)
    def go(left):
        comm.all_gather(main.bfloat16(), out=params)
        if left:
            step = comm.reduce_scatter(backward(params)).div_(comm.size).float()
            main.add_(step.mul_(-rate))
            go(left - 1)
    params.copy_(start)
    if steps:
        step = comm.reduce_scatter(backward(params)).div_(comm.size).float()
        main.add_(step.mul_(-rate))
        go(steps - 1)
    return params, main
"""),
]  # fmt: skip
