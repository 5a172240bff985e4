"""Answers to `train_mixed` of lesson 06, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("06_mixed_precision", "train_mixed")

RIGHT = [
    Right("alpha", changed(MODEL, "main -= rate * mean.float()", "main.add_(mean, alpha=-rate)")),
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
