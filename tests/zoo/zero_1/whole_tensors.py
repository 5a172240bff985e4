"""Answers to `whole_tensors` of lesson 03 that are right, each in a style of its own."""

from zoo.answers import Right

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
    Right("tuple result", """
def whole_tensors(numels, ranks):
    loads, owner = torch.zeros(ranks, dtype=torch.long), {}
    for number in sorted(range(len(numels)), key=lambda i: (-numels[i], i)):
        owner[number] = int((loads == loads.min()).nonzero()[0])
        loads[owner[number]] += numels[number]
    return tuple(owner[i] for i in range(len(numels))), int(loads.max()) * 8
"""),
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
