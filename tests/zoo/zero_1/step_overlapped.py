"""Answers to `step_overlapped` of lesson 03, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("all reduces first", """
def step_overlapped(comm, rows, gradients, update):
    reductions = [comm.reduce_scatter_async(g, average=True) for g in gradients]
    results, gathers = [], []
    for row, reduction in zip(rows, reductions):
        whole = row.clone()
        shard = whole.tensor_split(comm.size)[comm.rank]
        update(shard, reduction.wait())
        gathers.append(comm.all_gather_async(shard, out=whole))
        results.append(whole)
    for gather in gathers:
        gather.wait()
    return results
"""),
    Right("one ahead", """
def step_overlapped(comm, rows, gradients, update):
    n = len(rows)
    ahead = comm.reduce_scatter_async(gradients[0], average=True)
    gathers = []
    for i in range(n):
        mean = ahead.wait()
        if i + 1 < n:
            ahead = comm.reduce_scatter_async(gradients[i + 1], average=True)
        shard = rows[i].tensor_split(comm.size)[comm.rank].clone()
        update(shard, mean)
        gathers.append(comm.all_gather_async(shard, rows[i].numel()))
    return [gather.wait() for gather in gathers]
"""),
    Right("class of bucket", """
class Travelling:
    def __init__(self, comm, row, gradient):
        self.comm, self.whole = comm, torch.clone(row)
        self.reduction = comm.reduce_scatter_async(gradient)
    def step(self, update):
        shard = torch.tensor_split(self.whole, self.comm.size)[self.comm.rank]
        update(shard, self.reduction.wait().div_(self.comm.size))
        self.gather = self.comm.all_gather_async(shard, out=self.whole)
    def result(self):
        return self.gather.wait()
def step_overlapped(comm, rows, gradients, update):
    under_way = [Travelling(comm, row, gradient) for row, gradient in zip(rows, gradients)]
    for bucket in under_way:
        bucket.step(update)
    return [bucket.result() for bucket in under_way]
"""),
    Right("closures", """
def step_overlapped(comm, rows, gradients, update):
    def reduce(i):
        return comm.reduce_scatter_async(gradients[i].clone(), average=True)
    def finish(i, handle):
        part = rows[i].tensor_split(comm.size)[comm.rank].clone()
        mean = handle.wait()
        following = reduce(i + 1) if i + 1 < len(rows) else None
        update(part, mean)
        return comm.all_gather_async(part, rows[i].numel()), following
    gathers, handle = [], reduce(0) if rows else None
    for i in range(len(rows)):
        gather, handle = finish(i, handle)
        gathers.append(gather)
    return [g.wait() for g in gathers]
"""),
    Right("two ahead", """
def step_overlapped(comm, rows, gradients, update):
    waiting = []
    todo = iter(gradients)
    def more():
        for g in todo:
            waiting.append(comm.reduce_scatter_async(g, average=True))
            return
    more()
    more()
    gathers, results = [], [row.clone() for row in rows]
    for whole in results:
        shard = whole.tensor_split(comm.size)[comm.rank]
        mean = waiting.pop(0).wait()
        more()
        update(shard, mean)
        gathers.append(comm.all_gather_async(shard, out=whole))
    [g.wait() for g in gathers]
    return results
"""),
    # Generators, queues of handles, parameter groups, lists.
    Right("queue class", """
class Queue:
    def __init__(self, comm):
        self.comm, self.load = comm, []
    def put(self, handle):
        self.load.append(handle)
    def empty(self):
        return [handle.wait() for handle in self.load]
def step_overlapped(comm, rows, gradients, update):
    incoming, outgoing = [], Queue(comm)
    for gradient in gradients:
        incoming.append(comm.reduce_scatter_async(gradient, average=True))
    for row, handle in zip(rows, incoming):
        part = torch.tensor_split(row, comm.size)[comm.rank].clone()
        update(part, handle.wait())
        outgoing.put(comm.all_gather_async(part, numel=row.numel()))
    return outgoing.empty()
"""),
    Right("reversed buckets", """
def step_overlapped(comm, rows, gradients, update):
    order = list(reversed(range(len(rows))))
    wholes = {i: rows[i].clone() for i in order}
    reduced = {i: comm.reduce_scatter_async(gradients[i], average=True) for i in order}
    gathered = {}
    for i in order:
        shard = wholes[i].tensor_split(comm.size)[comm.rank]
        update(shard, reduced.pop(i).wait())
        gathered[i] = comm.all_gather_async(shard, out=wholes[i])
    return [gathered[i].wait() for i in range(len(rows))]
"""),
    # Written from the text alone.
    Right("a generator of updated shards, divided by hand", """
def step_overlapped(comm, rows, gradients, update):
    def updated():
        handles = {}
        for i in range(len(rows)):
            for j in (i, i + 1):
                if j < len(rows) and j not in handles:
                    handles[j] = comm.reduce_scatter_async(gradients[j].clone())
            shard = torch.tensor_split(rows[i], comm.size)[comm.rank].clone()
            update(shard, handles[i].wait() / comm.size)
            yield shard
    gathers = []
    for row, shard in zip(rows, updated()):
        gathers.append(comm.all_gather_async(shard, numel=row.numel()))
    return list(map(lambda handle: handle.wait(), gathers))
"""),
]  # fmt: skip
