"""Right answers to the exercises of lesson 04, in other styles than the model's."""

from zoo.right import zero2_backward, zero2_norm
from zoo.right.answer import Right

RIGHT = [
    *zero2_backward.RIGHT,
    *zero2_norm.RIGHT,
    Right("all micro-batches in one loop", "accumulate", """
def accumulate(comm, micro_batches, each):
    total = None
    for gradient in micro_batches if each else [sum(micro_batches)]:
        shard = comm.reduce_scatter(gradient, average=True)
        total = shard if total is None else total.add_(shard)
    return total / len(micro_batches)
"""),
    Right("list of handles, pop 0, peek after", "in_flight", """
def in_flight(comm, gradients, limit):
    going, done = [], []
    for gradient in gradients:
        if len(going) == limit:
            done.append(going.pop(0).wait())
        going.append(comm.reduce_scatter_async(gradient, average=True))
    return done + [handle.wait() for handle in going]
"""),
    Right("class with a deque and divide at the end", "in_flight", """
from collections import deque
class Window:
    def __init__(self, size):
        self.size, self.open, self.done = size, deque(), []
    def make_room(self, most):
        while len(self.open) > most:
            self.done.append(self.open.popleft().wait())
    def add(self, handle):
        self.open.append(handle)
def in_flight(comm, gradients, limit):
    window = Window(limit)
    for gradient in gradients:
        window.make_room(limit - 1)
        window.add(comm.reduce_scatter_async(gradient))
        del gradient
    window.make_room(0)
    return [shard.div_(comm.size) for shard in window.done]
"""),
    Right("slots modulo limit", "in_flight", """
def in_flight(comm, gradients, limit):
    slots, shards = [None] * limit, []
    for index, gradient in enumerate(gradients):
        slot = index % limit
        if slots[slot] is not None:
            shards.append(slots[slot].wait())
            slots[slot] = None
        slots[slot] = comm.reduce_scatter_async(gradient, average=True)
    count = len(shards)
    gradient = None
    for step in range(limit):
        handle = slots[(count + step) % limit]
        if handle is not None:
            shards.append(handle.wait())
    return shards
"""),
    Right("next with a sentinel, generator inside", "in_flight", """
def in_flight(comm, gradients, limit):
    def shards():
        queue = []
        stream = iter(gradients)
        while (gradient := next(stream, None)) is not None:
            if len(queue) >= limit:
                yield queue.pop(0).wait()
            queue.append(comm.reduce_scatter_async(gradient, average=True))
            gradient = None
        yield from (handle.wait() for handle in queue)
    return list(shards())
"""),
    Right("out buffers of its own", "in_flight", """
def in_flight(comm, gradients, limit):
    pending, out = [], []
    for gradient in gradients:
        if len(pending) >= limit:
            pending[0].wait()
            del pending[0]
        n = gradient.numel()
        size = n // comm.size + (comm.rank < n % comm.size)
        out.append(gradient.new_empty(size))
        pending.append(comm.reduce_scatter_async(gradient, average=True, out=out[-1]))
    for handle in pending:
        handle.wait()
    return out
"""),
    Right("recursion at the tail", "in_flight", """
def in_flight(comm, gradients, limit):
    gradients, waiting, ended = iter(gradients), [], []
    def take():
        try:
            gradient = next(gradients)
        except StopIteration:
            return False
        if len(waiting) == limit:
            ended.append(waiting.pop(0).wait())
        waiting.append(comm.reduce_scatter_async(gradient, average=True))
        return True
    while take():
        pass
    ended.extend(map(lambda handle: handle.wait(), waiting))
    return ended
"""),
    Right("lerp: a running mean", "accumulate", """
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
    Right("sum of parts, clones", "accumulate", """
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
    Right("stack and mean for once, fsum style for each", "accumulate", """
def accumulate(comm, micro_batches, each):
    if each:
        shards = (comm.reduce_scatter(g, average=True) for g in micro_batches)
        total = next(shards)
        for shard in shards:
            total.add_(shard)
        return total / len(micro_batches)
    return comm.reduce_scatter(torch.stack(micro_batches).mean(dim=0), average=True)
"""),
    Right("recursion over the micro-batches", "accumulate", """
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
    Right("async in each, waited at once, out", "accumulate", """
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
    Right("islice first, then a rolling zip", "in_flight", """
from collections import deque
from itertools import islice
def in_flight(comm, gradients, limit):
    gradients = iter(gradients)
    start = lambda g: comm.reduce_scatter_async(g, average=True)
    window = deque(map(start, islice(gradients, limit)))
    done = []
    for g in gradients:
        done.append(window.popleft().wait())
        window.append(start(g))
    while window:
        done.append(window.popleft().wait())
    return done
"""),
    Right("an object with load and save, results by index", "in_flight", """
class Store:
    def __init__(self):
        self.waiting, self.results, self.count = {}, {}, 0
    def save(self, handle):
        self.waiting[self.count] = handle
        self.count += 1
    def load(self):
        oldest = next(iter(self.waiting))
        self.results[oldest] = self.waiting.pop(oldest).wait()
def in_flight(comm, gradients, limit):
    store = Store()
    for open in gradients:
        if len(store.waiting) >= limit:
            store.load()
        store.save(comm.reduce_scatter_async(open, average=True))
        open = None
    while store.waiting:
        store.load()
    return [store.results[i] for i in sorted(store.results)]
"""),
    Right("add with alpha", "accumulate", """
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
    Right("two functions in a table", "accumulate", """
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
    Right("functools.reduce, which holds on a little longer", "accumulate", """
import functools, operator
def accumulate(comm, micro_batches, each):
    load = lambda g: comm.reduce_scatter(g, average=True)
    if each: total = functools.reduce(operator.add, map(load, micro_batches))
    else: total = load(functools.reduce(operator.add, micro_batches))
    return total / len(micro_batches)
"""),
]  # fmt: skip
