"""Answers to `in_flight` of lesson 04, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("04_zero_2", "in_flight")

WRONG = [
    blank("in_flight", "def in_flight(comm, gradients, limit):\n"),
    Wrong("all at once", """
def in_flight(comm, gradients, limit):
    return [handle.wait() for handle in [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]]
""", "are allowed: wait for the oldest"),
    Wrong("one too many",
          changed(MODEL, "== limit:", "> limit:"),
          "had 3 under way at once"),
    Wrong("waits at once", """
def in_flight(comm, gradients, limit):
    return [comm.reduce_scatter_async(gradient, average=True).wait() for gradient in gradients]
""", "never more than 1 under way"),
    Wrong("not asynchronous", """
def in_flight(comm, gradients, limit):
    return [comm.reduce_scatter(gradient, average=True) for gradient in gradients]
""", "none at all under way"),
    Wrong("waits before it takes the next", """
def in_flight(comm, gradients, limit):
    under_way, shards = [], []
    for gradient in gradients:
        under_way.append(comm.reduce_scatter_async(gradient, average=True))
        if len(under_way) == limit:
            shards.append(under_way.pop(0).wait())
    return shards + [handle.wait() for handle in under_way]
""", "waited with 2 under way and no gradient at hand"),
    Wrong("keeps whole gradients",
          changed(changed(MODEL,
                          "shards = []",
                          "shards, kept = [], []"),
                  "(0).wait()",
                  "(0).wait())\n        kept.append(gradient"),
          "which list, or which variable"),
    Wrong("forgets the last",
          changed(MODEL, "shards + [handle.wait() for handle in under_way]", "shards"),
          "those that were still under way at the end"),
    Wrong("the newest first",
          changed(MODEL, "(0).wait()", "().wait()"),
          "which handle is the oldest?"),
    Wrong("a sum",
          changed(MODEL, ", average=True", ""),
          "shards of the sum over the ranks"),
    Wrong("unsharded result",
          changed(MODEL, "reduce_scatter_async", "all_reduce_async"),
          "whole gradients: a rank keeps"),
    Wrong("handles",
          changed(MODEL, "[handle.wait() for handle in under_way]", "under_way"),
          "Counted"),
    Wrong("own data only", """
def in_flight(comm, gradients, limit):
    return [gradient.tensor_split(comm.size)[comm.rank] for gradient in gradients]
""", "nothing was added to them"),
    # Return the right numbers, or nearly always do.
    Wrong("waits though there is room",
          changed(MODEL,
                  "if len(under_way) == limit:",
                  "while len(under_way) > max(limit - 2, 0) and (shards or len(under_way) == limit):"),
          "do not wait while there is room"),
    Wrong("waits at once for a single one",
          changed(MODEL,
                  "return",
                  "    if limit == 1:\n"
                  "            shards.append(under_way.pop(0).wait())\n"
                  "    return"),
          "waited with 1 under way and no gradient at hand"),
    Wrong("four at most",
          changed(MODEL, "limit:", "min(limit, 4):"),
          "never more than 4 under way"),
    Wrong("skips empty ones",
          changed(MODEL,
                  "gradients:\n",
                  "gradients:\n"
                  "        if not gradient.numel():\n"
                  "            continue\n"),
          "gradients without elements"),
    Wrong("all-reduce, then cut", """
def in_flight(comm, gradients, limit):
    under_way, shards = [], []
    for gradient in gradients:
        if len(under_way) == limit:
            shards.append(under_way.pop(0).wait().tensor_split(comm.size)[comm.rank])
        under_way.append(comm.all_reduce_async(gradient, average=True))
    return shards + [handle.wait().tensor_split(comm.size)[comm.rank] for handle in under_way]
""", "is all_reduce of"),
    Wrong("arrived, not waited for",
          changed(MODEL, "handle.wait()", "handle.arrived()"),
          "had met no wait()"),
    Wrong("double precision",
          changed(MODEL, ", average", ".double(), average"),
          "torch.float64, not torch.float32: keep the dtype"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("single precision",
          changed(MODEL, ", average", ".float(), average"),
          "torch.float32, not torch.float64"),
    Wrong("one gradient ahead", """
def in_flight(comm, gradients, limit):
    under_way, shards, last = [], [], None
    for gradient in gradients:
        if last is not None:
            if len(under_way) == limit:
                shards.append(under_way.pop(0).wait())
            under_way.append(comm.reduce_scatter_async(last, average=True))
        last = gradient
    if len(under_way) == limit:
        shards.append(under_way.pop(0).wait())
    under_way.append(comm.reduce_scatter_async(last, average=True))
    return shards + [handle.wait() for handle in under_way]
""", "start each as it comes"),
    Wrong("the newest first, put in order", """
def in_flight(comm, gradients, limit):
    under_way, shards = {}, {}
    for index, gradient in enumerate(gradients):
        if len(under_way) == limit:
            newest = max(under_way)
            shards[newest] = under_way.pop(newest).wait()
        under_way[index] = comm.reduce_scatter_async(gradient, average=True)
    shards |= {index: handle.wait() for index, handle in under_way.items()}
    return [shards[index] for index in sorted(shards)]
""", "while call 1 was under way: which handle is the oldest?"),
    # Passed once, or their hints spoke of another fault.
    Wrong("empty shards at once",
          changed(MODEL,
                  "gradients:\n",
                  "gradients:\n"
                  "        if not gradient.numel():\n"
                  "            shards.append(gradient)\n"
                  "            continue\n"),
          "without elements too early"),
    Wrong("no call for empty gradients", """
def in_flight(comm, gradients, limit):
    under_way, shards = [], {}
    for index, gradient in enumerate(gradients):
        shards[index] = gradient
        if not len(gradient):
            continue
        if len(under_way) == limit:
            oldest, handle = under_way.pop(0)
            shards[oldest] = handle.wait()
        under_way.append((index, comm.reduce_scatter_async(gradient, average=True)))
        shards[index] = None
    shards |= {index: handle.wait() for index, handle in under_way}
    return list(shards.values())
""", "one without elements needs a call, too"),
    Wrong("asks whether it has arrived",
          changed(MODEL,
                  "if len(under_way) == limit:\n            ",
                  "while len(under_way) == limit:\n"
                  "            if under_way[0].arrived():\n"
                  "                "),
          "it says neither yes nor no"),
    Wrong("takes what has arrived",
          changed(MODEL, "(0).wait()", "(0).arrived()"),
          "arrived() blocks, returns the result, and does not end a call"),
    Wrong("the last ones the newest first",
          changed(MODEL, "in under_way", "in under_way[::-1]"),
          "the last calls with the newest first"),
    Wrong("a default list of shards",
          changed(MODEL, "):\n    under_way, shards = [], []", ", shards=[]):\n    under_way = []"),
          "things, not "),
    Wrong("a default list that it returns",
          changed(changed(MODEL,
                          "):\n    under_way, shards = [], []",
                          ", out=[]):\n    under_way, shards = [], out"),
                  "return shards + [handle.wait() for handle in under_way]",
                  "out.extend(handle.wait() for handle in under_way)\n    return out"),
          "by itself the same call is right"),
]  # fmt: skip

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
