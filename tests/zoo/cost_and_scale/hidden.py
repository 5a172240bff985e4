"""Answers to `hidden` of lesson 09, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("09_cost_and_scale", "hidden")
ONE_AHEAD = """
def hidden(comm, shards, numels, compute, room):
    coming = comm.all_gather_async(shards[0], numels[0])
    for k in range(len(numels)):
        whole, coming = coming.wait(), None
        more = k + 1 < len(numels) and numels[k] + numels[k + 1] <= room
        if more:
            coming = comm.all_gather_async(shards[k + 1], numels[k + 1])
        compute(k, whole)
        del whole
        if k + 1 < len(numels) and not more:
            coming = comm.all_gather_async(shards[k + 1], numels[k + 1])
"""

WRONG = [
    blank("hidden"),
    Wrong("one after the other", """
def hidden(comm, shards, numels, compute, room):
    for k, (shard, numel) in enumerate(zip(shards, numels)):
        compute(k, comm.all_gather(shard, numel))
""", "nothing goes on at once"),
    Wrong("one ahead", ONE_AHEAD, "one unit ahead is not always enough"),
    Wrong("all ahead", """
def hidden(comm, shards, numels, compute, room):
    coming = [comm.all_gather_async(shard, numel) for shard, numel in zip(shards, numels)]
    for k in range(len(numels)):
        compute(k, coming[k].wait())
        coming[k] = None
""", "all units are here"),
    Wrong("keeps all handles",
          changed(MODEL, "coming.pop(0).wait()", "coming[index].wait()"),
          "but no unit goes"),
    Wrong("the last one stays in a variable",
          changed(MODEL, "compute(index, coming.pop(0).wait())",
                  "whole = coming.pop(0).wait()\n        compute(index, whole)"),
          "is it in a variable, or in its handle"),
    Wrong("counts what it holds in shards",
          changed(changed(MODEL, "numels[following] <= room", "len(shards[following]) <= room"),
                  "room -= numels[following]", "room -= len(shards[following])"),
          "and the room is"),
    Wrong("at least two ahead",
          changed(MODEL, "numels[following] <= room:", "(numels[following] <= room or following <= index + 1):"),
          "the unit that was computed has to be gone"),
    Wrong("two ahead",
          changed(MODEL, "numels[following] <= room:", "numels[following] <= room and following <= index + 2:"),
          "two units ahead are not always enough"),
    Wrong("strictly less than the room",
          changed(MODEL, "numels[following] <= room:", "numels[following] < room:"),
          "pop from empty list"),
    Wrong("an element of room stays free",
          changed(MODEL, "numels[following] <= room:", "(numels[following] < room or following == index):"),
          "are enough"),
    Wrong("only when nothing is here", """
def hidden(comm, shards, numels, compute, room):
    k = 0
    while k < len(numels):
        several, held = [], 0
        while k + len(several) < len(numels) and held + numels[k + len(several)] <= room:
            at = k + len(several)
            several.append(comm.all_gather_async(shards[at], numels[at]))
            held += numels[at]
        while several:
            compute(k, several.pop(0).wait())
            k += 1
""", "before you wait for another"),
    Wrong("does not wait", """
def hidden(comm, shards, numels, compute, room):
    for k, numel in enumerate(numels):
        whole = torch.zeros(numel)
        handle = comm.all_gather_async(shards[k], numel, out=whole)
        compute(k, whole)
        handle.wait()
        del whole, handle
""", "in memory that a gather under way writes to"),
    Wrong("computes on handles' order reversed",
          changed(MODEL, "coming.pop(0)", "coming.pop()"),
          "is not the whole unit"),
    Wrong("the last unit is forgotten",
          changed(MODEL, "enumerate(numels)", "enumerate(numels[:-1])"),
          "never computes on unit"),
    Wrong("its shard for the unit", """
def hidden(comm, shards, numels, compute, room):
    for k in range(len(numels)):
        comm.all_gather(shards[k], numels[k])
        compute(k, shards[k])
""", "is there a wait() before"),
    Wrong("without the length",
          changed(MODEL, "shards[following], numels[following]", "shards[following]"),
          "the ranks part ways"),
    Wrong("computes by size", """
