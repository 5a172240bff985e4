"""Wrong answers to the exercises of lesson 05 on thresholds, costs and traces."""

from zoo.wrong import Wrong, blank, changed

PERSISTENT = """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, self.threshold = comm, threshold
        self.shapes = [tensor.shape for tensor in tensors]
        self.kept = [self.part(tensor) for tensor in tensors]

    def part(self, tensor):
        if tensor.numel() < self.threshold:
            return tensor
        return tensor.flatten().tensor_split(self.comm.size)[self.comm.rank].clone()

    def whole(self, index):
        shape = self.shapes[index]
        if shape.numel() < self.threshold:
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], shape.numel()).view(shape)
"""
COST = """
def step_bytes(units, ranks, micro_batches, checkpointing):
    first = next((index for index, (_, trains) in enumerate(units) if trains), len(units))
    forth = sum(numel for numel, _ in units)
    back = sum(numel for numel, _ in units[first:])
    reduced = sum(numel for numel, trains in units if trains)
    return micro_batches * 4 * (forth + back + reduced) // ranks * (ranks - 1)
"""
TRACE = """
def explain_trace(trace):
    here, away, most = set(), set(), 0
    for event, unit in trace:
        if event == "gather":
            here.add(unit)
        elif event == "release":
            here.discard(unit)
        elif unit not in here:
            away.add(unit)
        most = max(most, len(here))
    return most, sorted(here), sorted(away)
"""


