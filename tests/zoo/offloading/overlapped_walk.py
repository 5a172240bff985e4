"""Answers to `overlapped_walk` of lesson 07, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("07_offloading", "overlapped_walk")
WALK = changed(changed(MODEL,
                       "reads, writes",
                       "from functools import partial\n    reads, writes"),
               "lambda k=k: begin(k",
               "partial(begin, k")  # fmt: skip
LATER = """
    reads = {{k: read(k, k) for k in range(min(groups, buffers))}}
    writes = []
    late = 1 if buffers >= {late} else 0
    def follow(k):
        if 0 <= k and k + buffers < groups:
            writes[k].then(lambda: reads.__setitem__(k + buffers, read(k + buffers, k % buffers)))
    for k in range(groups):
        if k >= buffers:
            writes[k - buffers].wait()
        reads[k].wait()
        compute(k, k % buffers)
        writes.append(write(k, k % buffers))
        follow(k - late)
    for handle in writes:
        handle.wait()
"""


WRONG = [
    blank("overlapped_walk"),
    Wrong("does nothing",
          "def overlapped_walk(groups, buffers, read, compute, write):\n    pass",
          "group 0 is never read"),
    Wrong("one after the other", """
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        read(k, 0).wait()
        compute(k, 0)
        write(k, 0).wait()
""", "nothing goes on at once"),
    Wrong("never waits for a read",
          changed(WALK, "        reads[k].wait()\n", ""),
          "before anybody has waited for the read"),
    Wrong("does not wait for the last writes",
          changed(WALK, "    for writing in writes.values():\n        writing.wait()\n", ""),
          "under way, of group"),
    Wrong("reuses a buffer at once",
          changed(changed(WALK,
                          "        if k >= buffers:\n            writes[k - buffers].wait()\n",
                          ""),
                  "writes[k].then(partial(begin, k + buffers))",
                  "begin(k + buffers)"),
          "is still being written with group"),
    Wrong("forgets the last group",
          changed(WALK,
                  "writes[k] =",
                  "if k == groups - 1:\n"
                  "            break\n"
                  "        writes[k] ="),
          "is never written"),
    Wrong("does not write at all", """
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        read(k, k % buffers).wait()
        compute(k, k % buffers)
