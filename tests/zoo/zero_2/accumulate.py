"""Answers to `accumulate` of lesson 04 that are right, each in a style of its own."""

from zoo.answers import Right

RIGHT = [
    Right("all micro-batches in one loop", """
def accumulate(comm, micro_batches, each):
    total = None
    for gradient in micro_batches if each else [sum(micro_batches)]:
        shard = comm.reduce_scatter(gradient, average=True)
        total = shard if total is None else total.add_(shard)
    return total / len(micro_batches)
"""),
    Right("lerp: a running mean", """
def accumulate(comm, micro_batches, each):
    if not each:
        whole = torch.zeros_like(micro_batches[0])
        for gradient in micro_batches:
            whole.add_(gradient)
        return comm.reduce_scatter(whole.div_(len(micro_batches)), average=True)
    count, mean = 0, None
    for gradient in micro_batches:
        count += 1
        shard = comm.reduce_scatter(gradient, average=True)
        mean = shard if mean is None else mean.add_(shard.sub_(mean), alpha=1 / count)
    return mean
"""),
    Right("async in each, waited at once, out", """
class Sum:
    value = None
    def __iadd__(self, other):
        self.value = other if self.value is None else self.value + other
        return self
def accumulate(comm, micro_batches, each):
    total = Sum()
    for gradient in micro_batches:
        total += comm.reduce_scatter_async(gradient).wait() if each else gradient
    mean = total.value / len(micro_batches)
    return mean / comm.size if each else comm.reduce_scatter(mean, average=True)
"""),
    Right("functools.reduce, which holds on a little longer", """
import functools, operator
def accumulate(comm, micro_batches, each):
    load = lambda g: comm.reduce_scatter(g, average=True)
    if each: total = functools.reduce(operator.add, map(load, micro_batches))
    else: total = load(functools.reduce(operator.add, micro_batches))
    return total / len(micro_batches)
"""),
    Right("stack, mean, out", """
def accumulate(comm, micro_batches, each):
    first, n = micro_batches[0], len(micro_batches)
    if not each:
        return comm.reduce_scatter(torch.stack(micro_batches).sum(0).div(n), average=True)
    mine = first.tensor_split(comm.size)[comm.rank]
    total, arrived = torch.zeros_like(mine), torch.empty_like(mine)
    for gradient in micro_batches:
        total += comm.reduce_scatter(gradient, average=True, out=arrived) / n
    return total
"""),
]  # fmt: skip
