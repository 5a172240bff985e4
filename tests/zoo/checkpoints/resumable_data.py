"""Answers to `ResumableData` of lesson 08, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a dict, copied", """
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, state=None):
        self.own = dict(samples=samples, batch=batch, seed=seed, rank=rank, ranks=ranks)
        self.kept = {"seen": 0}
        if state is not None:
            self.kept.update(state)
    def next(self):
        own, seen = self.own, self.kept["seen"]
        row = []
        for epoch in range((seen + own["batch"]) // own["samples"] + 1):
            row.extend(order(own["seed"], epoch, own["samples"]))
        batch = row[seen : seen + own["batch"]]
        self.kept["seen"] = seen + own["batch"]
        return list(torch.tensor(batch).chunk(own["ranks"])[own["rank"]].tolist())
    def state(self):
        return dict(self.kept)
"""),
    Right("the rest of the row as the state", """
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, state=None):
        self.shape = samples, batch, seed, rank, batch // ranks
        self.epoch, self.row = (0, []) if state is None else (state["epoch"], state["row"])
    def next(self):
        samples, batch, seed, rank, part = self.shape
        while len(self.row) < batch:
            self.row = self.row + order(seed, self.epoch, samples)
            self.epoch += 1
        mine, self.row = self.row[rank * part : rank * part + part], self.row[batch:]
        return mine
    def state(self):
        return {"epoch": self.epoch, "row": list(self.row)}
"""),
    Right("a generator with a count beside it", """
import itertools
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, state="0"):
        self.count, self.batch = int(state), batch
        def row():
            for epoch in itertools.count():
                yield from order(seed, epoch, samples)
        self.row = itertools.islice(row(), self.count, None)
        self.mine = slice(rank * batch // ranks, (rank + 1) * batch // ranks)
    def next(self):
        self.count += self.batch
        return [next(self.row) for _ in range(self.batch)][self.mine]
    def state(self):
        return str(self.count)
"""),
    Right("tuples, and a state that nests", """
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, *state):
        self.__dict__.update(samples=samples, batch=batch, seed=seed, rank=rank, ranks=ranks)
        self.start = state[0]["history"][-1]["end"] if state else 0
        self.steps = 0
    def next(self):
        size = self.batch // self.ranks
        first = self.start + self.steps * self.batch + self.rank * size
        self.steps += 1
        places = [divmod(first + k, self.samples) for k in range(size)]
        return tuple(order(self.seed, epoch, self.samples)[place] for epoch, place in places)
    def state(self):
        return {"history": [{"end": self.start + self.steps * self.batch}], "seed": self.seed}
"""),
]  # fmt: skip