def hidden(comm, shards, numels, compute, room):
    for k in sorted(range(len(numels)), key=lambda k: numels[k]):
        compute(k, comm.all_gather(shards[k], numels[k]))
""", "each once, in order"),
    Wrong("gathers again what did not fit", """
def hidden(comm, shards, numels, compute, room):
    for k in range(len(numels)):
        comm.all_gather(shards[k], numels[k])
        compute(k, comm.all_gather(shards[k], numels[k]))
""", "one all_gather a unit"),
    Wrong("keeps the last",
          "KEPT = []\n"
          + changed(MODEL, "        room += numel", "        room += numel\n    KEPT.append(torch.ones(10))"),
          "are alive that it did not return"),
]  # fmt: skip

RIGHT = [
    Right("a deque and sums", """
from collections import deque


def hidden(comm, shards, numels, compute, room):
    under_way, first = deque(), 0
    for k in range(len(numels)):
        while first < len(numels) and sum(numels[k : first + 1]) <= room:
            under_way.append(comm.all_gather_async(shards[first], numels[first]))
            first += 1
        handle = under_way.popleft()
        compute(k, handle.wait())
        del handle
"""),
    Right("a generator of wholes", """
def wholes(comm, shards, numels, room):
    handles, begun, done = {}, 0, 0
    while done < len(numels):
        while begun < len(numels) and sum(numels[done:begun]) + numels[begun] <= room:
            handles[begun] = comm.all_gather_async(shards[begun], numels[begun])
            begun += 1
        yield handles.pop(done).wait()
        done += 1


def hidden(comm, shards, numels, compute, room):
    coming = wholes(comm, shards, numels, room)
    for k in range(len(numels)):
        compute(k, next(coming))
"""),
    Right("begins after it has waited", """
def hidden(comm, shards, numels, compute, room):
    handles = [comm.all_gather_async(shards[0], numels[0])]
    held, following = numels[0], 1
    for k, numel in enumerate(numels):
        if not handles:
            handles.append(comm.all_gather_async(shards[k], numel))
            held, following = held + numel, k + 1
        whole = handles.pop(0).wait()
        while following < len(numels) and held + numels[following] <= room:
            handles.append(comm.all_gather_async(shards[following], numels[following]))
            held, following = held + numels[following], following + 1
        compute(k, whole)
        del whole
        held -= numel
"""),
    Right("memory of its own", """
def hidden(comm, shards, numels, compute, room):
    places, handles, following = {}, {}, 0
    for k in range(len(numels)):
        while following < len(numels) and sum(map(len, places.values())) + numels[following] <= room:
            places[following] = shards[following].new_empty(numels[following])
            handles[following] = comm.all_gather_async(shards[following], out=places[following],
                                                       numel=numels[following])
            following += 1
        handles.pop(k).wait()
        compute(k, places[k].view(-1))
        del places[k]
"""),
    Right("a class, recursion-free", """
class Ahead:
    def __init__(self, comm, shards, numels, room):
        self.comm, self.units, self.room, self.coming = comm, list(zip(shards, numels))[::-1], room, []

    def begin(self):
        while self.units and self.units[-1][1] <= self.room:
            shard, numel = self.units.pop()
            self.room -= numel
            self.coming.append((numel, self.comm.all_gather_async(shard, numel)))

    def use(self, k, compute):
        self.begin()
        numel, handle = self.coming.pop(0)
        compute(k, handle.wait())
        self.room += numel


def hidden(comm, shards, numels, compute, room):
    ahead = Ahead(comm, shards, numels, room)
    for k in range(len(shards)):
        ahead.use(k, compute)
"""),
    Right("planned beforehand", """
def hidden(comm, shards, numels, compute, room):
    # The gathers that begin before unit k is computed.
    plan, begun = [], 0
    for k in range(len(numels)):
        stop = begun
        while stop < len(numels) and sum(numels[k : stop + 1]) <= room:
            stop += 1
        plan.append(range(begun, stop))
        begun = stop
    slots = [None] * len(numels)
    for k, those in enumerate(plan):
        for j in those:
            slots[j] = comm.all_gather_async(shards[j], numels[j])
        coming, slots[k] = slots[k], None
        compute(k, coming.wait())
        coming = None
"""),
]  # fmt: skip
