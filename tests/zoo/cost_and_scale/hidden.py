"""Answers to `hidden` of lesson 09, wrong and right."""

from zoo.answers import Right

RIGHT = [
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
    Right("planned beforehand", """
def hidden(comm, shards, numels, compute, room):
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