""", "before it is written"),
    Wrong("reads too far ahead", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads = [read(k, k % buffers) for k in range(groups)]
    for k in range(groups):
        reads[k].wait()
        compute(k, k % buffers)
        write(k, k % buffers).wait()
""", "and not computed on"),
    Wrong("more buffers than there are",
          changed(changed(WALK,
                          "buffers)\n\n    for k in range(min(groups, buffers))",
                          "(buffers + 1))\n\n    for k in range(min(groups, buffers + 1))"),
                  "buffers)\n        writes[k] = write(k, k % buffers)",
                  "(buffers + 1))\n        writes[k] = write(k, k % (buffers + 1))"),
          "buffers are 0 to 1"),
    Wrong("more groups than there are",
          changed(WALK, "min(groups, buffers)", "buffers"),
          "groups are 0 to 1"),
    Wrong("a loop's last k",
          changed(WALK, "partial(begin, k", "lambda: begin(k"),
          "KeyError"),
    Wrong("computes on the disk's thread", """
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        reading = read(k, 0)
        reading.then(lambda: compute(k, 0))
        reading.wait()
        write(k, 0).wait()
""", "compute for group 0 runs in what a then() calls"),
    Wrong("waits on the disk's thread",
          changed(WALK,
                  "(k, k % buffers)\n\n",
                  "(k, k % buffers)\n"
                  "        if k >= buffers:\n"
                  "            reads[k].wait()\n\n"),
          "wait for group"),
    Wrong("writes before it computes", """
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        read(k, 0).wait()
        write(k, 0).wait()
        compute(k, 0)
""", "was not computed in buffer"),
    Wrong("the wrong buffer",
          changed(WALK, "compute(k, k % buffers)", "compute(k, (k + 1) % buffers)"),
          "was not read into buffer"),
    Wrong("backwards", """
def overlapped_walk(groups, buffers, read, compute, write):
    for k in reversed(range(groups)):
        read(k, 0).wait()
        compute(k, 0)
        write(k, 0).wait()
""", "keep the order"),
    Wrong("computes twice",
          changed(WALK, "[k].wait()\n", "[k].wait()\n        compute(k, k % buffers)\n"),
          "is computed twice"),
    Wrong("waits before it reads on", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads = {k: read(k, k % buffers) for k in range(min(groups, buffers))}
    for k in range(groups):
        reads[k].wait()
        compute(k, k % buffers)
        writing = write(k, k % buffers)
        writing.wait()
        if k + buffers < groups:
            reads[k + buffers] = read(k + buffers, k % buffers)
""", "also with 3 buffers somebody stands still"),
    Wrong("a turn later", """
def overlapped_walk(groups, buffers, read, compute, write):
    late = 2 if buffers > 2 else 1
    reads = {k: read(k, k % buffers) for k in range(min(groups, buffers))}
    writes = {}
    for k in range(groups):
        done = k - late
        if done >= 0 and done + buffers < groups:
            writes[done].wait()
            reads[done + buffers] = read(done + buffers, done % buffers)
        reads[k].wait()
        compute(k, k % buffers)
        writes[k] = write(k, k % buffers)
    for writing in writes.values():
        writing.wait()
""", "with 2 somebody does"),
    Wrong("trusts the clock", """
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        read(k, k % buffers).wait()
        compute(k, k % buffers)
        writing = write(k, k % buffers)
    writing.wait()
""", "nobody had asked"),
    Wrong("yields",
          changed(WALK, "compute(k", "yield compute(k"),
          "is a generator"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("one write after the other", """
def overlapped_walk(groups, buffers, read, compute, write):
    reading, writing = {}, []
    def begin(k):
        if k < groups:
            reading[k] = read(k, k % buffers)
    for k in range(min(buffers, groups)):
        begin(k)
    for k in range(groups):
        if k >= buffers:
            writing[k - buffers].wait()
        reading[k].wait()
        compute(k, k % buffers)
        if writing:
            writing[-1].wait()
        handle = write(k, k % buffers)
        handle.then(lambda k=k: begin(k + buffers))
        writing.append(handle)
    writing[-1].wait()
""", "before you begin the next: the disk takes writes in turn"),
    # Fail at an edge alone, or in a second step.
    Wrong("one read ahead at the start", """
def overlapped_walk(groups, buffers, read, compute, write):
    reading, writing = {0: read(0, 0)}, {}
    def begin(k):
        if k < groups and k not in reading and (k < buffers or k - buffers in done):
            reading[k] = read(k, k % buffers)
    done = set()
    def ended(k):
        done.add(k)
        begin(k + buffers)
    for k in range(groups):
        begin(k + 1)
        if k not in reading:
            writing[k - buffers].wait()
            begin(k)
        reading[k].wait()
        compute(k, k % buffers)
        writing[k] = write(k, k % buffers)
        writing[k].then(lambda k=k: ended(k))
    for handle in writing.values():
        handle.wait()
""", "with 3 buffers somebody stands still: "),
    Wrong("waits for no write from 3 buffers on", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads = {k: read(k, k) for k in range(min(groups, buffers))}
    writes = []
    def begin(k):
        if k < groups and k not in reads:
            reads[k] = read(k, k % buffers)
    for k in range(groups):
        if k >= buffers and buffers < 3:
            writes[k - buffers].wait()
        begin(k)
        reads[k].wait()
        compute(k, k % buffers)
        writes.append(write(k, k % buffers))
        writes[k].then(lambda k=k: begin(k + buffers))
    for handle in writes:
        handle.wait()
""", "3 buffers, writes are by far the slowest"),
    Wrong("says a computation later what shall follow", f"""
def overlapped_walk(groups, buffers, read, compute, write):{LATER.format(late=2)}""",
          "with 3 buffers somebody stands still at times"),
    Wrong("says a computation later what shall follow, from 3 buffers on", f"""
def overlapped_walk(groups, buffers, read, compute, write):{LATER.format(late=3)}""",
          "tell then() what shall follow"),
]  # fmt: skip

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
