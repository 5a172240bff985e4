"""More right answers to the exercises of lesson 02: closures, classes of handles, and names that sound like files."""

from zoo.right.answer import Right

RIGHT = [
    Right("recursion", "lay_out", """
def lay_out(numels, ranks, align):
    def place(rest, end):
        if not rest:
            return [], end
        start = end + (align - end % align) % align
        later, last = place(rest[1:], start + rest[0])
        return [start, *later], last
    starts, load = place(list(numels), 0)
    unit = ranks * align
    return starts, load + (unit - load % unit) % unit
"""),
    Right("pointers", "owned", """
def owned(starts, numels, length, ranks, rank):
    import bisect
    size = length // ranks
    begin, end = size * rank, size * (rank + 1)
    ends = [s + n for s, n in zip(starts, numels)]
    first = bisect.bisect_right(ends, begin)
    save = []
    for number in range(first, len(starts)):
        if starts[number] >= end:
            break
        lo = max(begin - starts[number], 0)
        hi = min(end, ends[number]) - starts[number]
        if hi > lo:
            save.append((number, lo, hi))
    return save
"""),
    Right("set storage", "flatten", """
def flatten(module, ranks, align):
    members = list(module.parameters())
    starts, length = lay_out([m.numel() for m in members], ranks, align)
    sample = members[0].detach()
    row = sample.new_empty(length).zero_()
    def strides(shape):
        out, step = [], 1
        for size in shape[::-1]:
            out.append(step)
            step *= max(size, 1)
        return out[::-1]
    for start, member in zip(starts, members):
        row[start:start + member.numel()].copy_(member.detach().flatten())
        with torch.no_grad():
            member.set_(row.untyped_storage(), start, member.shape, strides(member.shape))
    return row
"""),
    Right("swap by name", "flatten", """
@torch.no_grad()
def flatten(module, ranks, align):
    known = dict(module.named_parameters())
    starts, length = lay_out([p.numel() for p in known.values()], ranks, align)
    dtype = {p.dtype for p in known.values()}.pop()
    row = torch.zeros((length,), dtype=dtype)
    slices = {name: slice(s, s + p.numel()) for s, (name, p) in zip(starts, known.items())}
    for name, where in slices.items():
        row[where] = known[name].ravel()
        known[name].data = row[where].unflatten(0, known[name].shape) if known[name].dim() else row[where].squeeze(0)
    return row
"""),
    Right("grads views", "average_gradients", """
class Sys:
    def __init__(self, parameters):
        self.open = [p for p in parameters if p.requires_grad]
    def load(self):
        return torch.hstack([p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel()) for p in self.open])
    def save(self, row):
        for p in self.open:
            p.grad, row = row[: p.numel()].reshape(p.shape).clone(), row[p.numel():]
def average_gradients(comm, parameters):
    sys = Sys(parameters)
    meter = sys.load()
    comm.all_reduce(meter, average=True)
    sys.save(meter)
"""),
    Right("fill none first", "average_gradients", """
def average_gradients(comm, parameters):
    for p in parameters:
        if p.requires_grad and p.grad is None:
            p.grad = p.new_zeros(p.shape)
    grads = [p.grad for p in parameters if p.requires_grad]
    buffer = torch.empty(sum(g.nelement() for g in grads))
    pieces = torch.split(buffer, [g.nelement() for g in grads])
    for piece, g in zip(pieces, grads):
        piece.copy_(g.view(-1))
    handle = comm.all_reduce_async(buffer)
    handle.wait()
    for piece, g in zip(pieces, grads):
        torch.div(piece.view_as(g), comm.size, out=g)
"""),
    Right("handles class", "reduce_overlapped", """
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
    Right("closures of waits", "reduce_overlapped", """
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
    Right("pandas like", "culprit", """
def culprit(calls):
    table = {}
    for rank, mine in enumerate(calls):
        for index, call in enumerate(mine):
            table.setdefault(index, {}).setdefault(tuple(call), []).append(rank)
    everyone = set(range(len(calls)))
    for index in sorted(table):
        groups = list(table[index].values())
        silent = sorted(everyone - {rank for group in groups for rank in group})
        if silent:
            groups.append(silent)
        if len(groups) > 1:
            return min(groups, key=len)[0], index
    return None
"""),
    Right("majority of three", "culprit", """
def culprit(calls):
    def call(rank, index):
        return calls[rank][index] if index < len(calls[rank]) else "nothing"
    last = max(map(len, calls))
    index = 0
    while index < last:
        a, b, c = (call(rank, index) for rank in (0, 1, 2))
        usual = a if a in (b, c) else b
        odd = [rank for rank in range(len(calls)) if call(rank, index) != usual]
        if odd:
            return odd.pop(), index
        index += 1
"""),
]  # fmt: skip
