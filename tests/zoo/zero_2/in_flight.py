"""Answers to `in_flight` of lesson 04, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("list of handles, pop 0, peek after", """
def in_flight(comm, gradients, limit):
    going, done = [], []
    for gradient in gradients:
        if len(going) == limit:
            done.append(going.pop(0).wait())
        going.append(comm.reduce_scatter_async(gradient, average=True))
    return done + [handle.wait() for handle in going]
"""),
    Right("class with a deque and divide at the end", """
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
    Right("slots modulo limit", """
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
    Right("next with a sentinel, generator inside", """
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
    Right("out buffers of its own", """
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
    Right("recursion at the tail", """
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
    Right("islice first, then a rolling zip", """
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
    Right("an object with load and save, results by index", """
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
    # Written from the text alone.
    Right("generator, prepared shards", """
def in_flight(comm, gradients, limit):
    def landed():
        flying = []
        for gradient in gradients:
            if not len(flying) < limit:
                yield flying.pop(0).wait()
            numel = gradient.numel()
            size = numel // comm.size + int(comm.rank < numel % comm.size)
            flying.append(comm.reduce_scatter_async(gradient, True, torch.empty(size, dtype=gradient.dtype)))
        yield from (handle.wait() for handle in flying)
    return list(landed())
"""),
    Right("reduces in place, then copies; divides after", """
def in_flight(comm, gradients, limit):
    handles, shards, oldest = {}, [], 0
    def end():
        nonlocal oldest
        shards.append(handles.pop(oldest).wait().clone().div_(comm.size))
        oldest += 1
    number = 0
    source = iter(gradients)
    while (gradient := next(source, None)) is not None:
        if number - oldest >= limit:
            end()
        part = gradient.tensor_split(comm.size)[comm.rank]
        handles[number] = comm.reduce_scatter_async(gradient, out=part)
        del gradient, part
        number += 1
    while handles:
        end()
    return shards
"""),
]  # fmt: skip
