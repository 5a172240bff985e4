"""Answers to `step_overlapped` of lesson 03 that are right, each in a style of its own."""

from zoo.answers import Right

RIGHT = [
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
