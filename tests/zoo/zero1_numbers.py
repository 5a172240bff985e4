"""Wrong answers to the exercises of lesson 03 that give numbers: whole tensors shared out, and the cost of a step."""

from zoo.wrong import Wrong, blank, changed

WHOLE_TENSORS = """
def whole_tensors(numels, ranks):
    owners, loads = [0] * len(numels), [0] * ranks
    for number in sorted(range(len(numels)), key=lambda number: -numels[number]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += numels[number]
    return owners, 8 * max(loads)
"""
COST = """
def step_bytes(numel, ranks, way):
    halves = {"stage 0": 2, "stage 1, all-reduce": 3, "stage 1, reduce-scatter": 2}[way]
    return halves * 4 * numel // ranks * (ranks - 1)
"""


IN_ORDER = "sorted(range(len(numels)), key=lambda number: -numels[number])"


def whole(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "whole_tensors", changed(WHOLE_TENSORS, old, new), hint)


WHOLE = [
    blank("whole_tensors"),
    whole("as they came", IN_ORDER, "range(len(numels))", "You took them as they came"),
    whole("smallest first", IN_ORDER, "sorted(range(len(numels)), key=numels.__getitem__)",
          "You began with the smallest"),
    whole("in turn", "loads.index(min(loads))", "number % ranks", "You dealt them out in turn"),
    Wrong("largest in turn", "whole_tensors", '''
def whole_tensors(numels, ranks):
    owners, loads = [0] * len(numels), [0] * ranks
    for turn, number in enumerate(sorted(range(len(numels)), key=lambda number: -numels[number])):
        owners[number] = turn % ranks
        loads[owners[number]] += numels[number]
    return owners, 8 * max(loads)
''', "sorted them and dealt them out in turn"),
    Wrong("the lesson's loop", "whole_tensors", '''
def whole_tensors(numels, ranks):
    owners, loads = [], [0] * ranks
    for numel in sorted(numels, reverse=True):
        owners.append(loads.index(min(loads)))
        loads[owners[-1]] += numel
    return owners, 8 * max(loads)
''', "in the order of sizes"),
    Wrong("finds tensors by size", "whole_tensors", '''
def whole_tensors(numels, ranks):
    owners, loads = [0] * len(numels), [0] * ranks
    for numel in sorted(numels, reverse=True):
        least = loads.index(min(loads))
        owners[numels.index(numel)] = least
        loads[least] += numel
    return owners, 8 * max(loads)
''', "numels.index finds the first"),
    whole("equal sizes backwards", IN_ORDER,
          "sorted(range(len(numels)), key=lambda number: (numels[number], number), reverse=True)",
          "the one that comes first in the list goes first"),
    whole("the last of the emptiest", "loads.index(min(loads))",
          "max(range(ranks), key=lambda rank: (-loads[rank], rank))", "the first gets the tensor"),
    Wrong("ties to the fewest tensors", "whole_tensors", '''
def whole_tensors(numels, ranks):
    owners, loads = [0] * len(numels), [[0, 0, rank] for rank in range(ranks)]
    for number in sorted(range(len(numels)), key=lambda number: -numels[number]):
        least = min(loads)
        least[0] += numels[number]
        least[1] += 1
        owners[number] = least[2]
    return owners, 8 * max(loads)[0]
''', "Tensors do not count, elements do"),
    whole("the load alone", "owners, 8 * max(loads)", "8 * max(loads)", "Two things are asked for"),
    whole("lists of tensors", "owners, 8 *", "[[n for n, o in enumerate(owners) if o == r] for r in range(ranks)], 8 *",
          "one rank for each tensor"),
    whole("elements", "8 * max", "max", "You count elements"),
    whole("one number", "8 * max", "4 * max", "You count one number"),
    whole("everything", "8 * max", "16 * max", "parameters and gradients, too"),
    whole("with parameters", "8 * max", "12 * max", "You count parameters, too"),
    whole("rank 0", "max(loads)", "loads[0]", "That is rank 0"),
    whole("emptiest rank", "max(loads)", "min(loads)", "That is the emptiest rank"),
    whole("largest tensor", "max(loads)", "max(numels, default=0)", "That is the largest tensor"),
    whole("all of them", "max(loads)", "sum(numels)", "That is all ranks together"),
    whole("equal share", "8 * max(loads)", "8 * sum(numels) / ranks", "That is an equal share"),
    whole("a float", "8 * max(loads)", "8.0 * max(loads)", "bytes are whole"),
    whole("empties the list", "    return", "    numels.clear()\n    return", "it overwrote"),
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

ZOO = [*WHOLE, *BYTES]
