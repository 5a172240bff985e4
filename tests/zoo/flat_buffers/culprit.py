"""Right answers to `culprit` of lesson 02."""

from zoo.answers import Right

RIGHT = [
    Right("the usual call", """
from itertools import zip_longest
def culprit(calls):
    for index, made in enumerate(zip_longest(*calls)):
        usual = max(made, key=made.count)
        if made.count(usual) < len(made):
            return [call == usual for call in made].index(False), index
"""),
    Right("sorted middle", """
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
    Right("pandas like", """
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
    Right("majority of three", """
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
    Right("recursion on tails", """
def culprit(calls, index=0):
    heads = [c[index:index + 1] for c in calls]
    if not any(heads):
        return None
    odd = [r for r, h in enumerate(heads) if heads.count(h) == 1]
    if odd:
        return odd[0], index
    return culprit(calls, index + 1)
"""),
]  # fmt: skip
