"""Wrong answers to the exercises of lesson 02 in which gradients travel."""

from zoo.wrong import Wrong, changed

AVERAGE = """
def average_gradients(comm, parameters):
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    row = torch.cat([gradient.detach().flatten() for gradient in gradients])
    comm.all_reduce(row, average=True)
    for parameter, part in zip(trained, row.split([p.numel() for p in trained])):
        parameter.grad = part.view_as(parameter)
"""
OVERLAPPED = """
def reduce_overlapped(comm, numels, backward, limit):
    buckets, flat = [[]], torch.zeros(sum(numels))
    for layer in reversed(range(len(numels))):
        if buckets[-1] and sum(numels[other] for other in [layer, *buckets[-1]]) > limit:
            buckets.append([])
        buckets[-1].append(layer)
    rows = flat.split([sum(numels[layer] for layer in bucket) for bucket in reversed(buckets)])[::-1]
    parts, handles = flat.split(numels), []
    for layer, gradient in backward:
        parts[layer].copy_(gradient)
        while len(handles) < len(rows) and buckets[len(handles)][-1] >= layer:
            handles.append(comm.all_reduce_async(rows[len(handles)], average=True))
    handles += [comm.all_reduce_async(row, average=True) for row in rows[len(handles) :]]
    for handle in handles:
        handle.wait()
    return list(parts)
"""
START = """
        while len(handles) < len(rows) and buckets[len(handles)][-1] >= layer:
            handles.append(comm.all_reduce_async(rows[len(handles)], average=True))
"""
REST = "    handles += [comm.all_reduce_async(row, average=True) for row in rows[len(handles) :]]\n"
CUT = """
        if buckets[-1] and sum(numels[other] for other in [layer, *buckets[-1]]) > limit:
            buckets.append([])
        buckets[-1].append(layer)
"""
CULPRIT = """
def culprit(calls):
    for index in range(max(len(mine) for mine in calls)):
        made = [mine[index] if index < len(mine) else None for mine in calls]
        for rank, call in enumerate(made):
            if made.count(call) == 1:
                return rank, index
    return None
"""


KEPT_ROW = """
rows = {}
def average_gradients(comm, parameters):
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    sizes = [parameter.numel() for parameter in trained]
    row = rows.setdefault((comm.rank, sum(sizes)), torch.zeros(sum(sizes)))
    for parameter, part in zip(trained, row.split(sizes)):
        part.copy_(torch.zeros_like(part) if parameter.grad is None else parameter.grad.flatten())
    comm.all_reduce(row, average=True)
    for parameter, part in zip(trained, row.split(sizes)):
        parameter.grad = part.view_as(parameter)
"""
KEPT_ROWS = changed(
    changed(OVERLAPPED, "def reduce", "kept = {}\ndef reduce"), "torch.zeros(sum(numels))",
    "kept.setdefault((comm.rank, tuple(numels)), torch.zeros(sum(numels)))",
)  # fmt: skip


def average(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "average_gradients", changed(AVERAGE, old, new), hint)


def overlapped(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "reduce_overlapped", changed(OVERLAPPED, old, new), hint)


def culprit(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "culprit", changed(CULPRIT, old, new), hint)


