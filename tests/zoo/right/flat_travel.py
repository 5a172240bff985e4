"""Right answers to the exercises of lesson 02 in which gradients travel, and to that on a trace."""

from zoo.right.answer import Right

RIGHT = [
    Right("torch utils vectors", "average_gradients", """
from torch.nn.utils import parameters_to_vector, vector_to_parameters
def average_gradients(comm, parameters):
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    row = parameters_to_vector([parameter.grad for parameter in trained])
    comm.all_reduce(row, average=True)
    vector_to_parameters(row, [parameter.grad for parameter in trained])
"""),
    Right("cat split", "average_gradients", """
def average_gradients(comm, parameters):
    live = [p for p in parameters if p.requires_grad]
    row = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in live])
    comm.all_reduce(row)
    row /= comm.size
    for p, piece in zip(live, row.split([p.numel() for p in live])):
        p.grad = piece.view(p.shape)
"""),
    Right("copy back", "average_gradients", """
def average_gradients(comm, parameters):
    live = [p for p in parameters if p.requires_grad]
    row = torch.zeros(sum(p.numel() for p in live))
    at = 0
    for p in live:
        if p.grad is not None:
            row[at:at + p.numel()].copy_(p.grad.view(-1))
        at += p.numel()
    row = comm.all_reduce(row, average=True)
    at = 0
    for p in live:
        if p.grad is None:
            p.grad = torch.empty_like(p)
        p.grad.copy_(row[at:at + p.numel()].view_as(p))
        at += p.numel()
"""),
    Right("async wait", "average_gradients", """
@torch.no_grad()
def average_gradients(comm, parameters):
    def rooms(row):
        at = 0
        for p in parameters:
            if p.requires_grad:
                yield p, row[at:at + p.numel()].view(p.shape)
                at += p.numel()
    row = torch.zeros(sum(p.numel() for p in parameters if p.requires_grad))
    for p, room in rooms(row):
        if p.grad is not None:
            room += p.grad
    mean = comm.all_reduce_async(row, average=True).wait()
    for p, room in rooms(mean):
        p.grad = room.clone()
"""),
    Right("lay out used", "average_gradients", """
def average_gradients(comm, parameters):
    mine = list(filter(lambda p: p.requires_grad, parameters))
    starts, length = lay_out([p.numel() for p in mine], 1, 1)
    row = torch.zeros(length)
    for start, p in zip(starts, mine):
        if p.grad is not None:
            row[start:start + p.numel()] = p.grad.reshape(-1).div(comm.size)
    comm.all_reduce(row)
    for start, p in zip(starts, mine):
        p.grad = row[start:start + p.numel()].reshape(p.shape)
"""),
    Right("flatten dense", "average_gradients", """
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
def average_gradients(comm, parameters):
    trained = [p for p in parameters if p.requires_grad]
    grads = [torch.zeros_like(p, requires_grad=False) if p.grad is None else p.grad for p in trained]
    row = _flatten_dense_tensors(grads)
    row = comm.all_reduce(row.clone() if len(grads) == 1 else row, average=True)
    for p, g in zip(trained, _unflatten_dense_tensors(row, grads)):
        p.grad = g
"""),
    Right("sums divided on arrival", "reduce_overlapped", """
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
    Right("plan then ship", "reduce_overlapped", """
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
    Right("classes", "reduce_overlapped", """
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
    Right("one row slices", "reduce_overlapped", """
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
    Right("generator pull", "reduce_overlapped", """
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
    Right("the usual call", "culprit", """
from itertools import zip_longest
def culprit(calls):
    for index, made in enumerate(zip_longest(*calls)):
        usual = max(made, key=made.count)
        if made.count(usual) < len(made):
            return [call == usual for call in made].index(False), index
"""),
    Right("counter", "culprit", """
from collections import Counter
def culprit(calls):
    for i in range(max(map(len, calls))):
        at = [c[i] if i < len(c) else None for c in calls]
        most = Counter(at).most_common(1)[0][0]
        for rank, call in enumerate(at):
            if call != most:
                return rank, i
    return None
"""),
    Right("others agree", "culprit", """
def culprit(calls):
    index = 0
    while any(index < len(c) for c in calls):
        row = [tuple(c[index:index + 1]) for c in calls]
        for rank in range(len(calls)):
            others = row[:rank] + row[rank + 1:]
            if row[rank] not in others:
                return (rank, index)
        index += 1
"""),
    Right("sorted middle", "culprit", """
def culprit(calls):
    longest = max(len(mine) for mine in calls)
    padded = [list(mine) + [("", -1)] * (longest - len(mine)) for mine in calls]
    for index, made in enumerate(zip(*padded)):
        middle = sorted(made)[len(made) // 2]
        odd = [rank for rank, call in enumerate(made) if call != middle]
        if odd:
            return odd[0], index
    return None
"""),
    Right("recursive", "culprit", """
def culprit(calls, index=0):
    if all(len(mine) <= index for mine in calls):
        return None
    heads = [mine[index] if len(mine) > index else None for mine in calls]
    alone = [rank for rank, head in enumerate(heads) if heads.count(head) == 1]
    return (alone[0], index) if alone else culprit(calls, index + 1)
"""),
    Right("next of generator", "culprit", """
def culprit(calls):
    def at(rank, index):
        return calls[rank][index] if index < len(calls[rank]) else None
    found = (
        (rank, index)
        for index in range(max(len(c) for c in calls))
        for rank in range(len(calls))
        if sum(at(rank, index) == at(other, index) for other in range(len(calls))) == 1
    )
    return next(found, None)
"""),
]  # fmt: skip
