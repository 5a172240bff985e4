"""Wrong answers to the exercises of lesson 03."""

from zoo import zero1_step
from zoo.wrong import Wrong, blank, changed

FULLEST = """
def fullest_rank(numels, ranks):
    loads = [0] * ranks
    for numel in sorted(numels, reverse=True):
        loads[loads.index(min(loads))] += numel
    return max(loads)
"""
SHARDED = """
def train_sharded(comm, row, gradients):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    for gradient in gradients:
        shard.grad = comm.reduce_scatter(gradient, average=True)
        optimizer.step()
        comm.all_gather(shard, out=row)
    return row
"""
GROUPED = """
def train_grouped(comm, row, gradients, groups):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    first = shard.storage_offset()
    parts = []
    for start, stop, weight_decay in groups:
        start, stop = max(start - first, 0), min(stop - first, shard.numel())
        if start < stop:
            part = shard[start:stop]
            parts.append((start, stop, part, adam(part, weight_decay)))
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for start, stop, part, optimizer in parts:
            part.grad = mean[start:stop]
            optimizer.step()
        comm.all_gather(shard, out=row)
    return row
"""
COST = """
def step_bytes(numel, ranks, way):
    halves = {"stage 0": 2, "stage 1, all-reduce": 3, "stage 1, reduce-scatter": 2}[way]
    return halves * 4 * numel // ranks * (ranks - 1)
"""

WHOLE = [
    blank("fullest_rank"),
    Wrong("equal share", "fullest_rank", "def fullest_rank(numels, ranks):\n    return -(-sum(numels) // ranks)",
          "That is an equal share"),
    Wrong("as they came", "fullest_rank", changed(FULLEST, "sorted(numels, reverse=True)", "numels"),
          "the largest goes first"),
    Wrong("smallest first", "fullest_rank", changed(FULLEST, ", reverse=True", ""), "the largest goes first, and each"),
    Wrong("in turn", "fullest_rank",
          "def fullest_rank(numels, ranks):\n    return max(sum(numels[rank::ranks]) for rank in range(ranks))",
          "You dealt them out in turn"),
    Wrong("largest in turn", "fullest_rank", '''
def fullest_rank(numels, ranks):
    numels = sorted(numels, reverse=True)
    return max(sum(numels[rank::ranks]) for rank in range(ranks))
''', "or sorted them and dealt them out in turn"),
    Wrong("largest tensor", "fullest_rank", "def fullest_rank(numels, ranks):\n    return max(numels)",
          "That is the largest tensor"),
    Wrong("all of them", "fullest_rank", "def fullest_rank(numels, ranks):\n    return sum(numels)",
          "That is all of them"),
    Wrong("emptiest rank", "fullest_rank", changed(FULLEST, "max(loads)", "min(loads)"), "That is the emptiest rank"),
    Wrong("every load", "fullest_rank", changed(FULLEST, "max(loads)", "loads"), "one number is asked for"),
    Wrong("a tensor's number", "fullest_rank",
          changed(FULLEST, "max(loads)", "loads.index(max(loads))"), "That is which rank it is"),
    Wrong("rank 0", "fullest_rank", changed(FULLEST, "max(loads)", "loads[0]"), "That is rank 0"),
    Wrong("equal sizes count once", "fullest_rank", changed(FULLEST, "sorted(numels", "sorted(set(numels)"),
          "tensors of equal size once"),
    Wrong("sorts the caller's list", "fullest_rank",
          changed(FULLEST, "    for numel in sorted(numels, reverse=True)",
                  "    numels.sort(reverse=True)\n    for numel in numels"), "it overwrote"),
    Wrong("a float", "fullest_rank", changed(FULLEST, "max(loads)", "float(max(loads))"), "elements are whole"),
]  # fmt: skip

