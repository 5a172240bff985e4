"""Answers to `mean_gradient` of lesson 06, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("06_mixed_precision", "mean_gradient")

RIGHT = [
    Right("in place",
          changed(MODEL,
                  "mean = comm.reduce_scatter(total, average=True) / micro_batches\n"
                  "    return mean",
                  "return (comm.reduce_scatter(total) / (micro_batches * comm.size))")),
    Right("average and div_", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = None
    for gradient in gradients:
        total = gradient.to(add) if total is None else total.add_(gradient)
    return comm.reduce_scatter(total, average=True).div_(micro_batches).to(keep)
"""),
    Right("functools.reduce", """
from functools import reduce
def mean_gradient(comm, gradients, micro_batches, add, keep):
    first = next(gradients).to(dtype=add)
    whole = reduce(torch.Tensor.add_, gradients, first)
    shard = comm.reduce_scatter(whole)
    shard /= comm.size * micro_batches
    return shard.to(keep)
"""),
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
    Right("walrus and default", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).type(add)
    while (gradient := next(gradients, None)) is not None:
        torch.Tensor.add_(total, gradient)
    own = comm.reduce_scatter(total)
    own.mul_(1.0 / (comm.size * micro_batches))
    return own if own.dtype == keep else own.to(keep)
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
    Right("each divided by its share in fp32 sums", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total.add_(gradient)
    total /= micro_batches
    return comm.reduce_scatter(total, average=True).to(keep)
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
    # Have to hold at the edges.
    Right("reduces in place, clones", """
import itertools
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).type(add)
    for gradient in itertools.islice(gradients, micro_batches - 1):
        torch.add(total, gradient, out=total)
    part = total.tensor_split(comm.size)[comm.rank]
    comm.reduce_scatter_async(total, average=True, out=part).wait()
    return part.div(micro_batches).to(keep).clone()
"""),
    Right("a sum of zeros, and out=", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = None
    for gradient in gradients:
        if total is None:
            total = torch.zeros(gradient.numel(), dtype=add)
        total.add_(gradient)
    mine = total.tensor_split(comm.size)[comm.rank]
    shard = torch.empty_like(mine)
    comm.reduce_scatter(total, out=shard)
    result = torch.empty_like(shard, dtype=keep)
    return result.copy_(shard.true_divide(micro_batches * comm.size))
"""),
]  # fmt: skip
