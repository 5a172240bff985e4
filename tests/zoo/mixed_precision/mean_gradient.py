"""Answers to `mean_gradient` of lesson 06, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("scatter into the sum", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total.add_(gradient, alpha=1)
    part = total.tensor_split(comm.size)[comm.rank]
    comm.reduce_scatter(total, out=part)
    return part.clone().mul_(1 / (comm.size * micro_batches)).to(keep)
"""),
    Right("a generator of sums", """
from itertools import accumulate
from collections import deque
def mean_gradient(comm, gradients, micro_batches, add, keep):
    first = next(gradients).to(add)
    (total,) = deque(accumulate(gradients, lambda sum_, new: sum_.add_(new), initial=first), maxlen=1)
    mean = comm.reduce_scatter(total, average=True)
    return (mean / micro_batches).to(keep)
"""),
    Right("a buffer and copy_", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    buffer = None
    for number in range(1, micro_batches + 1):
        gradient = next(gradients)
        if buffer is None:
            buffer = torch.empty(gradient.shape, dtype=add)
            buffer.copy_(gradient)
        else:
            buffer += gradient
    out = torch.empty(len(buffer.tensor_split(comm.size)[comm.rank]), dtype=add)
    comm.reduce_scatter_async(buffer, average=True, out=out).wait()
    result = torch.empty(out.shape, dtype=keep)
    torch.div(out, micro_batches, out=out)
    return result.copy_(out)
"""),
    Right("divides before it reduces", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = None
    for g in gradients:
        total = g.to(add) if total is None else total.add_(g)
    return comm.reduce_scatter(total.div_(micro_batches), average=True).to(keep)
"""),
    Right("zeros to begin with", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    first = next(gradients)
    total = torch.zeros_like(first, dtype=add)
    total += first
    del first
    for _ in range(micro_batches - 1):
        total += next(gradients)
    return comm.reduce_scatter(total).div_(comm.size * micro_batches).to(keep)
"""),
]  # fmt: skip
