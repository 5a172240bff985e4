"""Answers to `accumulate` of lesson 04, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("04_zero_2", "accumulate")

WRONG = [
    blank("accumulate", "def accumulate(comm, micro_batches, each):\n"),
    Wrong("always each",
          changed(MODEL, "if each:", "if True:"),
          "is too many"),
    Wrong("always once",
          changed(MODEL, "if each:", "if False:"),
          "is missing"),
    Wrong("a sum over ranks",
          changed(changed(MODEL,
                          "(first, average=True)\n"
                          "        for gradient in others:\n"
                          "            total.add_(comm.reduce_scatter(gradient, average=True))",
                          "(first)\n"
                          "        for gradient in others:\n"
                          "            total.add_(comm.reduce_scatter(gradient))"),
                  "whole, average=True",
                  "whole"),
          "there are several ranks, too"),
    Wrong("a sum over micro-batches",
          changed(MODEL, "total.div_(len(micro_batches))", "total"),
          "there are several micro-batches, too"),
    Wrong("a sum over both",
          changed(changed(MODEL,
                          "(first, average=True)\n"
                          "        for gradient in others:\n"
                          "            total.add_(comm.reduce_scatter(gradient, average=True))",
                          "(first)\n"
                          "        for gradient in others:\n"
                          "            total.add_(comm.reduce_scatter(gradient))"),
                  "(whole, average=True)\n    return total.div_(len(micro_batches))",
                  "(whole)\n    return total"),
          "the sum over ranks and micro-batches"),
    Wrong("mutates its input",
          changed(MODEL, "first.clone()", "first"),
          "overwrote"),
    Wrong("the last one alone", """
def accumulate(comm, micro_batches, each):
    for gradient in micro_batches if each else [torch.stack(micro_batches).mean(0)]:
        shard = comm.reduce_scatter(gradient, average=True)
    return shard
""", "not put in its place"),
    Wrong("the last one alone, divided",
          changed(MODEL,
                  "total.add_(comm.reduce_scatter(gradient, average=True))",
                  "total = comm.reduce_scatter(gradient, average=True)"),
          "divided by their number"),
    Wrong("unsharded result",
          changed(changed(MODEL,
                          "reduce_scatter(first, average=True)\n"
                          "        for gradient in others:\n"
                          "            total.add_(comm.reduce_scatter(gradient",
                          "all_reduce(first.clone(), average=True)\n"
                          "        for gradient in others:\n"
                          "            total.add_(comm.all_reduce(gradient.clone()"),
                  "reduce_scatter",
                  "all_reduce"),
          "the whole mean"),
    Wrong("own data only", """
def accumulate(comm, micro_batches, each):
    return torch.stack(micro_batches).mean(0).tensor_split(comm.size)[comm.rank]
""", "nothing was added to them"),
    Wrong("keeps all shards", """
def accumulate(comm, micro_batches, each):
    parts = micro_batches if each else [torch.stack(micro_batches).mean(0)]
    return torch.stack([comm.reduce_scatter(gradient, average=True) for gradient in parts]).mean(0)
""", "nothing but shards need be kept"),
    Wrong("an all-reduce",
          changed(MODEL,
                  "reduce_scatter(whole, average=True)",
                  "all_reduce(whole, average=True).tensor_split(comm.size)[comm.rank].clone()"),
          "is all_reduce of"),
    Wrong("if rank",
          changed(MODEL,
                  "return",
                  "if not comm.rank:\n"
                  "        total.zero_()\n"
                  "    return"),
          "only rank 0 is wrong"),
    # Return the right numbers, or nearly always do.
    Wrong("adds and subtracts again",
          changed(changed(MODEL,
                          "first.clone()",
                          "first"),
                  "return",
                  "    for gradient in others:\n"
                  "            whole.sub_(gradient)\n"
                  "    return"),
          "even if their numbers are as before"),
    Wrong("double precision",
          changed(MODEL, "total.div_", "total.double().div_"),
          "torch.float64, not torch.float32: keep the dtype"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("zeros in single precision", """
def accumulate(comm, micro_batches, each):
    parts = micro_batches if each else [torch.stack(micro_batches).sum(0)]
    total = torch.zeros(len(micro_batches[0].tensor_split(comm.size)[comm.rank]))
    for gradient in parts:
        total += comm.reduce_scatter(gradient, average=True)
    return total / len(micro_batches)
""", "torch.float32, not torch.float64: keep the dtype"),
    Wrong("divides the only one in place",
          changed(changed(MODEL,
                          "    else:\n        whole =",
                          "        total.div_(len(micro_batches))\n"
                          "    else:\n"
                          "        whole = first if not others else"),
                  "(whole, average=True)\n    return total.div_(len(micro_batches))",
                  "(whole.div_(len(micro_batches)), average=True)\n    return total"),
          "wrote to the gradients [0], even if"),
    # Passed once, or their hints spoke of another fault.
    Wrong("a default list of what came",
          changed(changed(MODEL,
                          "each):",
                          "each, seen=[]):\n    seen.extend(micro_batches)"),
                  "len(micro_batches)",
                  "len(seen)"),
          "after another call (on "),
    Wrong("a default sum of shards", """
def accumulate(comm, micro_batches, each, out=[]):
    if not each:
        return comm.reduce_scatter(sum(micro_batches), average=True) / len(micro_batches)
    for gradient in micro_batches:
        shard = comm.reduce_scatter(gradient, average=True)
        out[:] = [out[0] + shard] if out else [shard]
    return out[0] / len(micro_batches)
""", "by itself the same call is right"),
    Wrong("a default sum of wholes",
          changed(changed(MODEL,
                          "micro_batches, each",
                          "micro_batches, each, wholes=[]"),
                  "total = comm.reduce_scatter(whole",
                  "wholes.append(whole)\n        total = comm.reduce_scatter(wholes[0]"),
          "each=False"),
    Wrong("writes through .data, and puts it back", """
def accumulate(comm, micro_batches, each):
    if not each:
        return comm.reduce_scatter(sum(micro_batches), average=True) / len(micro_batches)
    total = 0
    for gradient in micro_batches:
        part = gradient.data.tensor_split(comm.size)[comm.rank]
        saved = part.clone()
        total = total + comm.reduce_scatter(gradient, average=True, out=part)
        part.copy_(saved)
    return total / len(micro_batches)
""", "wrote to the gradients [0, 1, 2, 3, 4, 5]"),
]  # fmt: skip

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