ZOO = [
    Wrong("blank", "average_gradients", "def average_gradients(*args):\n    raise NotImplementedError()",
          "not written yet"),
    Wrong("one by one", "average_gradients", '''
def average_gradients(comm, parameters):
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            comm.all_reduce(parameter.grad, average=True)
''', "what could travel together"),
    Wrong("what has a gradient", "average_gradients", '''
def average_gradients(comm, parameters):
    for parameter in parameters:
        if parameter.grad is not None:
            comm.all_reduce(parameter.grad, average=True)
''', "part ways"),
    average("the sum", ", average=True", "", "the sum of the gradients"),
    average("not written back", "parameter.grad = part", "gradient = part", "its own, as before"),
    average("mean of those that have one", "    comm.all_reduce(row, average=True)\n",
            "    there = torch.cat([torch.full((p.numel(),), float(p.grad is not None)) for p in trained])\n"
            "    comm.all_reduce(row)\n    comm.all_reduce(there)\n    row /= there.clamp(min=1)\n",
            "the others count as zeros"),
    average("none stays none", "        parameter.grad = part",
            "        if parameter.grad is not None:\n            parameter.grad = part",
            "its copy of the model drifts"),
    average("the frozen, too", " if parameter.requires_grad", "", "a gradient for a frozen parameter"),
    average("everything to everybody", "    comm.all_reduce(row, average=True)\n",
            "    row = comm.all_gather(row).view(comm.size, -1).mean(0)\n", "without sending everything to all"),
    average("flat gradients", "part.view_as(parameter)", "part", "the same size"),
    average("a step besides", "        parameter.grad = part.view_as(parameter)\n",
            "        parameter.grad = part.view_as(parameter)\n        parameter.data -= parameter.grad\n",
            "belongs to the caller"),
    average("nothing where nobody has one", "        parameter.grad = part",
            "        if part.any():\n            parameter.grad = part", "its mean is zero then"),
    average("divides twice", "average=True)\n", "average=True)\n    row /= comm.size\n", "once more"),
    average("clears the frozen", "    comm.all_reduce(",
            "    for p in parameters:\n        p.grad = p.grad if p.requires_grad else None\n    comm.all_reduce(",
            "leave what is frozen alone"),
    average("returns them", "part.view_as(parameter)\n", "part.view_as(parameter)\n    return row\n", "return nothing"),
    average("gradients of gradients", "part.view_as(parameter)", "part.view_as(parameter).requires_grad_()",
            "autograd sees nothing"),
    average("rounded", "    comm.all_reduce(row, average=True)\n",
            "    row = row.bfloat16()\n    comm.all_reduce(row, average=True)\n    row = row.float()\n",
            "somebody rounds them"),
    average("doubles", "    comm.all_reduce(row, average=True)\n",
            "    row = row.double()\n    comm.all_reduce(row, average=True)\n    row = row.float()\n",
            "which dtype has it"),
    average("a count besides", "    comm.all_reduce(row, average=True)\n",
            "    row = torch.cat([row, row[:1]])\n    comm.all_reduce(row, average=True)\n    row = row[:-1]\n",
            "what else travels"),
    Wrong("sends the frozen", "average_gradients",
          changed(changed(AVERAGE, "[parameter for parameter in parameters if parameter.requires_grad]", "parameters"),
                  "        parameter.grad", "        if parameter.requires_grad:\n            parameter.grad"),
          "is the same everywhere"),
    Wrong("keeps its row", "average_gradients", KEPT_ROW, "each call needs memory of its own"),
    Wrong("keeps its row dirty", "average_gradients",
          changed(changed(KEPT_ROW, "        part.copy_(torch.zeros_like(part) if parameter.grad is None else ",
                          "        if parameter.grad is not None:\n            part.copy_("),
                  "part.view_as(parameter)", "part.clone().view_as(parameter)"), "what outlives a call"),
    Wrong("keeps its row in vain", "average_gradients",
          changed(changed(KEPT_ROW, "rows.setdefault((comm.rank, sum(sizes)), ", "rows[comm.rank] = ("),
                  "part.view_as(parameter)", "part.clone().view_as(parameter)"), "alive beside parameters"),
    average("drops a NaN", "gradient.detach().flatten()", "gradient.detach().nan_to_num().flatten()",
            "so that everybody sees it"),
    average("all but rank 0", "    comm.all", "    if comm.rank:\n        comm.all", "which one does not call it"),
    Wrong("blank", "reduce_overlapped", "def reduce_overlapped(*args):\n    raise NotImplementedError()",
          "not written yet"),
    overlapped("one call a layer", "[layer, *buckets[-1]]) > limit", "[layer]) > 0", "neighbours share a bucket"),
    overlapped("one row for all", "[layer, *buckets[-1]]) > limit", "[layer]) < 0", "before backward has ended"),
    overlapped("filled from the front", "    rows = ", '''    buckets = [[]]
    for layer in range(len(numels)):
        if buckets[-1] and sum(numels[other] for other in [layer, *buckets[-1]]) > limit:
            buckets.append([])
        buckets[-1].insert(0, layer)
    buckets.reverse()
    rows = ''', "fill buckets from the last layer on"),
    overlapped("waits in the loop", "rows[len(handles)], average=True))\n",
               "rows[len(handles)], average=True))\n            handles[-1].wait()\n", "a wait inside the loop"),
    overlapped("starts with the next layer", START.strip("\n"), START.strip("\n").replace(">= layer", "> layer"),
               "who tells you early"),
    overlapped("starts after backward", START, "\n", "or calls that start after it"),
    overlapped("the lent gradient", "parts[layer].copy_(gradient)",
               "parts = [*parts[:layer], gradient, *parts[layer + 1 :]]", "copy what it lends"),
    overlapped("starts what is complete", START, '''
        mine = next(number for number, bucket in enumerate(buckets) if layer in bucket)
        if layer == buckets[mine][-1]:
            handles.append(comm.all_reduce_async(rows[mine], average=True))
''', "part ways"),
    overlapped("the sum", ", average=True", "", "the sum of the gradients"),
    overlapped("the last layer first", "list(parts)", "list(parts)[::-1]", "turn the list around"),
    overlapped("the limit not reached", "> limit", ">= limit", "may have exactly"),
    overlapped("the limit exceeded", CUT, '''
        buckets[-1].append(layer)
        if layer and sum(numels[other] for other in buckets[-1]) >= limit:
            buckets.append([])
''', "is closed before it would exceed"),
    Wrong("closed by the next layer alone", "reduce_overlapped",
          changed(changed(OVERLAPPED, REST, ""), ">= layer", "> layer"), "which one does not call it"),
    Wrong("the last bucket forgotten", "reduce_overlapped",
          changed(changed(OVERLAPPED, REST, ""), "< len(rows)", "< len(rows) - 1"), "no layer comes behind it"),
    overlapped("no waiting", "        handle.wait()\n", "        pass\n", "when wait() of its handle returns"),
    overlapped("whole buckets", "list(parts)", "list(rows)", "cut buckets into layers again"),
    Wrong("nobody averages", "reduce_overlapped", changed(changed(OVERLAPPED, REST, ""), START, "\n"),
          "which nobody averaged"),
    overlapped("first layers first", START + REST, "\n" + REST.replace("rows[len(handles) :]", "rows[::-1]"),
               "which bucket is ready first"),
    overlapped("starts before backward", "    for layer, gradient",
               "    handles = [comm.all_reduce_async(row, average=True) for row in rows]\n    for layer, gradient",
               "before backward gave the first layer"),
    overlapped("starts one layer early", ">= layer", ">= layer - 1", "had not come yet"),
    Wrong("starts, then copies", "reduce_overlapped",
          changed(changed(OVERLAPPED, "        parts[layer].copy_(gradient)\n", ""), START,
                  START + "        parts[layer].copy_(gradient)\n"), "copy the gradient first, then start"),
    overlapped("clears what is lent", "copy_(gradient)", "copy_(gradient)\n        gradient.zero_()",
               "which backward only lends"),
    overlapped("waits for the last layer of a bucket", ">= layer", "== layer", "its last layer is skipped"),
    overlapped("one start a layer", "        while len", "        if len", "two buckets are ready at once"),
    overlapped("counts arrivals", START, '''
        buckets = [[other for other in bucket if other != layer] for bucket in buckets]
        while len(handles) < len(rows) and not buckets[len(handles)]:
            handles.append(comm.all_reduce_async(rows[len(handles)], average=True))
''', "and need not come"),
    overlapped("waits for the call before", "            handles.append(",
               "            [handle.wait() for handle in handles[-1:]]\n            handles.append(",
               "needs no wait for the call before"),
    overlapped("two calls in flight", "            handles.append(",
               "            [handle.wait() for handle in handles[:-1]]\n            handles.append(",
               "stands still for"),
    Wrong("keeps its rows", "reduce_overlapped", KEPT_ROWS, "each call needs memory of its own"),
    Wrong("keeps its rows dirty", "reduce_overlapped",
          changed(KEPT_ROWS, "list(parts)", "[part.clone() for part in parts]"), "what outlives a call"),
    overlapped("new memory", "torch.zeros", "torch.empty", "new memory holds anything"),
    overlapped("no bucket without elements", "if buckets[-1] and",
               "if sum(numels[other] for other in buckets[-1]) and", "a layer without elements is a layer"),
    overlapped("doubles", "list(parts)", "[part.double() for part in parts]", "torch.float64, not torch.float32"),
    overlapped("a barrier at the end", REST + "    for handle in handles:\n        handle.wait()\n",
               REST + "    for handle in handles:\n        handle.wait()\n    comm.barrier()\n",
               "one all_reduce for each bucket is all"),
    Wrong("blank", "culprit", "def culprit(*args):\n    raise NotImplementedError()", "not written yet"),
    culprit("zip", "max(len(mine)", "min(len(mine)", "as zip does"),
    Wrong("unlike rank 0", "culprit", '''
def culprit(calls):
    for index in range(max(len(mine) for mine in calls)):
        for rank, mine in enumerate(calls):
            if mine[index : index + 1] != calls[0][index : index + 1]:
                return rank, index
''', "who compares with rank 0 blames"),
    culprit("names alone", "[mine[index] if", "[mine[index][0] if", "you compare names only"),
    culprit("sizes alone", "[mine[index] if", "[mine[index][1] if", "you compare sizes only"),
    culprit("turned around", "return rank, index", "return index, rank", "the rank comes first"),
    culprit("counted from 1", "return rank, index", "return rank, index + 1", "counted from 0"),
    Wrong("fewest calls", "culprit", '''
def culprit(calls):
    lengths = [len(mine) for mine in calls]
    if len(set(lengths)) == 1:
        return None
    return lengths.index(min(lengths)), min(lengths)
''', "lists of equal length may differ"),
    culprit("the last departure", "range(max(len(mine) for mine in calls))",
            "reversed(range(max(len(mine) for mine in calls)))", "departs, too, but later"),
    culprit("never rank 0", "made.count(call) == 1", "rank and made.count(call) == 1", "0 is false in a condition"),
    culprit("some calls", "range(max(len(mine) for mine in calls))", "range(min(16, max(len(mine) for mine in calls)))",
            "it is far down"),
    Wrong("who is silent is alike", "culprit", '''
def culprit(calls):
    for index in range(max(len(mine) for mine in calls)):
        made = {rank: mine[index] for rank, mine in enumerate(calls) if index < len(mine)}
        for rank, call in made.items():
            if len(made) > 2 and list(made.values()).count(call) == 1:
                return rank, index
    lengths = [len(mine) for mine in calls]
    odd = [rank for rank, length in enumerate(lengths) if lengths.count(length) == 1]
    return (odd[0], min(lengths)) if odd else None
''', "to stop is to depart"),
    Wrong("the most different", "culprit", '''
def culprit(calls):
    made = [[*mine, *[None] * (max(map(len, calls)) - len(mine))] for mine in calls]
    odd = [sum(a != b for other in made for a, b in zip(mine, other)) for mine in made]
    rank = odd.index(max(odd))
    places = [at for at, call in enumerate(made[rank]) if any(call != other[at] for other in made)]
    return (rank, places[0]) if places else None
''', "who was the first to depart"),
    Wrong("blames the last", "culprit", '''
def culprit(calls):
    for index in range(max(len(mine) for mine in calls)):
        made = [mine[index] if index < len(mine) else None for mine in calls]
        for rank, call in enumerate(made):
            if call != made[-1]:
                return rank, index
    return None
''', "whose call does nobody else make"),
    Wrong("rank by rank", "culprit", '''
def culprit(calls):
    for rank, mine in enumerate(calls):
        for index in range(max(map(len, calls))):
            if [other[index : index + 1] for other in calls].count(mine[index : index + 1]) == 1:
                return rank, index
''', "go index by index"),
    Wrong("zip, and then the shortest", "culprit", '''
def culprit(calls):
    for index, made in enumerate(zip(*calls)):
        for rank, call in enumerate(made):
            if made.count(call) == 1:
                return rank, index
    lengths = [len(mine) for mine in calls]
    if len(set(lengths)) > 1:
        return lengths.index(min(lengths)), min(lengths)
''', "it is the longer list that is odd"),
    culprit("pads its input", "    for index", "    for mine in calls:\n"
            "        mine += [None] * (max(map(len, calls)) - len(mine))\n    for index", "belongs to the caller"),
    culprit("always somebody", "    return None", "    return 0, 0", "nobody departs"),
]  # fmt: skip
