"""Answers to `reduce_overlapped` of lesson 02, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("sums divided on arrival", """
def reduce_overlapped(comm, numels, backward, limit):
    plan, means, sent, came = [], {}, [], {}
    for layer in reversed(range(len(numels))):
        if plan and sum(numels[other] for other in plan[-1]) + numels[layer] <= limit:
            plan[-1].append(layer)
        else:
            plan.append([layer])
    def ship(bucket):
        row = torch.cat([came.pop(layer, torch.zeros(numels[layer])) for layer in bucket])
        sent.append((bucket, comm.all_reduce_async(row)))
    for layer, gradient in backward:
        came[layer] = gradient.clone()
        while plan and layer <= plan[0][-1]:
            ship(plan.pop(0))
    for bucket in plan:
        ship(bucket)
    # Calls run in the order of their start, so the last to end is the last that began.
    for bucket, handle in reversed(sent):
        means.update(zip(bucket, (handle.wait() / comm.size).split([numels[layer] for layer in bucket])))
    return [means[layer] for layer in range(len(numels))]
"""),
    Right("plan then ship", """
def reduce_overlapped(comm, numels, backward, limit):
    buckets = []
    for layer in range(len(numels) - 1, -1, -1):
        if buckets and sum(numels[l] for l in buckets[-1]) + numels[layer] <= limit:
            buckets[-1].append(layer)
        else:
            buckets.append([layer])
    where = {layer: i for i, b in enumerate(buckets) for layer in b}
    rows = [torch.zeros(sum(numels[l] for l in b)) for b in buckets]
    handles = []
    def send_until(stop):
        while len(handles) < stop:
            handles.append(comm.all_reduce_async(rows[len(handles)], average=True))
    for layer, gradient in backward:
        send_until(where[layer])
        b = buckets[where[layer]]
        at = sum(numels[l] for l in b[:b.index(layer)])
        rows[where[layer]][at:at + numels[layer]] = gradient
        if layer == b[-1]:
            send_until(where[layer] + 1)
    send_until(len(buckets))
    out = [None] * len(numels)
    for b, handle in zip(buckets, handles):
        at = 0
        mean = handle.wait()
        for layer in b:
            out[layer] = mean[at:at + numels[layer]]
            at += numels[layer]
    return out
"""),
    Right("classes", """
class Bucket:
    def __init__(self):
        self.layers, self.size = [], 0
    def add(self, layer, numel):
        self.layers.append((layer, self.size, numel))
        self.size += numel
    def ready(self):
        self.row = torch.zeros(self.size)
        return self
    def take(self, layer, gradient):
        for mine, start, numel in self.layers:
            if mine == layer:
                self.row[start:start + numel].copy_(gradient)
    def send(self, comm):
        self.handle = comm.all_reduce_async(self.row, average=True)
    def means(self):
        whole = self.handle.wait()
        return {layer: whole[start:start + numel] for layer, start, numel in self.layers}
def reduce_overlapped(comm, numels, backward, limit):
    plan = []
    for layer in reversed(range(len(numels))):
        if not plan or plan[-1].size + numels[layer] > limit:
            plan.append(Bucket())
        plan[-1].add(layer, numels[layer])
    waiting = [bucket.ready() for bucket in plan]
    for layer, gradient in backward:
        while waiting[0].layers[-1][0] > layer:
            waiting.pop(0).send(comm)
        waiting[0].take(layer, gradient)
        if waiting[0].layers[-1][0] == layer:
            waiting.pop(0).send(comm)
    for bucket in waiting:
        bucket.send(comm)
    found = {}
    for bucket in plan:
        found |= bucket.means()
    return [found[layer] for layer in range(len(numels))]
"""),
    Right("one row slices", """
def reduce_overlapped(comm, numels, backward, limit):
    order = list(range(len(numels)))[::-1]
    start, cuts, at, used = {}, [], 0, None
    for layer in order:
        if used is None or used + numels[layer] > limit:
            cuts.append([at, at, layer])
            used = 0
        start[layer] = at
        at += numels[layer]
        used += numels[layer]
        cuts[-1][1:] = [at, layer]
    whole = torch.zeros(at)
    flights = []
    def fly(below):
        while cuts and cuts[0][2] >= below:
            a, b, _ = cuts.pop(0)
            flights.append(comm.all_reduce_async(whole[a:b], average=True))
    for layer, gradient in backward:
        fly(layer + 1)
        whole[start[layer]:start[layer] + numels[layer]] += gradient
        fly(layer)
    fly(0)
    for flight in flights:
        flight.wait()
    return [whole[start[l]:start[l] + numels[l]].clone() for l in range(len(numels))]
"""),
    Right("generator pull", """