STAGE1 = [
    blank("train_sharded"),
    Wrong("sum for mean", "train_sharded", changed(SHARDED, ", average=True", ""), "sum of the gradients"),
    Wrong("averages twice", "train_sharded", changed(SHARDED, "average=True)", "average=True) / comm.size"),
          "divided by N twice"),
    Wrong("own gradients", "train_sharded",
          changed(SHARDED, "comm.reduce_scatter(gradient, average=True)",
                  "gradient.tensor_split(comm.size)[comm.rank]"),
          "without those of the other ranks"),
    Wrong("own gradients, whole", "train_sharded", '''
def train_sharded(comm, row, gradients):
    row = row.clone()
    optimizer = adam(row)
    for gradient in gradients:
        row.grad = gradient
        optimizer.step()
    return row
''', "what its own gradients alone train"),
    Wrong("does not gather", "train_sharded", changed(SHARDED, "        comm.all_gather(shard, out=row)\n", ""),
          "its own shard alone is new"),
    Wrong("returns its shard", "train_sharded", changed(SHARDED, "return row", "return shard"), "only its own shard"),
    Wrong("updates after gathering", "train_sharded", '''
def train_sharded(comm, row, gradients):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    for gradient in gradients:
        shard.grad = comm.reduce_scatter(gradient, average=True)
        comm.all_gather(shard.clone(), out=row)
        optimizer.step()
    return row
''', "one step late"),
    Wrong("gathers the wrong tensor", "train_sharded",
          changed(SHARDED, "all_gather(shard, out", "all_gather(shard.grad, out"), "gradients where parameters"),
    Wrong("trains a copy that nobody gathers", "train_sharded", '''
def train_sharded(comm, row, gradients):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank].clone()
    optimizer = adam(shard)
    for gradient in gradients:
        shard.grad = comm.reduce_scatter(gradient, average=True)
        optimizer.step()
        comm.all_gather(row.tensor_split(comm.size)[comm.rank], out=row)
    return row
''', "the row as it began"),
    Wrong("a state that outlives the call", "train_sharded", "states = {}\n" + changed(changed(SHARDED,
          "    optimizer = adam(shard)\n",
          "    optimizer = adam(shard)\n    if comm.rank in states:\n"
          "        optimizer.state[shard] = states[comm.rank]\n"),
          "    return row", "    states[comm.rank] = optimizer.state[shard]\n    return row"),
          "when it was called again"),
    Wrong("fp16 on the wire", "train_sharded",
          changed(SHARDED, "comm.reduce_scatter(gradient, average=True)",
                  "(comm.reduce_scatter(gradient.half()) / comm.size).float()"), "too few for fp32"),
    Wrong("a new optimizer in each step", "train_sharded", '''
def train_sharded(comm, row, gradients):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    for gradient in gradients:
        optimizer = adam(shard)
        shard.grad = comm.reduce_scatter(gradient, average=True)
        optimizer.step()
        comm.all_gather(shard, out=row)
    return row
''', "make it once"),
    Wrong("gradients pile up", "train_sharded",
          changed(SHARDED, "shard.grad = comm.reduce_scatter(gradient, average=True)",
                  "part = comm.reduce_scatter(gradient, average=True)\n"
                  "        shard.grad = part if shard.grad is None else shard.grad + part"),
          "earlier steps are still in"),
    Wrong("forgets the last step", "train_sharded", changed(SHARDED, "in gradients:", "in gradients[:-1]:"),
          "after one step too few"),
    Wrong("rank 0 is skipped", "train_sharded",
          changed(SHARDED, "        optimizer.step()", "        if comm.rank:\n            optimizer.step()"),
          "only rank 0's shard is wrong"),
    Wrong("the neighbour's shard", "train_sharded", changed(SHARDED, "[comm.rank]", "[comm.rank - 1]"),
          "but its own chunk begins at"),
    Wrong("cuts evenly", "train_sharded", '''
def train_sharded(comm, row, gradients):
    row = row.clone()
    each = row.numel() // comm.size
    shard = row[comm.rank * each : (comm.rank + 1) * each]
    optimizer = adam(shard)
    for gradient in gradients:
        shard.grad = comm.reduce_scatter(gradient[: each * comm.size], average=True)
        optimizer.step()
        comm.all_gather(shard, out=row[: each * comm.size])
    return row
''', "at its end as they began"),
    Wrong("overwrites the row", "train_sharded", changed(SHARDED, "row.clone()", "row"), "it overwrote"),
    Wrong("all-reduce", "train_sharded",
          changed(SHARDED, "comm.reduce_scatter(gradient, average=True)",
                  "comm.all_reduce(gradient.clone(), average=True).tensor_split(comm.size)[comm.rank]"),
          "hands everybody gradients"),
    Wrong("gathers twice", "train_sharded",
          changed(SHARDED, "        comm.all_gather(shard, out=row)\n",
                  "        comm.all_gather(shard, out=row)\n        comm.broadcast(row[:0], src=0)\n"),
          "two calls a step"),
    Wrong("optimizes the row", "train_sharded", '''
def train_sharded(comm, row, gradients):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(row)
    row.grad = torch.zeros_like(row)
    for gradient in gradients:
        row.grad.tensor_split(comm.size)[comm.rank].copy_(comm.reduce_scatter(gradient, average=True))
        optimizer.step()
        comm.all_gather(shard, out=row)
    return row
''', "know more than the shard"),
]  # fmt: skip

