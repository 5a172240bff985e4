"""Answers to `overlapped_walk` of lesson 07, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("07_offloading", "overlapped_walk")

RIGHT = [
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
    # Writes end in the order in which they began.
    Right("the last write ends last",
          changed(MODEL, "for writing in writes.values():\n        writing.wait()", "writes[groups - 1].wait()")),
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
