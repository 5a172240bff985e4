"""Answers to `overlapped_walk` of lesson 07, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("reads begun by the disk's thread", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads, writes = {}, []
    def begin(k):
        reads[k] = read(k, k % buffers)
    for k in range(min(groups, buffers)):
        begin(k)
    for k in range(groups):
        reads[k].wait()
        compute(k, k % buffers)
        handle = write(k, k % buffers)
        writes.append(handle)
        if k + buffers < groups:
            handle.then(lambda k=k: begin(k + buffers))
        if k + 1 < groups and k + 1 not in reads:
            writes[k + 1 - buffers].wait()
    for handle in writes:
        handle.wait()
"""),
    Right("a list of slots, waits before a read it lacks", """
def overlapped_walk(groups, buffers, read, compute, write):
    reading, writing = [None] * groups, [None] * groups
    def load_next(group):
        reading[group] = read(group, group % buffers)
    for group in range(min(buffers, groups)):
        load_next(group)
    for group in range(groups):
        if group >= buffers:
            writing[group - buffers].wait()
        reading[group].wait()
        compute(group, group % buffers)
        writing[group] = write(group, group % buffers)
        if group + buffers < groups:
            writing[group].then(lambda following=group + buffers: load_next(following))
    [handle.wait() for handle in writing]
"""),
    Right("a class with a partial", """
from functools import partial
class Walk:
    def __init__(self, groups, buffers, read, compute, write):
        self.groups, self.buffers = groups, buffers
        self.read, self.compute, self.write = read, compute, write
        self.coming, self.going = {}, {}
    def start(self, group, buffer):
        if group < self.groups:
            self.coming[group] = self.read(group, buffer)
    def go(self):
        for b in range(self.buffers):
            self.start(b, b)
        for group in range(self.groups):
            buffer = group % self.buffers
            if group not in self.coming:
                self.going[group - self.buffers].wait()
            self.coming.pop(group).wait()
            self.compute(group, buffer)
            self.going[group] = self.write(group, buffer)
            self.going[group].then(partial(self.start, group + self.buffers, buffer))
        for handle in self.going.values():
            handle.wait()
def overlapped_walk(groups, buffers, read, compute, write):
    Walk(groups, buffers, read, compute, write).go()
"""),
    Right("a queue of free buffers", """
from collections import deque
def overlapped_walk(groups, buffers, read, compute, write):
    arrived, last, ahead = {}, [], iter(range(groups))
    place = {}
    def take(buffer):
        k = next(ahead, None)
        if k is not None:
            place[k] = buffer
            arrived[k] = read(k, buffer)
    for buffer in range(buffers):
        take(buffer)
    for k in range(groups):
        while k not in arrived:
            last.pop(0).wait()
        arrived[k].wait()
        compute(k, place[k])
        done = write(k, place[k])
        done.then(lambda buffer=place[k]: take(buffer))
        last.append(done)
    for done in last:
        done.wait()
"""),
    Right("chains by a generator of buffers", """
import functools
def overlapped_walk(groups, buffers, read, compute, write):
    load, save = dict(), dict()
    def arrive(k):
        load[k] = read(k, k % buffers)
    @functools.cache
    def leave(k):
        return write(k, k % buffers)
    [arrive(k) for k in range(groups) if k < buffers]
    for k in range(groups):
        if k not in load:
            leave(k - buffers).wait()
        load[k].wait()
        compute(k, k % buffers)
        handle = leave(k)
        if k + buffers < groups:
            handle.then(functools.partial(arrive, k + buffers))
    for k in range(groups):
        leave(k).wait()
"""),
    Right("free list by then, waits for the oldest write", """
def overlapped_walk(groups, buffers, read, compute, write):
    coming = []
    todo = list(range(groups))[::-1]
    def fetch(buffer):
        if todo:
            k = todo.pop()
            coming.append((k, buffer, read(k, buffer)))
    for buffer in range(buffers):
        fetch(buffer)
    going = []
    for k in range(groups):
        oldest = 0
        while not coming:
            going[oldest].wait()
            oldest += 1
        group, buffer, handle = coming.pop(0)
        handle.wait()
        compute(group, buffer)
        out = write(group, buffer)
        out.then(lambda buffer=buffer: fetch(buffer))
        going.append(out)
    for out in going:
        out.wait()
"""),
    Right("the last write ends last", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads, writes = {}, {}
    def begin(k):
        reads[k] = read(k, k % buffers)
    for k in range(min(groups, buffers)):
        begin(k)
    for k in range(groups):
        if k not in reads:
            writes[k - buffers].wait()
        reads[k].wait()
        compute(k, k % buffers)
        writes[k] = write(k, k % buffers)
        if k + buffers < groups:
            writes[k].then(lambda k=k: begin(k + buffers))
    # Writes end in the order in which they began.
    writes[groups - 1].wait()
"""),
    # Careful with what is under way.
    Right("next of an iterator in then", """
def overlapped_walk(groups, buffers, read, compute, write):
    coming, order = {}, iter(range(groups))
    def refill(b):
        k = next(order, None)
        if k is not None:
            coming[k] = (b, read(k, b))
    for b in range(buffers):
        refill(b)
    going = []
    for k in range(groups):
        for w in going:
            if k in coming:
                break
            w.wait()
        b, reading = coming.pop(k)
        reading.wait()
        compute(k, b)
        w = write(k, b)
        w.then(lambda b=b: refill(b))
        going.append(w)
    [w.wait() for w in going]
"""),
    # Have to hold at the edges.
    Right("any buffer that is free", """
from collections import deque
def overlapped_walk(groups, buffers, read, compute, write):
    order, todo, ended = deque(), iter(range(groups)), []
    def fill(buffer):
        for k in todo:
            order.append((k, buffer, read(k, buffer)))
            return
    for buffer in range(buffers):
        fill(buffer)
    for _ in range(groups):
        while not order:
            ended.pop(0).wait()
        k, buffer, handle = order.popleft()
        handle.wait()
        compute(k, buffer)
        out = write(k, buffer)
        ended.append(out)
        out.then(lambda buffer=buffer: fill(buffer))
    for out in ended:
        out.wait()
"""),
    Right("recursion, waits on the way back", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads, writes = {}, {}
    def chain(k):
        reads[k] = read(k, k % buffers)
    def go(k):
        if k == groups:
            return
        if k >= buffers and k not in reads:
            writes[k - buffers].wait()
        reads[k].wait()
        compute(k, k % buffers)
        writes[k] = write(k, k % buffers)
        if k + buffers < groups:
            writes[k].then(lambda: chain(k + buffers))
        go(k + 1)
        writes[k].wait()
    for k in range(min(groups, buffers)):
        chain(k)
    go(0)
"""),
]  # fmt: skip
