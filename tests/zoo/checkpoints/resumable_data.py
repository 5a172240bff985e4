"""Answers to `ResumableData` of lesson 08, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, everywhere, model

MODEL = model("08_checkpoints", "ResumableData")
BEGIN, STATE = "self.done = state or 0", "return self.done"
HEAD = "class ResumableData:\n    def __init__(self, *args):\n    "

WRONG = [
    blank("ResumableData", HEAD),
    Wrong("one epoch for ever", changed(MODEL, "at // self.samples, ", "0, "), "Each epoch has an order of its own"),
    Wrong("every N-th",
          changed(changed(MODEL, "self.rank * self.part", "self.rank"),
                  "range(first, first + self.part)",
                  "range(first, first + self.batch - self.rank, self.batch // self.part)"),
          "and not every N-th sample"),
    Wrong("the whole batch", changed(changed(MODEL, "self.rank * self.part", "0"), "batch // ranks", "batch"),
          "Each rank gets the whole batch"),
    Wrong("all the same part", changed(MODEL, "self.rank * self.part", "0"), "All ranks get the same part"),
    Wrong("drops the last",
          changed(MODEL, "        first = ", "        left = self.samples - self.done % self.samples\n"
                  "        self.done += left if left < self.batch else 0\n"
                  "        first = "),
          "An epoch's last samples are dropped"),
    Wrong("not shuffled",
          changed(MODEL, "order(self.seed, at // self.samples, self.samples)[at % self.samples]", "at % self.samples"),
          "The samples come as they are numbered"),
    Wrong("epochs from 1 on", changed(MODEL, "at // self.samples, ", "at // self.samples + 1, "),
          "The first epoch is number 0"),
    Wrong("begins again", changed(MODEL, BEGIN, "self.done = 0"), "with the first sample again"),
    Wrong("skips a step", changed(MODEL, BEGIN, "self.done = state + batch if state else 0"), "A step is skipped"),
    Wrong("a step twice", changed(MODEL, STATE, "return max(self.done - self.batch, 0)"), "A step comes twice"),
    Wrong("counts steps",
          changed(changed(MODEL, BEGIN, "self.done = (state or 0) * batch"), STATE, "return self.done // self.batch"),
          "kept as a number of steps, of another batch"),
    Wrong("a rank's own samples",
          changed(MODEL, STATE, "return self.done // self.batch * self.part"),
          "where one rank's own samples end"),
    Wrong("a rank's own samples, times the new ranks",
          changed(changed(MODEL, BEGIN, "self.done = (state or 0) * ranks"),
                  STATE, "return self.done * self.part // self.batch"),
          "and there are other ranks now"),
    Wrong("the place in the epoch", changed(MODEL, STATE, "return self.done % self.samples"),
          "which epoch it is gets lost"),
    Wrong("the epoch alone", changed(MODEL, STATE, "return self.done // self.samples * self.samples"),
          "and the place in it gets lost"),
    Wrong("the next epoch", changed(MODEL, STATE, "return -(-self.done // self.samples) * self.samples"),
          "the rest of this one gets lost"),
    Wrong("of this run alone",
          changed(changed(MODEL, BEGIN, "self.begun = self.done = state or 0"), STATE, "return self.done - self.begun"),
          "itself been given as a state is forgotten"),
    Wrong("a state that lives on", """
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, state=None):
        self.samples, self.batch, self.seed, self.rank, self.part = samples, batch, seed, rank, batch // ranks
        self.kept = state or {"done": 0}
    def next(self):
        first = self.kept["done"] + self.rank * self.part
        self.kept["done"] += self.batch
        places = range(first, first + self.part)
        return [order(self.seed, at // self.samples, self.samples)[at % self.samples] for at in places]
    def state(self):
        return self.kept
""", "goes on changing as the run goes on"),
    Wrong("asking moves on",
          changed(MODEL, STATE, "self.done += self.batch\n        return self.done - self.batch"),
          "Asking for the state changes nothing"),
    Wrong("no json", changed(changed(MODEL, STATE, "return {self.done}"), BEGIN, "(self.done,) = state or {0}"),
          "return what JSON can hold"),
    Wrong("shared by all", everywhere(MODEL, "self.done", "ResumableData.done"), "Which sample of the row"),
    Wrong("a generator that nobody can keep", """
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, state=None):
        self.rows = self.run(samples, batch, seed, rank, ranks)
    def run(self, samples, batch, seed, rank, ranks):
        row, epoch, part = [], 0, batch // ranks
        while True:
            while len(row) < batch:
                row += order(seed, epoch, samples)
                epoch += 1
            yield row[rank * part : (rank + 1) * part]
            row = row[batch:]
    def next(self):
        return next(self.rows)
    def state(self):
        return self.rows
""", "state() returned a generator"),
    Wrong("a place for all objects", """
class ResumableData:
    at = 0
    def __init__(self, samples, batch, seed, rank, ranks, state=0):
        self.samples, self.seed, self.part = samples, seed, batch // ranks
        ResumableData.at = state
    def next(self):
        places = range(ResumableData.at, ResumableData.at + self.part)
        ResumableData.at += self.part
        return [order(self.seed, at // self.samples, self.samples)[at % self.samples] for at in places]
    def state(self):
        return ResumableData.at
""", "what do your objects share?"),
    Wrong("counts in what it was given", """
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, state=None):
        self.samples, self.batch, self.seed, self.rank, self.ranks = samples, batch, seed, rank, ranks
        self.kept = state or {"position": 0}
    def next(self):
        part = self.batch // self.ranks
        begin = self.kept["position"] + self.rank * part
        self.kept["position"] += self.batch
        return [order(self.seed, i // self.samples, self.samples)[i % self.samples] for i in range(begin, begin + part)]
    def state(self):
        return dict(self.kept)
""", "which belongs to the caller"),
    Wrong("a tensor", """
import torch
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, state=None):
        self.samples, self.batch, self.seed, self.rank, self.ranks = samples, batch, seed, rank, ranks
        self.position = state["position"] if state else 0
    def next(self):
        part = self.batch // self.ranks
        begin = self.position + self.rank * part
        self.position += self.batch
        places = (divmod(i, self.samples) for i in range(begin, begin + part))
        return torch.tensor([order(self.seed, epoch, self.samples)[i] for epoch, i in places])
    def state(self):
        return {"position": self.position}
""", "Return a list of numbers"),
]  # fmt: skip

RIGHT = [
    Right("epoch and place", """
class ResumableData:
    def __init__(self, samples, batch, seed, rank, ranks, state=None):
        self.samples, self.batch, self.seed, self.rank, self.ranks = samples, batch, seed, rank, ranks
        self.epoch, self.at = state or (0, 0)
    def next(self):
        got = []
        while len(got) < self.batch:
            left = order(self.seed, self.epoch, self.samples)[self.at:]
            take = left[: self.batch - len(got)]
            got += take
            self.at += len(take)
            if self.at == self.samples:
                self.epoch, self.at = self.epoch + 1, 0
        part = self.batch // self.ranks
        return got[self.rank * part :][:part]
    def state(self):
        return [self.epoch, self.at]
"""),
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
