"""Answers to `step_overlapped` of lesson 03, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("03_zero_1", "step_overlapped")
OVERLAPPED = changed(MODEL, ", strict=True", "")

WRONG = [
    blank("step_overlapped"),
    Wrong("sum for mean",
          changed(OVERLAPPED, ", average=True", ""),
          "take their mean"),
    Wrong("own gradients",
          changed(OVERLAPPED,
                  "reduction.wait()",
                  "gradients[len(gathers)].tensor_split(comm.size)[comm.rank].clone()"),
          "without those of the other ranks"),
    Wrong("averages twice",
          changed(OVERLAPPED, "reduction.wait()", "reduction.wait() / comm.size"),
          "divided by N twice"),
    Wrong("gathers before the update", """
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    reductions = [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]
    for row, reduction in zip(rows, reductions):
        shard = row.tensor_split(comm.size)[comm.rank]
        comm.all_gather_async(shard.clone(), out=row).wait()
        update(shard, reduction.wait())
    return rows
""", "own shards alone are new"),
    Wrong("gathers the gradients",
          changed(OVERLAPPED,
                  "shard = row.tensor_split(comm.size)[comm.rank]\n"
                  "        update(shard, reduction.wait())\n"
                  "        gathers.append(comm.all_gather_async(shard, out=row))",
                  "shard, mean = row.tensor_split(comm.size)[comm.rank], reduction.wait()\n"
                  "        update(shard, mean)\n"
                  "        gathers.append(comm.all_gather_async(mean, out=row))"),
          "gradients where parameters"),
    Wrong("returns handles",
          changed(OVERLAPPED, "[gather.wait() for gather in gathers]", "gathers"),
          "wait() gives the row"),
    Wrong("forgets the last",
          changed(OVERLAPPED, "in gathers", "in gathers[:-1]"),
          "one row too few"),
    Wrong("one bucket late",
          changed(changed(OVERLAPPED, ", reductions", "[:-1], reductions"), "in gathers", "in gathers] + rows[-1:"),
          "the last bucket as it began"),
    Wrong("guesses the update",
          changed(OVERLAPPED, "update(shard,", "shard.sub_(0.1 *"),
          "it never calls update"),
    Wrong("updates twice",
          changed(OVERLAPPED, "[comm.rank]\n", "[comm.rank]\n        update(shard.clone(), shard)\n"),
          "once for each"),
    Wrong("backwards",
          changed(OVERLAPPED,
                  "rows = [row.clone() for row in rows]",
                  "rows, gradients = [row.clone() for row in rows[::-1]], gradients[::-1]"),
          "in another order"),
    Wrong("reduces into the gradients",
          changed(OVERLAPPED, "average=True", "average=True, out=gradient.tensor_split(comm.size)[comm.rank]"),
          "it overwrote rank 0's"),
    Wrong("overwrites the rows",
          changed(OVERLAPPED, "row.clone()", "row"),
          "it overwrote"),
    Wrong("one long bucket", """
def step_overlapped(comm, rows, gradients, update):
    row, sizes = torch.cat(rows), [row.numel() for row in rows]
    shard = row.tensor_split(comm.size)[comm.rank]
    update(shard, comm.reduce_scatter(torch.cat(gradients), average=True))
    comm.all_gather(shard, out=row)
    return list(row.split(sizes))
""", "reduce_scatter and one all_gather for each"),
    Wrong("all-reduce",
          changed(changed(OVERLAPPED,
                          "reduce_scatter_async(gradient",
                          "all_reduce_async(gradient.clone()"),
                  "reduction.wait()",
                  "reduction.wait().tensor_split(comm.size)[comm.rank]"),
          "all_reduce, which nobody needs"),
    Wrong("waits at once", """
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    for row, gradient in zip(rows, gradients):
        shard = row.tensor_split(comm.size)[comm.rank]
        update(shard, comm.reduce_scatter_async(gradient, average=True).wait())
        comm.all_gather_async(shard, out=row).wait()
    return rows
""", "what keeps it from travelling meanwhile"),
    Wrong("gathers at the end", """
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    shards = [row.tensor_split(comm.size)[comm.rank] for row in rows]
    reductions = [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]
    for shard, reduction in zip(shards, reductions):
        update(shard, reduction.wait())
    gathers = [comm.all_gather_async(shard, out=row) for shard, row in zip(shards, rows)]
    return [gather.wait() for gather in gathers]
""", "all gathers start after the last update"),
    Wrong("keeps its rows",
          changed(changed(OVERLAPPED,
                          "def step_overlapped",
                          "kept = {}\ndef step_overlapped"),
                  "row.clone() for row in rows",
                  "kept.setdefault((comm.rank, at), row.clone()).resize_(row.numel()).copy_(row) for at, row "
                  "in enumerate(rows)"),
          "each call needs memory of its own"),
    Wrong("waits for each reduction",
          changed(changed(OVERLAPPED, "average=True", "average=True).wait("), "reduction.wait()", "reduction"),
          "before the first update"),
    Wrong("waits for each gather",
          changed(OVERLAPPED,
                  "(comm.all_gather_async(shard, out=row))\n    return [gather.wait()",
                  "(comm.all_gather(shard, out=row))\n    return [gather"),
          "after an update"),
    # One slip away from right.
    Wrong("gathers, then updates",
          changed(changed(OVERLAPPED,
                          "update(shard, reduction.wait())",
                          "mean = reduction.wait()"),
                  "return",
                  "    update(shard, mean)\n    return"),
          "update first, then start the gather"),
    Wrong("updates what is being reduced", """
def step_overlapped(comm, rows, gradients, update):
    rows, gathers = [row.clone() for row in rows], []
    means = [gradient.tensor_split(comm.size)[comm.rank].clone() for gradient in gradients]
    for gradient, mean in zip(gradients, means):
        comm.reduce_scatter_async(gradient, average=True, out=mean)
    for row, mean in zip(rows, means):
        shard = row.tensor_split(comm.size)[comm.rank]
        update(shard, mean)
        gathers.append(comm.all_gather_async(shard, out=row))
    return [gather.wait() for gather in gathers]
""", "wait first, then update"),
    Wrong("updates the whole row",
          changed(OVERLAPPED,
                  "update(shard, reduction.wait())",
                  "mean = torch.zeros_like(row)\n"
                  "        mean.tensor_split(comm.size)[comm.rank].copy_(reduction.wait())\n"
                  "        update(row, mean)"),
          "a rank updates its own shard alone"),
    # Written from the text alone.
    Wrong("the rank's own smallest shard first", """
def step_overlapped(comm, rows, gradients, update):
    rows = [row.clone() for row in rows]
    shards = [row.tensor_split(comm.size)[comm.rank] for row in rows]
    order = sorted(range(len(rows)), key=lambda bucket: shards[bucket].numel())
    reductions = [comm.reduce_scatter_async(gradients[bucket], average=True) for bucket in order]
    gathers = []
    for bucket, reduction in zip(order, reductions):
        update(shards[bucket], reduction.wait())
        gathers.append(comm.all_gather_async(shards[bucket], out=rows[bucket]))
    for gather in gathers:
        gather.wait()
    return rows
""", "the ranks part ways"),
]  # fmt: skip

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
