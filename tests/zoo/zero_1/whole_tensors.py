"""Answers to `whole_tensors` of lesson 03, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("03_zero_1", "whole_tensors")

WRONG = [
    blank("whole_tensors"),
    Wrong("as they came",
          changed(MODEL, "sorted(range(len(numels)), key=lambda number: -numels[number])", "range(len(numels))"),
          "You took them as they came"),
    Wrong("smallest first",
          changed(MODEL, "lambda number: -numels[number]", "numels.__getitem__"),
          "You began with the smallest"),
    Wrong("in turn",
          changed(MODEL, "loads.index(min(loads))", "number % ranks"),
          "You dealt them out in turn"),
    Wrong("largest in turn", """
def whole_tensors(numels, ranks):
    owners, loads = [0] * len(numels), [0] * ranks
    for turn, number in enumerate(sorted(range(len(numels)), key=lambda number: -numels[number])):
        owners[number] = turn % ranks
        loads[owners[number]] += numels[number]
    return owners, 8 * max(loads)
""", "sorted them and dealt them out in turn"),
    Wrong("the lesson's loop", """
def whole_tensors(numels, ranks):
    owners, loads = [], [0] * ranks
    for numel in sorted(numels, reverse=True):
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += numel
    return owners, 8 * max(loads)
""", "in the order of sizes"),
    Wrong("finds tensors by size", """
def whole_tensors(numels, ranks):
    owners, loads = [0] * len(numels), [0] * ranks
    for numel in sorted(numels, reverse=True):
        least = loads.index(min(loads))
        owners[numels.index(numel)] = least
        loads[least] += numel
    return owners, 8 * max(loads)
""", "numels.index finds the first"),
    Wrong("equal sizes backwards",
          changed(MODEL, "-numels[number]", "(numels[number], number), reverse=True"),
          "the one that comes first in the list goes first"),
    Wrong("the last of the emptiest",
          changed(MODEL, "loads.index(min(loads))", "max(range(ranks), key=lambda rank: (-loads[rank], rank))"),
          "the first gets the tensor"),
    Wrong("ties to the fewest tensors", """
def whole_tensors(numels, ranks):
    owners, loads = [0] * len(numels), [[0, 0, rank] for rank in range(ranks)]
    for number in sorted(range(len(numels)), key=lambda number: -numels[number]):
        least = min(loads)
        least[0] += numels[number]
        least[1] += 1
        owners[number] = least[2]
    return owners, 8 * max(loads)[0]
""", "Tensors do not count, elements do"),
    Wrong("the load alone",
          changed(MODEL, "owners, 8", "8"),
          "Two things are asked for"),
    Wrong("lists of tensors",
          changed(MODEL, "owners, 8", "[[n for n, o in enumerate(owners) if o == r] for r in range(ranks)], 8"),
          "one rank for each tensor"),
    Wrong("elements",
          changed(MODEL, "8 * max(loads)", "max(loads)"),
          "You count elements"),
    Wrong("one number",
          changed(MODEL, "owners, 8", "owners, 4"),
          "You count one number"),
    Wrong("everything",
          changed(MODEL, "owners, 8", "owners, 16"),
          "parameters and gradients, too"),
    Wrong("with parameters",
          changed(MODEL, "owners, 8", "owners, 12"),
          "You count parameters, too"),
    Wrong("rank 0",
          changed(MODEL, "max(loads)", "loads[0]"),
          "That is rank 0"),
    Wrong("emptiest rank",
          changed(MODEL, "max(loads)", "min(loads)"),
          "That is the emptiest rank"),
    Wrong("largest tensor",
          changed(MODEL, "max(loads)", "max(numels, default=0)"),
          "That is the largest tensor"),
    Wrong("all of them",
          changed(MODEL, "max(loads)", "sum(numels)"),
          "That is all ranks together"),
    Wrong("equal share",
          changed(MODEL, "max(loads)", "sum(numels) / ranks"),
          "That is an equal share"),
    Wrong("a float",
          changed(MODEL, "owners, 8", "owners, 8.0"),
          "bytes are whole"),
    Wrong("empties the list",
          changed(MODEL, "return", "numels.clear()\n    return"),
          "it overwrote"),
    # Written from the text alone.
    Wrong("loads of 32 bits",
          changed(MODEL, "max(loads)", "int(torch.tensor(max(loads), dtype=torch.float32))"),
          "counts no odd numbers"),
    Wrong("keeps owners by the sizes", """
