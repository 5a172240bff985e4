"""Answers to `train_mixed` of lesson 06, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("06_mixed_precision", "train_mixed")

WRONG = [
    blank("train_mixed"),
    Wrong("main from the cast",
          changed(MODEL,
                  "start.tensor_split(comm.size)[comm.rank].clone()",
                  "params.tensor_split(comm.size)[comm.rank].float()"),
          "began as the bf16 ones"),
    Wrong("no main parameters", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    shard = params.tensor_split(comm.size)[comm.rank]
    for _ in range(steps):
        shard -= rate * comm.reduce_scatter(backward(params), average=True)
        comm.all_gather(shard, out=params)
    return params, shard.float()
""", "and nobody collects them"),
    Wrong("multiplies in bf16",
          changed(MODEL, "mean.float()", "mean"),
          "convert the mean to fp32 first"),
    Wrong("sum for mean",
          changed(MODEL, ", average=True", ""),
          "sum of the gradients"),
    Wrong("sends fp16",
          changed(MODEL, "(params)", "(params).half()"),
          "what went through fp16 gives"),
    Wrong("averages twice",
          changed(MODEL, "main -= rate", "main -= rate / comm.size"),
          "divided by N twice"),
    Wrong("own gradients",
          changed(MODEL,
                  "comm.reduce_scatter(backward(params), average=True)",
                  "backward(params).tensor_split(comm.size)[comm.rank]"),
          "without the other ranks' gradients"),
    Wrong("does not gather",
          changed(MODEL,
                  "comm.all_gather(main.bfloat16(), out=params)",
                  "params.tensor_split(comm.size)[comm.rank].copy_(main)"),
          "its own shard alone is new"),
    Wrong("never casts back",
          changed(MODEL, "        comm.all_gather(main.bfloat16(), out=params)\n", ""),
          "the parameters as they began: what"),
    Wrong("gathers first",
          changed(MODEL,
                  "main -= rate * mean.float()\n"
                  "        comm.all_gather(main.bfloat16(), out=params)",
                  "comm.all_gather(main.bfloat16(), out=params)\n"
                  "        main -= rate * mean.float()"),
          "one step late"),
    Wrong("gathers at the end",
          changed(MODEL, "        comm.all_gather", "    comm.all_gather"),
          "gather in every step"),
    Wrong("its shard in between, all at the end",
          changed(MODEL,
                  "comm.all_gather",
                  "params.tensor_split(comm.size)[comm.rank].copy_(main)\n"
                  "    comm.all_gather"),
          "it computes with the newest of all"),
    Wrong("computes in fp32",
          changed(changed(MODEL, "start.bfloat16()", "start.clone()"), "main.bfloat16()", "main"),
          "compute in 16 bits"),
    Wrong("gives back fp32",
          changed(MODEL, "params, main", "comm.all_gather(main, len(start)), main"),
          "parameters in fp32: what"),
    Wrong("parameters rounded, in fp32",
          changed(MODEL, "params, main", "params.float(), main"),
          "should have the dtype, too"),
    Wrong("all main parameters",
          changed(MODEL, "params, main", "params, comm.all_gather(main, len(start))"),
          "keep and return your own shard"),
    Wrong("parameters alone",
          changed(MODEL, "params, main", "params"),
          "the parameters alone"),
    Wrong("the other order",
          changed(MODEL, "params, main", "main, params"),
          "in the other order"),
    Wrong("keeps the cast",
          changed(MODEL, "return", "main = main.bfloat16()\n    return"),
          "main parameters in bf16"),
    Wrong("loses the update", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    new = main.clone()
    for _ in range(steps):
        new = new - rate * comm.reduce_scatter(backward(params), average=True).float()
        comm.all_gather(new.bfloat16(), out=params)
    return params, main
""", "the main parameters as they began"),
    Wrong("one step too few",
          changed(MODEL, "(steps):", "(steps - 1):"),
          "6 steps are due: a gradient"),
    Wrong("one step too many",
          changed(MODEL, "(steps):", "(steps + 1):"),
          "more often than the 6 steps"),
    Wrong("backward of the shard",
          changed(MODEL, "(params)", "(main.bfloat16())"),
          "it computes with the whole model"),
    Wrong("trains the start",
          changed(MODEL, ".clone()", ""),
          "it overwrote"),
    Wrong("reduces in fp32",
          changed(MODEL, "(params)", "(params).float()"),
          "what travels in fp32"),
    Wrong("all-reduces",
          changed(MODEL,
                  "reduce_scatter(backward(params), average=True)",
                  "all_reduce(backward(params), average=True).tensor_split(comm.size)[comm.rank]"),
          "bytes a rank sends in 6 steps"),
    Wrong("main parameters of all",
          changed(MODEL,
                  "params = start.bfloat16()\n"
                  "    main = start.tensor_split(comm.size)[comm.rank].clone()",
                  "params, whole = start.bfloat16(), start.clone()\n"
                  "    main = whole.tensor_split(comm.size)[comm.rank]"),
          "what is there in fp32 for the whole model"),
    Wrong("one call too many",
          changed(MODEL, "return", "comm.barrier()\n    return"),
          "two calls a step"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("a whole fp32",
          changed(changed(MODEL,
                          "main = start.tensor_split(comm.size)[comm.rank].clone()",
                          "whole = start.clone()\n"
                          "    main = whole.tensor_split(comm.size)[comm.rank]"),
                  "params, main",
                  "params, main.clone()"),
          "elements of the longest fp32 tensor"),
    Wrong("new main from params each step",
          changed(MODEL, "main -= rate", "main = params.tensor_split(comm.size)[comm.rank].float() - rate"),
          "were made from the bf16 ones in a step"),
    Wrong("adds",
          changed(MODEL, "main -= rate * mean.float()", "main.add_(mean, alpha=rate)"),
          "the step goes against them"),
    Wrong("keeps all gradients", """
def train_mixed(comm, start, backward, steps, rate):
    params, main, all_of = start.bfloat16(), start.tensor_split(comm.size)[comm.rank].clone(), []
    for _ in range(steps):
        all_of.append(backward(params))
        mean = comm.reduce_scatter(all_of[-1], average=True)
        main.sub_(mean.float(), alpha=rate)
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "three rows of 16 bits are enough"),
    Wrong("rate in bf16",
          changed(MODEL,
                  "params = start.bfloat16()\n"
                  "    main = start.tensor_split(comm.size)[comm.rank].clone()",
                  "params, main = start.bfloat16(), start.tensor_split(comm.size)[comm.rank].clone()\n"
                  "    rate = torch.tensor(rate, dtype=torch.bfloat16)"),
          "what a rate gives that was rounded"),
    # Fail at an edge alone, or in a second call.
    Wrong("remembers main parameters", """
mains = {}
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    key = (comm.rank, comm.size, start.numel())
    main = mains.setdefault(key, start.tensor_split(comm.size)[comm.rank].clone())
    for _ in range(steps):
        main -= rate * comm.reduce_scatter(backward(params), average=True).float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "a second call changes what the first one gave"),
    Wrong("main parameters made anew after the first step", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for number in range(steps):
        if number:
            main = params.tensor_split(comm.size)[comm.rank].float()
        main -= rate * comm.reduce_scatter(backward(params), average=True).float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "in the second step"),
]  # fmt: skip

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