GROUPS = [
    blank("train_grouped"),
    Wrong("no decay", "train_grouped", changed(GROUPED, "adam(part, weight_decay)", "adam(part)"),
          "without weight decay"),
    Wrong("one decay for all", "train_grouped",
          changed(GROUPED, "adam(part, weight_decay)", "adam(part, groups[0][2])"), "the first group's weight decay"),
    Wrong("borders of the row", "train_grouped",
          changed(GROUPED, "max(start - first, 0), min(stop - first, shard.numel())",
                  "min(start, shard.numel()), min(stop, shard.numel())"),
          "as if each shard began at 0"),
    Wrong("does not cut at the start", "train_grouped",
          changed(GROUPED, "max(start - first, 0)", "start - first"), "a group's start may lie before your shard"),
    Wrong("off by one", "train_grouped",
          changed(GROUPED, "min(stop - first, shard.numel())", "min(stop - first, shard.numel()) - 1"),
          "do the parts lie end to end"),
    Wrong("forgets the last group", "train_grouped", changed(GROUPED, "in groups:", "in groups[:-1]:"),
          "the last group as it began"),
    Wrong("sum for mean", "train_grouped", changed(GROUPED, ", average=True", ""), "take their mean"),
    Wrong("does not gather", "train_grouped", changed(GROUPED, "        comm.all_gather(shard, out=row)\n", ""),
          "its own shard alone is new"),
    Wrong("a new optimizer in each step", "train_grouped",
          changed(changed(GROUPED, "part, adam(part, weight_decay)", "part, weight_decay"),
                  "            optimizer.step()", "            adam(part, optimizer).step()"),
          "make it once"),
    Wrong("overwrites the row", "train_grouped", changed(GROUPED, "row.clone()", "row"), "it overwrote"),
    Wrong("reduces each group", "train_grouped", '''
def train_grouped(comm, row, gradients, groups):
    row = row.clone()
    parts = [row[start:stop].tensor_split(comm.size)[comm.rank] for start, stop, _ in groups]
    optimizers = [adam(part, decay) if part.numel() else None for part, (_, _, decay) in zip(parts, groups)]
    for gradient in gradients:
        for part, optimizer, (start, stop, _) in zip(parts, optimizers, groups):
            mean = comm.reduce_scatter(gradient[start:stop], average=True)
            if optimizer:
                part.grad = mean
                optimizer.step()
            comm.all_gather(part, out=row[start:stop])
    return row
''', "call 1 of rank 0 is reduce_scatter of"),
    Wrong("whole states", "train_grouped", '''
def train_grouped(comm, row, gradients, groups):
    row = row.clone()
    parts = [(start, stop, row[start:stop], decay) for start, stop, decay in groups]
    parts = [(start, stop, part, adam(part, decay)) for start, stop, part, decay in parts]
    for gradient in gradients:
        mean = comm.all_gather(comm.reduce_scatter(gradient, average=True), gradient.numel())
        for start, stop, part, optimizer in parts:
            part.grad = mean[start:stop]
            optimizer.step()
    return row
''', "know more than the shard"),
    Wrong("does not shard", "train_grouped", '''
def train_grouped(comm, row, gradients, groups):
    row = row.clone()
    parts = [(start, stop, row[start:stop], adam(row[start:stop], decay)) for start, stop, decay in groups]
    parts = [(start, stop, optimizer.param_groups[0]["params"][0], optimizer) for start, stop, _, optimizer in parts]
    for gradient in gradients:
        mean = comm.all_reduce(gradient.clone(), average=True)
        for start, stop, part, optimizer in parts:
            part.grad = mean[start:stop]
            optimizer.step()
    return row
''', "call 1 of rank 0 is all_reduce of"),
]  # fmt: skip

BYTES = [
    blank("step_bytes"),
    Wrong("one half for stage 0", "step_bytes", changed(COST, '"stage 0": 2', '"stage 0": 1'),
          "You count 1 half ring:"),
    Wrong("forgets the gather", "step_bytes", changed(COST, '"stage 1, all-reduce": 3', '"stage 1, all-reduce": 2'),
          "You count 2 half rings"),
    Wrong("two all-reduces", "step_bytes", changed(COST, '"stage 1, all-reduce": 3', '"stage 1, all-reduce": 4'),
          "You count 4 half rings"),
    Wrong("saves nothing", "step_bytes",
          changed(COST, '"stage 1, reduce-scatter": 2', '"stage 1, reduce-scatter": 3'), "You count 3 half rings"),
    Wrong("whole tensors", "step_bytes", changed(COST, "numel // ranks * (ranks - 1)", "numel"), "(N-1)/N of a tensor"),
    Wrong("elements", "step_bytes", changed(COST, "halves * 4 *", "halves *"), "You counted elements"),
    Wrong("of all ranks", "step_bytes", changed(COST, "numel // ranks * (ranks - 1)", "numel * (ranks - 1)"),
          "all ranks together"),
    Wrong("a float", "step_bytes", changed(COST, "numel // ranks", "numel / ranks"), "divide with //"),
]  # fmt: skip

ZOO = [*WHOLE, *STAGE1, *zero1_step.ZOO, *GROUPS, *BYTES]
