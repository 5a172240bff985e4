"""Answers to `in_flight` of lesson 04 that are right, each in a style of its own."""

from zoo.answers import Right

RIGHT = [
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
