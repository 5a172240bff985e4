"""Answers to `mean_gradient` of lesson 06, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("06_mixed_precision", "mean_gradient")

WRONG = [
    blank("mean_gradient"),
    Wrong("adds in 16 bits",
          changed(changed(MODEL, ".to(add)", ""), ", average", ".to(add), average"),
          "micro-batches that come late"),
    Wrong("all in 16 bits",
          changed(MODEL, ".to(add)", ""),
          "over micro-batches and over ranks"),
    Wrong("reduces in 16 bits",
          changed(MODEL, "(total, average=True)", "(total.bfloat16(), average=True).to(add)"),
          "before the ranks add"),
    Wrong("reduces in what it keeps",
          changed(MODEL, ", average", ".to(keep), average"),
          "in the dtype that it sends"),
    Wrong("adds in fp32, whatever add is",
          changed(MODEL, ".to(add)", ".float()"),
          "travels in it"),
    Wrong("forgets to convert",
          changed(MODEL, "mean.to(keep)", "mean"),
          "`add` is for the sum"),
    Wrong("rounds on the way",
          changed(MODEL, ".to(keep)", ".bfloat16().to(keep)"),
          "rounded to bf16 on its way"),
    Wrong("divides in what it keeps",
          changed(MODEL, "average=True", "average=True).to(keep"),
          "before or after the last division"),
    Wrong("sum over micro-batches",
          changed(MODEL, " / micro_batches", ""),
          "the sum over the micro-batches"),
    Wrong("sum over ranks",
          changed(MODEL, "total, average=True", "total"),
          "the sum over the ranks"),
    Wrong("sum over both",
          changed(MODEL, "(total, average=True) / micro_batches", "(total)"),
          "take the mean over both"),
    Wrong("averages twice",
          changed(MODEL, "micro_batches\n", "micro_batches / comm.size\n"),
          "divided by N twice"),
    Wrong("own gradients",
          changed(MODEL, "comm.reduce_scatter(total, average=True)", "total.tensor_split(comm.size)[comm.rank]"),
          "nobody else's are in"),
    Wrong("whole",
          changed(MODEL, "reduce_scatter", "all_reduce"),
          "a rank keeps its shard"),
    Wrong("the last alone",
          changed(MODEL, "total += gradient", "total = gradient.to(add)"),
          "the last micro-batch alone gives, divided"),
    Wrong("the first alone",
          changed(MODEL, "total += gradient", "pass"),
          "the first micro-batch alone gives"),
    Wrong("drops the first",
          changed(MODEL, ".to(add)", ".to(add) * 0"),
          "without the first micro-batch"),
    Wrong("reduces each", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    parts = [comm.reduce_scatter(gradient.to(add), average=True) for gradient in gradients]
    return (sum(parts) / micro_batches).to(keep)
""", "then reduce the sum, once"),
    Wrong("a list", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = sum(gradient.to(add) for gradient in list(gradients))
    return (comm.reduce_scatter(total, average=True) / micro_batches).to(keep)
""", "a list of gradients"),
    Wrong("all-reduces",
          changed(MODEL,
                  "reduce_scatter(total, average=True)",
                  "all_reduce(total, average=True).tensor_split(comm.size)[comm.rank]"),
          "add up what is yours first"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("a view of the sum", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    part = total.tensor_split(comm.size)[comm.rank]
    comm.reduce_scatter(total, average=True, out=part)
    return part.div_(micro_batches).to(keep)
""", "are alive that it did not return"),
    Wrong("divides each by the count in bf16", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = (next(gradients) / micro_batches).to(add)
    for gradient in gradients:
        total += gradient / micro_batches
    return comm.reduce_scatter(total, average=True).to(keep)
""", "divided in bf16, before they are added"),
    Wrong("counts the gradients it has seen less one", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    count = 0
    for gradient in gradients:
        total += gradient
        count += 1
    return (comm.reduce_scatter(total, average=True) / max(count, 1)).to(keep)
""", "one micro-batch too few"),
    # Fail at an edge alone, or in a second call.
    Wrong("divides, converts, and sums up what is left",
          changed(MODEL,
                  "mean = comm.reduce_scatter(total, average=True) / micro_batches\n"
                  "    return mean.to(keep)",
                  "return comm.reduce_scatter((total / micro_batches).to(keep), average=True)"),
          "a ring adds up in the dtype that it sends"),
    Wrong("all of the mean for everybody", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    comm.all_reduce(total)
    return total.tensor_split(comm.size)[comm.rank].div(micro_batches * comm.size).to(keep)
""", "and reduce_scatter of"),
]  # fmt: skip

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