from collections import deque
def reduce_overlapped(comm, numels, backward, limit):
    got = {}
    stream = iter(backward)
    ahead = deque()
    done = False
    def upto(layer):
        nonlocal done
    plan, group = [], []
    for layer in sorted(range(len(numels)), reverse=True):
        if group and sum(map(numels.__getitem__, group)) + numels[layer] > limit:
            plan.append(group)
            group = []
        group.append(layer)
    if group:
        plan.append(group)
    sent = []
    queue = deque(plan)
    for layer, gradient in stream:
        while queue and queue[0][-1] > layer:
            b = queue.popleft()
            sent.append(comm.all_reduce_async(torch.cat([got.get(l, torch.zeros(numels[l])) for l in b]), average=True))
        got[layer] = gradient.detach().clone()
        if queue[0][-1] == layer:
            b = queue.popleft()
            sent.append(comm.all_reduce_async(torch.cat([got.get(l, torch.zeros(numels[l])) for l in b]), average=True))
    while queue:
        b = queue.popleft()
        sent.append(comm.all_reduce_async(torch.cat([got.get(l, torch.zeros(numels[l])) for l in b]), average=True))
    means = {}
    for b, h in zip(plan, sent):
        means.update(zip(b, torch.split(h.wait(), [numels[l] for l in b])))
    return [means[l] for l in range(len(numels))]
"""),
    # Closures, classes of handles, names that sound like files.
    Right("handles class", """
class Flights:
    def __init__(self, comm):
        self.comm, self.handles = comm, []
    def start(self, row):
        self.handles.append(self.comm.all_reduce_async(row, average=True))
        return len(self.handles) - 1
    def land(self):
        while self.handles:
            yield self.handles.pop(0).wait()
class Plan:
    def __init__(self, numels, limit):
        self.buckets, load = [], limit + 1
        for layer in range(len(numels) - 1, -1, -1):
            if load + numels[layer] > limit:
                self.buckets.append([])
                load = 0
            self.buckets[-1].append(layer)
            load += numels[layer]
def reduce_overlapped(comm, numels, backward, limit):
    plan, flights = Plan(numels, limit).buckets, Flights(comm)
    parts = {layer: torch.zeros(numels[layer]) for layer in range(len(numels))}
    sent = 0
    for layer, gradient in backward:
        parts[layer] += gradient
        while sent < len(plan) and min(plan[sent]) >= layer:
            flights.start(torch.cat([parts[l] for l in plan[sent]]))
            sent += 1
    for bucket in plan[sent:]:
        flights.start(torch.cat([parts[l] for l in bucket]))
    for bucket, row in zip(plan, flights.land()):
        for l in bucket:
            parts[l], row = row[: numels[l]], row[numels[l]:]
    return [parts[layer] for layer in range(len(numels))]
"""),
    Right("closures of waits", """
def reduce_overlapped(comm, numels, backward, limit):
    means, waits = [None] * len(numels), []
    buckets, size = [], None
    for layer in reversed(range(len(numels))):
        if size is None or size + numels[layer] > limit:
            buckets.append({})
            size = 0
        buckets[-1][layer] = torch.zeros(numels[layer])
        size += numels[layer]
    def send(bucket):
        handle = comm.all_reduce_async(torch.cat(list(bucket.values())), average=True)
        def finish():
            row = handle.wait()
            for layer, place in bucket.items():
                means[layer] = row[:place.numel()].clone()
                row = row[place.numel():]
        waits.append(finish)
    todo = iter(buckets)
    bucket = next(todo, None)
    for layer, gradient in backward:
        while layer < min(bucket):
            send(bucket)
            bucket = next(todo)
        bucket[layer].copy_(gradient)
        if layer == min(bucket):
            send(bucket)
            bucket = next(todo, None)
    while bucket is not None:
        send(bucket)
        bucket = next(todo, None)
    for finish in waits:
        finish()
    return means
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("iterator by hand, forward order inside a row", """
def buckets_of(numels, limit):
    buckets = []
    size = 0
    for layer in reversed(range(len(numels))):
        if not buckets or size + numels[layer] > limit:
            buckets.append([])
            size = 0
        buckets[-1].append(layer)
        size += numels[layer]
    return buckets

def reduce_overlapped(comm, numels, backward, limit):
    work = []
    queue = [sorted(b) for b in buckets_of(numels, limit)]
    rows = {b[0]: torch.zeros(sum(map(numels.__getitem__, b))) for b in queue}
    def offset(b, layer):
        return sum(numels[l] for l in b if l < layer)
    def go():
        b = queue.pop(0)
        work.append((b, comm.all_reduce_async(rows[b[0]], average=True)))
    while True:
        try:
            layer, gradient = next(backward)
        except StopIteration:
            break
        while queue[0][0] > layer:
            go()
        at = offset(queue[0], layer)
        rows[queue[0][0]][at : at + numels[layer]] = gradient
        if queue[0][0] == layer:
            go()
    while queue:
        go()
    means = {}
    for b, handle in work:
        row = handle.wait()
        for l in b:
            means[l] = row[offset(b, l) : offset(b, l) + numels[l]]
    return [means[l] for l in sorted(means)]
"""),
]  # fmt: skip
