"""Answers to `accumulate` of lesson 04, wrong and right."""

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
    Right("sum of parts, clones", """
from functools import reduce
def accumulate(comm, micro_batches, each):
    share = 1 / (len(micro_batches) * comm.size)
    if each:
        total = comm.reduce_scatter(micro_batches[0])
        for gradient in micro_batches[1:]:
            total += comm.reduce_scatter(gradient)
        return total.mul_(share)
    return comm.reduce_scatter(reduce(torch.add, micro_batches)).mul_(share)
"""),
    Right("stack and mean for once, fsum style for each", """
def accumulate(comm, micro_batches, each):
    if each:
        shards = (comm.reduce_scatter(g, average=True) for g in micro_batches)
        total = next(shards)
        for shard in shards:
            total.add_(shard)
        return total / len(micro_batches)
    return comm.reduce_scatter(torch.stack(micro_batches).mean(dim=0), average=True)
"""),
    Right("recursion over the micro-batches", """
def accumulate(comm, micro_batches, each):
    def add_up(rest):
        first, *others = rest
        mine = comm.reduce_scatter(first) if each else first.clone()
        for other in others:
            mine += comm.reduce_scatter(other) if each else other
        return mine
    total = add_up(micro_batches)
    if not each:
        total = comm.reduce_scatter(total)
    return total.div(comm.size * len(micro_batches))
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
    Right("add with alpha", """
def accumulate(comm, micro_batches, each):
    share = 1.0 / len(micro_batches)
    if each:
        out = comm.reduce_scatter(micro_batches[0], average=True).mul_(share)
        for g in micro_batches[1:]:
            out.add_(comm.reduce_scatter(g, average=True), alpha=share)
        return out
    whole = torch.zeros_like(micro_batches[0])
    for g in micro_batches:
        whole.add_(g, alpha=share)
    return comm.reduce_scatter(whole, average=True)
"""),
    Right("two functions in a table", """
def accumulate(comm, micro_batches, each):
    n = len(micro_batches)
    def often():
        it = iter(micro_batches)
        total = comm.reduce_scatter(next(it))
        for g in it:
            torch.add(total, comm.reduce_scatter(g), out=total)
        return total
    def rarely():
        whole = torch.empty_like(micro_batches[0]).copy_(micro_batches[0])
        for g in micro_batches[1:]:
            torch.add(whole, g, out=whole)
        return comm.reduce_scatter(whole)
    return {True: often, False: rarely}[bool(each)]().div_(n).div_(comm.size)
"""),
    Right("functools.reduce, which holds on a little longer", """
import functools, operator
def accumulate(comm, micro_batches, each):
    load = lambda g: comm.reduce_scatter(g, average=True)
    if each: total = functools.reduce(operator.add, map(load, micro_batches))
    else: total = load(functools.reduce(operator.add, micro_batches))
    return total / len(micro_batches)
"""),
    # Written from the text alone.
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