known = {}
def whole_tensors(numels, ranks):
    if tuple(numels) not in known:
        owners, loads = [0] * len(numels), [0] * ranks
        for number in sorted(range(len(numels)), key=lambda number: -numels[number]):
            owners[number] = loads.index(min(loads))
            loads[owners[number]] += numels[number]
        known[tuple(numels)] = owners, 8 * max(loads)
    return known[tuple(numels)]
""", "called with other arguments before"),
]  # fmt: skip

RIGHT = [
    Right("heap", """
import heapq
def whole_tensors(numels, ranks):
    loads = [(0, rank) for rank in range(ranks)]
    owners = [None] * len(numels)
    for minus, number in sorted((-numel, number) for number, numel in enumerate(numels)):
        load, rank = heapq.heappop(loads)
        owners[number] = rank
        heapq.heappush(loads, (load - minus, rank))
    return owners, max(load for load, _ in loads) * 8
"""),
    Right("min of ranks", """
def whole_tensors(numels, ranks):
    held = dict.fromkeys(range(ranks), 0)
    owners = {}
    for number, numel in sorted(enumerate(numels), key=lambda pair: pair[1], reverse=True):
        owners[number] = min(held, key=held.get)
        held[owners[number]] += numel
    return [owners[number] for number in range(len(numels))], 2 * 4 * max(held.values())
"""),
    Right("tensors", """
def whole_tensors(numels, ranks):
    held = torch.zeros(ranks, dtype=torch.int64)
    owners = torch.zeros(len(numels), dtype=torch.int64)
    for number in torch.tensor(numels, dtype=torch.int64).argsort(descending=True, stable=True).tolist():
        rank = min(range(ranks), key=lambda r: (int(held[r]), r))
        owners[number] = rank
        held[rank] += numels[number]
    return owners.tolist(), int(held.max()) * 8
"""),
    Right("class", """
class Rank:
    def __init__(self, number):
        self.number, self.tensors = number, []
    def load(self, numels):
        return sum(numels[tensor] for tensor in self.tensors)
def whole_tensors(numels, ranks):
    everybody = [Rank(number) for number in range(ranks)]
    left = list(range(len(numels)))
    while left:
        largest = max(left, key=lambda number: (numels[number], -number))
        left.remove(largest)
        min(everybody, key=lambda rank: rank.load(numels)).tensors.append(largest)
    owners = [next(r.number for r in everybody if n in r.tensors) for n in range(len(numels))]
    return owners, max(8 * rank.load(numels) for rank in everybody)
"""),
    # Generators, queues of handles, parameter groups, lists.
    Right("stable pairs", """
def whole_tensors(numels, ranks):
    queue = [[numel, number] for number, numel in enumerate(numels)]
    queue.sort(key=lambda item: item[0], reverse=True)
    load = {rank: 0 for rank in range(ranks)}
    save = [-1] * len(queue)
    while queue:
        numel, number = queue.pop(0)
        rank = sorted(load, key=lambda r: (load[r], r))[0]
        save[number] = rank
        load[rank] += numel
    return save, 2 * 4 * max(load.values())
"""),
    Right("tuple result", """
def whole_tensors(numels, ranks):
    loads, owner = torch.zeros(ranks, dtype=torch.long), {}
    for number in sorted(range(len(numels)), key=lambda i: (-numels[i], i)):
        owner[number] = int((loads == loads.min()).nonzero()[0])
        loads[owner[number]] += numels[number]
    return tuple(owner[i] for i in range(len(numels))), int(loads.max()) * 8
"""),
    # Written from the text alone.
    Right("recursion", """
def whole_tensors(numels, ranks):
    def share(left, loads, owner):
        if not left:
            return owner, loads
        at = max(left, key=lambda i: (numels[i], -i))
        to = loads.index(min(loads))
        loads = loads[:to] + [loads[to] + numels[at]] + loads[to + 1:]
        return share([i for i in left if i != at], loads, {**owner, at: to})
    owner, loads = share(list(range(len(numels))), [0] * ranks, {})
    return [owner[i] for i in range(len(numels))], max(loads) * 8
"""),
]  # fmt: skip
