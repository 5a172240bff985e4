"""Wrong answers to the exercises of lesson 03 that train a row."""

from zoo import zero1_numbers, zero1_step
from zoo.wrong import Wrong, blank, changed

SHARDED = """
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(row), average=True)
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
STAGE1 = [
    blank("train_sharded"),
    Wrong("sum for mean", "train_sharded", changed(SHARDED, ", average=True", ""), "sum of the gradients"),
    Wrong("averages twice", "train_sharded", changed(SHARDED, "average=True)", "average=True) / comm.size"),
          "divided by N twice"),
    Wrong("own gradients", "train_sharded",
          changed(SHARDED, "comm.reduce_scatter(gradient(row), average=True)",
                  "gradient(row).tensor_split(comm.size)[comm.rank]"),
          "without those of the other ranks"),
    Wrong("own gradients, whole", "train_sharded", '''
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    optimizer = adam(row)
    for _ in range(steps):
        row.grad = gradient(row)
        optimizer.step()
    return row
''', "what its own gradients alone train"),
    Wrong("does not gather", "train_sharded", changed(SHARDED, "        comm.all_gather(shard, out=row)\n", ""),
          "its own shard alone is new"),
    Wrong("returns its shard", "train_sharded", changed(SHARDED, "return row", "return shard"), "only its own shard"),
    Wrong("updates after gathering", "train_sharded", '''
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(shard)
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(row), average=True)
        comm.all_gather(shard.clone(), out=row)
        optimizer.step()
    return row
''', "one step late"),
    Wrong("gathers the wrong tensor", "train_sharded",
          changed(SHARDED, "all_gather(shard, out", "all_gather(shard.grad, out"), "gradients where parameters"),
    Wrong("trains a copy that nobody gathers", "train_sharded", '''
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank].clone()
    optimizer = adam(shard)
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(row), average=True)
        optimizer.step()
        comm.all_gather(row.tensor_split(comm.size)[comm.rank], out=row)
    return row
''', "the row as it began"),
    Wrong("a state that outlives the call", "train_sharded", "states = {}\n" + changed(changed(SHARDED,
          "    optimizer = adam(shard)\n",
          "    optimizer = adam(shard)\n    if comm.rank in states:\n"
          "        optimizer.state[shard] = states[comm.rank]\n"),
          "    return row", "    states[comm.rank] = optimizer.state[shard]\n    return row"),
          "what outlives a call"),
    Wrong("fp16 on the wire", "train_sharded",
          changed(SHARDED, "comm.reduce_scatter(gradient(row), average=True)",
                  "(comm.reduce_scatter(gradient(row).half()) / comm.size).to(row.dtype)"), "too few: gradients"),
    Wrong("fp32 on the wire", "train_sharded",
          changed(SHARDED, "comm.reduce_scatter(gradient(row), average=True)",
                  "comm.reduce_scatter(gradient(row).float(), average=True).to(row.dtype)"), "too many: gradients"),
    Wrong("gathers at the end", "train_sharded",
          changed(changed(SHARDED, "        comm.all_gather(shard, out=row)\n", ""), "return row",
                  "return comm.all_gather(shard, row.numel())"), "if nobody gathers before the end"),
    Wrong("gradients of the row as it began", "train_sharded",
          changed(changed(SHARDED, "    row = row.clone()\n", "    begin, row = row, row.clone()\n"), "gradient(row)",
                  "gradient(begin)"), "computed at the row as it began"),
    Wrong("another Adam", "train_sharded",
          changed(SHARDED, "adam(shard)", "torch.optim.AdamW([shard], lr=0.1)"), "another optimizer than adam()"),
    Wrong("asks for a gradient too often", "train_sharded",
          changed(SHARDED, "    optimizer = adam(shard)\n", "    optimizer = adam(shard)\n    gradient(row[:])\n"),
          "calls gradient 6 times"),
    Wrong("keeps every row", "train_sharded", '''
def train_sharded(comm, row, gradient, steps):
    rows = [row.clone()]
    shard = row.tensor_split(comm.size)[comm.rank].clone()
    optimizer = adam(shard)
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(rows[-1]), average=True)
        optimizer.step()
        rows.append(comm.all_gather(shard, row.numel()))
    return rows[-1]
''', "rows or gradients of earlier steps"),
    Wrong("a new optimizer in each step", "train_sharded", '''
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    for _ in range(steps):
        optimizer = adam(shard)
        shard.grad = comm.reduce_scatter(gradient(row), average=True)
        optimizer.step()
        comm.all_gather(shard, out=row)
    return row
''', "make it once"),
    Wrong("gradients pile up", "train_sharded",
          changed(SHARDED, "shard.grad = comm.reduce_scatter(gradient(row), average=True)",
                  "part = comm.reduce_scatter(gradient(row), average=True)\n"
                  "        shard.grad = part if shard.grad is None else shard.grad + part"),
          "earlier steps are still in"),
    Wrong("forgets the last step", "train_sharded", changed(SHARDED, "range(steps)", "range(steps - 1)"),
          "calls gradient 4 times"),
    Wrong("leaves the last mean unused", "train_sharded",
          changed(SHARDED, "        optimizer.step()", "        if _ < steps - 1:\n            optimizer.step()"),
          "after one step too few"),
    Wrong("rank 0 is skipped", "train_sharded",
          changed(SHARDED, "        optimizer.step()", "        if comm.rank:\n            optimizer.step()"),
          "only rank 0's shard is wrong"),
    Wrong("the neighbour's shard", "train_sharded", changed(SHARDED, "[comm.rank]", "[comm.rank - 1]"),
          "but its own chunk begins at"),
    Wrong("cuts evenly", "train_sharded", '''
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    each = row.numel() // comm.size
    shard = row[comm.rank * each : (comm.rank + 1) * each]
    optimizer = adam(shard)
    for _ in range(steps):
        shard.grad = comm.reduce_scatter(gradient(row)[: each * comm.size], average=True)
        optimizer.step()
        comm.all_gather(shard, out=row[: each * comm.size])
    return row
''', "at its end as they began"),
    Wrong("overwrites the row", "train_sharded", changed(SHARDED, "row.clone()", "row"), "it overwrote"),
    Wrong("all-reduce", "train_sharded",
          changed(SHARDED, "comm.reduce_scatter(gradient(row), average=True)",
                  "comm.all_reduce(gradient(row), average=True).tensor_split(comm.size)[comm.rank]"),
          "hands everybody gradients"),
    Wrong("gathers twice", "train_sharded",
          changed(SHARDED, "        comm.all_gather(shard, out=row)\n",
                  "        comm.all_gather(shard, out=row)\n        comm.broadcast(row[:0], src=0)\n"),
          "two calls a step"),
    Wrong("optimizes the row", "train_sharded", '''
def train_sharded(comm, row, gradient, steps):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    optimizer = adam(row)
    row.grad = torch.zeros_like(row)
    for _ in range(steps):
        row.grad.tensor_split(comm.size)[comm.rank].copy_(comm.reduce_scatter(gradient(row), average=True))
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
          "no part reaches it"),
    Wrong("another Adam", "train_grouped",
          changed(GROUPED, "adam(part, weight_decay)",
                  "torch.optim.AdamW([part], lr=0.1, weight_decay=weight_decay)"), "another optimizer than adam()"),
    Wrong("decays by number", "train_grouped", '''
def train_grouped(comm, row, gradients, groups):
    row = row.clone()
    shard = row.tensor_split(comm.size)[comm.rank]
    first = shard.storage_offset()
    parts = []
    for start, stop, decay in groups:
        start, stop = max(start - first, 0), min(stop - first, shard.numel())
        if start < stop:
            parts.append((start, stop, shard[start:stop]))
    optimizers = [adam(part, groups[number][2]) for number, (_, _, part) in enumerate(parts)]
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for (start, stop, part), optimizer in zip(parts, optimizers):
            part.grad = mean[start:stop]
            optimizer.step()
        comm.all_gather(shard, out=row)
    return row
''', "the weight decay of its own group"),
    Wrong("keeps its optimizers", "train_grouped",
          changed("kept = {}" + GROUPED, "parts.append((start, stop, part, adam(part, weight_decay)))",
                  "key = comm.rank, row.numel(), start, stop\n"
                  "            known, optimizer = kept.setdefault(key, (part, adam(part, weight_decay)))\n"
                  "            known.data = part\n"
                  "            parts.append((start, stop, known, optimizer))"), "what outlives a call"),
    Wrong("forgets the last group", "train_grouped", changed(GROUPED, "in groups:", "in groups[:-1]:"),
          "the last group as it began"),
    Wrong("sum for mean", "train_grouped", changed(GROUPED, ", average=True", ""), "take their mean"),
    Wrong("does not gather", "train_grouped", changed(GROUPED, "        comm.all_gather(shard, out=row)\n", ""),
          "its own shard alone is new"),
    Wrong("a new optimizer in each step", "train_grouped",
          changed(changed(GROUPED, "part, adam(part, weight_decay)", "part, weight_decay"),
                  "            optimizer.step()", "            adam(part, optimizer).step()"),
          "make it once"),
    Wrong("parts by weight decay", "train_grouped",
          changed(GROUPED, "parts = []", "parts = {}")
          .replace("parts.append((start, stop, part, adam(part, weight_decay)))",
                   "parts[weight_decay] = start, stop, part, adam(part, weight_decay)")
          .replace("in parts:", "in parts.values():"), "of groups with the same weight decay one alone"),
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

ZOO = [*STAGE1, *zero1_step.ZOO, *GROUPS, *zero1_numbers.ZOO]