PERSISTENTS = [
    blank("Persistent", "class Persistent:\n"),
    Wrong("one of exactly the threshold stays", "Persistent",
          changed(PERSISTENT, "< self.threshold", "<= self.threshold"), "one of exactly as many is cut"),
    Wrong("cuts none", "Persistent", changed(PERSISTENT, "< self.threshold", ">= 0"), "no tensor is cut"),
    Wrong("cuts all", "Persistent", changed(PERSISTENT, "< self.threshold", "< 0"), "all tensors are cut"),
    Wrong("the other way round", "Persistent",
          changed(PERSISTENT, "< self.threshold", ">= self.threshold"), "cut the small ones and keep the large"),
    Wrong("measures the shard", "Persistent",
          changed(PERSISTENT, "numel() < self.threshold", "numel() // self.comm.size < self.threshold"),
          "you measure the shard"),
    Wrong("a budget", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, self.shapes, left = comm, [tensor.shape for tensor in tensors], threshold
        self.stays = [False] * len(tensors)
        for index in sorted(range(len(tensors)), key=lambda index: tensors[index].numel()):
            if tensors[index].numel() <= left:
                self.stays[index], left = True, left - tensors[index].numel()
        self.kept = [
            tensor if stays else tensor.flatten().tensor_split(comm.size)[comm.rank].clone()
            for tensor, stays in zip(tensors, self.stays)
        ]

    def whole(self, index):
        if self.stays[index]:
            return self.kept[index]
        return self.comm.all_gather(self.kept[index], self.shapes[index].numel()).view(self.shapes[index])
""", "no budget for all"),
    Wrong("views", "Persistent", changed(PERSISTENT, "[self.comm.rank].clone()", "[self.comm.rank]"),
          "a view keeps all the memory"),
    Wrong("keeps the list", "Persistent",
          changed(PERSISTENT, "self.shapes = ", "self.tensors = tensors\n        self.shapes = "), "so does each name"),
    Wrong("flat", "Persistent", changed(PERSISTENT, "shape.numel()).view(shape)", "shape.numel())"),
          "in the wrong shape"),
    Wrong("gathers what is whole", "Persistent",
          changed(PERSISTENT, "return self.kept[index]",
                  "self.comm.all_gather(self.kept[index].flatten().tensor_split(self.comm.size)[self.comm.rank],"
                  " shape.numel())\n            return self.kept[index]"), "needs no call"),
    Wrong("gathers in advance", "Persistent",
          changed(PERSISTENT, "for tensor in tensors]\n\n", "for tensor in tensors]\n        comm.barrier()\n\n"),
          "call 1 of rank 0 is barrier"),
    Wrong("keeps what it gathered last", "Persistent",
          changed(PERSISTENT, "        return self.comm.all_gather(self.kept[index], shape.numel()).view(shape)",
                  "        self.last = self.comm.all_gather(self.kept[index], shape.numel()).view(shape)\n"
                  "        return self.last"), "or for what was gathered"),
    Wrong("one rank needs no call", "Persistent",
          changed(PERSISTENT, "            return self.kept[index]\n",
                  "            return self.kept[index]\n        if self.comm.size == 1:\n"
                  "            return self.kept[index].view(shape)\n"), "on one rank, too, and is gathered"),
    Wrong("goes by dimensions", "Persistent",
          changed(PERSISTENT, "shape.numel() < self.threshold", "len(shape) < 2")
          .replace("tensor.numel() < self.threshold", "tensor.dim() < 2"), "the number of dimensions"),
    Wrong("empties the list", "Persistent",
          changed(PERSISTENT, "for tensor in tensors]\n\n", "for tensor in tensors]\n        tensors.clear()\n\n"),
          "they belong to the caller"),
    Wrong("empties the tensors", "Persistent",
          changed(PERSISTENT, "tensor in tensors]\n\n", "tensor in tensors]\n        for tensor in tensors:\n"
                  "            if tensor.numel() >= threshold:\n                tensor.data = torch.empty(0)\n\n"),
          "or a tensor in it, has changed"),
    Wrong("shapes on the class", "Persistent",
          changed(PERSISTENT, "self.shapes", "Persistent.shapes"), "fails once a second Persistent"),
    Wrong("the threshold on the class", "Persistent",
          changed(PERSISTENT, "self.threshold", "Persistent.threshold")
          .replace("self.comm, Persistent.threshold = comm, threshold",
                   "self.comm = comm\n        Persistent.threshold = threshold"), "once a second"),
]  # fmt: skip


def cost(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "step_bytes", changed(COST, old, new), hint)


COSTS = [
    blank("step_bytes"),
    cost("one gather", "forth + back", "forth", "backward needs each unit again"),
    cost("recomputing gathers", "forth + back", "forth * (1 + checkpointing) + back", "where the unit is here"),
    cost("all the way back", "units[first:]", "units", "no gradient passes through"),
    cost("frozen gradients", "units if trains)", "units)", "no gradient to reduce"),
    cost("frozen units whole", "forth = sum(numel for numel, _ in units)",
         "units = [unit for unit in units if unit[1]]\n    first, forth = 0, sum(numel for numel, _ in units)",
         "cut, too, and needed"),
    cost("one micro-batch", "return micro_batches * 4", "return 4", "each one gathers and reduces anew"),
    cost("elements", "micro_batches * 4", "micro_batches", "in fp32 each has 4 bytes"),
    cost("all of it", "// ranks * (ranks - 1)", "", "(N-1)/N of a tensor"),
    cost("all_reduce", "+ reduced)", "+ 2 * reduced)", "two half rings"),
    cost("a float", "// ranks", "/ ranks", "divide with //"),
    cost("always two micro-batches", "return micro_batches", "return 2", "So much would 2 micro-batches send"),
    cost("no unit trains", "len(units))", "0)", "there is no backward"),
    cost("reduces once a step", "micro_batches * 4 * (forth + back + reduced)",
         "4 * (micro_batches * (forth + back) + reduced)", "each micro-batch reduces its gradients"),
    cost("empties the list", "    return micro", "    units.clear()\n    return micro", "overwrote"),
]  # fmt: skip


def trace(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "explain_trace", changed(TRACE, old, new), hint)


TRACES = [
    blank("explain_trace"),
    trace("the number alone", "return most, sorted(here), sorted(away)", "return most", "a number and two lists"),
    trace("counts at the end", "most, sorted(here),", "len(here), sorted(here),", "the worst moment may lie before"),
    trace("counts events", "        most = max(most, len(here))",
          "    count = 0\n    for event, _ in trace:\n        count += (event == 'gather') - (event == 'release')\n"
          "        most = max(most, count)", "here or not, however often"),
    trace("counts all units", "return most,", "return len({unit for _, unit in trace}),", "some are gone"),
    trace("never released at all", "sorted(here), ",
          "sorted({u for e, u in trace if e == 'gather'} - {u for e, u in trace if e == 'release'}), ",
          "gathered once more"),
    trace("used and never released", "sorted(here), ",
          "sorted(here | {u for e, u in trace if e == 'use' and ('release', u) not in [tuple(t) for t in trace]}), ",
          "cannot be left over"),
    trace("unsorted", "sorted(here), ", "sorted(here, reverse=True), ", "Name each once"),
    trace("each use", "sorted(away)", "[u for e, u in trace if e == 'use' and u in away]", "however often it was used"),
    trace("keeps those that were gathered", "elif unit not in here:",
          "elif ('gather', unit) not in [tuple(t) for t in trace]:", "may have been released since"),
    Wrong("looks before the event", "explain_trace",
          changed(TRACE, "        most = max(most, len(here))\n", "")
          .replace("trace:\n", "trace:\n        most = max(most, len(here))\n"), "look after an event"),
    trace("a use brings a unit", "away.add(unit)", "away.add(unit)\n            here.add(unit)", "only a gather does"),
    trace("a default argument", "def explain_trace(trace):\n    here, away, most = set(), set(), 0",
          "def explain_trace(trace, away=set()):\n    here, most = set(), 0", "stays from call to call"),
    trace("empties the trace", "    return most", "    trace.clear()\n    return most", "overwrote"),
]  # fmt: skip

ZOO = [*PERSISTENTS, *COSTS, *TRACES]
