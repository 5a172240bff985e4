"""Answers to `culprit` of lesson 02, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("02_flat_buffers", "culprit")

WRONG = [
    blank("culprit"),
    Wrong("zip",
          changed(MODEL, "range(max", "range(min"),
          "as zip does"),
    Wrong("unlike rank 0", """
def culprit(calls):
    for index in range(max(len(mine) for mine in calls)):
        for rank, mine in enumerate(calls):
            if mine[index : index + 1] != calls[0][index : index + 1]:
                return rank, index
""", "who compares with rank 0 blames"),
    Wrong("names alone",
          changed(MODEL, "[index]", "[index][0]"),
          "you compare names only"),
    Wrong("sizes alone",
          changed(MODEL, "[index]", "[index][1]"),
          "you compare sizes only"),
    Wrong("turned around",
          changed(MODEL, "rank, index", "index, rank"),
          "the rank comes first"),
    Wrong("counted from 1",
          changed(MODEL, "rank, index", "rank, index + 1"),
          "counted from 0"),
    Wrong("fewest calls", """
def culprit(calls):
    lengths = [len(mine) for mine in calls]
    if len(set(lengths)) == 1:
        return None
    return lengths.index(min(lengths)), min(lengths)
""", "lists of equal length may differ"),
    Wrong("the last departure",
          changed(MODEL,
                  "range(max(len(mine) for mine in calls))",
                  "reversed(range(max(len(mine) for mine in calls)))"),
          "departs, too, but later"),
    Wrong("never rank 0",
          changed(MODEL, "if made", "if rank and made"),
          "0 is false in a condition"),
    Wrong("some calls",
          changed(MODEL, "max(len(mine) for mine in calls)", "min(16, max(len(mine) for mine in calls))"),
          "it is far down"),
    Wrong("who is silent is alike", """
def culprit(calls):
    for index in range(max(len(mine) for mine in calls)):
        made = {rank: mine[index] for rank, mine in enumerate(calls) if index < len(mine)}
        for rank, call in made.items():
            if len(made) > 2 and list(made.values()).count(call) == 1:
                return rank, index
    lengths = [len(mine) for mine in calls]
    odd = [rank for rank, length in enumerate(lengths) if lengths.count(length) == 1]
    return (odd[0], min(lengths)) if odd else None
""", "to stop is to depart"),
    Wrong("the most different", """
def culprit(calls):
    made = [[*mine, *[None] * (max(map(len, calls)) - len(mine))] for mine in calls]
    odd = [sum(a != b for other in made for a, b in zip(mine, other)) for mine in made]
    rank = odd.index(max(odd))
    places = [at for at, call in enumerate(made[rank]) if any(call != other[at] for other in made)]
    return (rank, places[0]) if places else None
""", "who was the first to depart"),
    Wrong("blames the last",
          changed(MODEL, "made.count(call) == 1", "call != made[-1]"),
          "whose call does nobody else make"),
    Wrong("rank by rank", """
def culprit(calls):
    for rank, mine in enumerate(calls):
        for index in range(max(map(len, calls))):
            if [other[index : index + 1] for other in calls].count(mine[index : index + 1]) == 1:
                return rank, index
""", "go index by index"),
    Wrong("zip, and then the shortest", """
def culprit(calls):
    for index, made in enumerate(zip(*calls)):
        for rank, call in enumerate(made):
            if made.count(call) == 1:
                return rank, index
    lengths = [len(mine) for mine in calls]
    if len(set(lengths)) > 1:
        return lengths.index(min(lengths)), min(lengths)
""", "it is the longer list that is odd"),
    Wrong("pads its input",
          changed(MODEL,
                  "for index",
                  "for mine in calls:\n"
                  "        mine += [None] * (max(map(len, calls)) - len(mine))\n"
                  "    for index"),
          "belongs to the caller"),
    Wrong("always somebody",
          changed(MODEL, "return None", "return 0, 0"),
          "nobody departs"),
    # Hold on most inputs: sums of 32 bits, edges, a rank that has nothing.
    Wrong("as long as rank 0", """
def culprit(calls):
    for index in range(len(calls[0])):
        column = [c[index] if index < len(c) else None for c in calls]
        for rank, call in enumerate(column):
            if column.count(call) == 1:
                return rank, index
    return None
""", "go as far as the longest list"),
    # Written from the text alone.
    Wrong("unlike the most common list", """
def culprit(calls):
    from collections import Counter
    usual = Counter(map(tuple, calls)).most_common(1)[0][0]
    found = [
        (index, rank)
        for rank, mine in enumerate(calls)
        for index in range(max(len(mine), len(usual)))
        if tuple(mine[index : index + 1]) != usual[index : index + 1]
    ]
    return min(found)[::-1] if found else None
""", "as if it were the usual one"),
    Wrong("the rarest length", """
def culprit(calls):
    for index, made in enumerate(zip(*calls)):
        for rank, call in enumerate(made):
            if made.count(call) == 1:
                return rank, index
    lengths = [len(mine) for mine in calls]
    return (lengths.index(min(lengths, key=lengths.count)), min(lengths)) if len(set(lengths)) > 1 else None
""", "how rare a list's length is"),
    Wrong("keeps what it said by the number of calls", """
known = {}
def culprit(calls):
    by = tuple(map(len, calls))
    if by not in known:
        made = [[*mine, *[None] * (max(by) - len(mine))] for mine in calls]
        columns = enumerate(zip(*made))
        odd = ((rank, at) for at, column in columns for rank, call in enumerate(column) if column.count(call) == 1)
        known[by] = next(odd, None)
    return known[by]
""", "by itself the same call is right"),
]  # fmt: skip

RIGHT = [
    Right("the usual call", """
from itertools import zip_longest
def culprit(calls):
    for index, made in enumerate(zip_longest(*calls)):
        usual = max(made, key=made.count)
        if made.count(usual) < len(made):
            return [call == usual for call in made].index(False), index
"""),
    Right("counter", """
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
    Right("others agree", """
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
    Right("recursive", """
def culprit(calls, index=0):
    if all(len(mine) <= index for mine in calls):
        return None
    heads = [mine[index] if len(mine) > index else None for mine in calls]
    alone = [rank for rank, head in enumerate(heads) if heads.count(head) == 1]
    return (alone[0], index) if alone else culprit(calls, index + 1)
"""),
    Right("next of generator", """
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
    # Closures, classes of handles, names that sound like files.
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
    # Callable objects, blocking messages, chunks without elements that are not sent.
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
