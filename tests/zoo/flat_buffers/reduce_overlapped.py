"""Right answers to `reduce_overlapped` of lesson 02."""

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
    Right("iterator by hand, forward order inside a row", """
def reduce_overlapped(comm, numels, backward, limit):
    work, queue = [], []
    for layer in reversed(range(len(numels))):
        if not queue or sum(numels[other] for other in queue[-1]) + numels[layer] > limit:
            queue.append([])
        queue[-1].insert(0, layer)
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
