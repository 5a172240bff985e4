"""Wrong ways to mend the step from a disk of lesson 07."""

from zoo.wrong import Wrong, blank, changed

CLASS = """
class MendedStep:
    def __init__(self, comm, disk, buffers, update):
        self.comm, self.disk, self.buffers, self.update = comm, disk, buffers, update
        self.written = set()

    def step(self, row, gradient):
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        mean = self.comm.reduce_scatter(gradient, average=True)
        if self.comm.all_reduce((~mean.isfinite()).sum().float().view(1)).item():
            return False
        pieces = zip(shard.chunk(self.disk.count), mean.chunk(self.disk.count), strict=True)
        for k, (piece, part) in enumerate(pieces):
            if k not in self.written:
                self.disk.read(k, self.buffers[0]).wait()
                piece.copy_(self.update(self.buffers[0], part))
                self.disk.write(k, self.buffers[0]).wait()
                self.written.add(k)
        self.written.clear()
        self.comm.all_gather(shard, out=row)
        return True
"""
HASTY = """
class MendedStep:
    def __init__(self, comm, disk, buffers, update):
        self.comm, self.disk, self.buffers, self.update = comm, disk, buffers, update

    def step(self, row, gradient):
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        mean = self.comm.reduce_scatter(gradient, average=True)
        count, writing = self.disk.count, None
        pieces = list(zip(shard.chunk(count), mean.chunk(count), strict=True))
        reading = self.disk.read(0, self.buffers[0])
        for k, (piece, part) in enumerate(pieces):
            reading.wait()
            if k + 1 < count:
                reading = self.disk.read(k + 1, self.buffers[(k + 1) % 2])
            if writing is not None:
                writing.wait()
            piece.copy_(self.update(self.buffers[k % 2], part))
            writing = self.disk.write(k, self.buffers[k % 2])
        self.comm.all_gather(shard, out=row)
        return True
"""
CHECK = "        if self.comm.all_reduce((~mean.isfinite()).sum().float().view(1)).item():\n"
WRITE = "                self.disk.write(k, self.buffers[0]).wait()\n"
EARLIER = """            if writing is not None:
                writing.wait()
                writing = None
"""

FORGETS = "        old, self.written = self.written, set()\n"
BEHIND = """
class MendedStep:
    def __init__(self, comm, disk, buffers, update):
        self.comm, self.disk, self.buffers, self.update = comm, disk, buffers, update
        self.done = 0

    def step(self, row, gradient):
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        mean = self.comm.reduce_scatter(gradient, average=True)
        if self.comm.all_reduce((~mean.isfinite()).sum().float().view(1)).item():
            return False
        pieces = list(zip(shard.chunk(self.disk.count), mean.chunk(self.disk.count), strict=True))
        writing = {}
        for k in range(self.done, self.disk.count):
            if k - 2 in writing:
                writing.pop(k - 2).wait()
                self.done = k - 1
            self.disk.read(k, self.buffers[k % 2]).wait()
            pieces[k][0].copy_(self.update(self.buffers[k % 2], pieces[k][1]))
            writing[k] = self.disk.write(k, self.buffers[k % 2])
        for k, write in writing.items():
            write.wait()
            self.done = k + 1
        self.done = 0
        self.comm.all_gather(shard, out=row)
        return True
"""

ZOO = [
    blank("MendedStep", "class MendedStep:\n    def __init__(self, *args):\n    "),
    Wrong("as it was", "MendedStep", HASTY, "numbers that are none"),
    Wrong("nobody waits for the writes", "MendedStep", changed(CLASS, WRITE, WRITE.replace(".wait()", "")),
          "which write has ever been waited for"),
    Wrong("the last write is not waited for", "MendedStep",
          changed(HASTY, "            if k + 1 < count:\n", EARLIER + "            if k + 1 < count:\n"),
          "the last never came back"),
    Wrong("does not look", "MendedStep", changed(CLASS, CHECK, "        if False:\n"), "gradients that are not finite"),
    Wrong("sees no NaN", "MendedStep", changed(CLASS, "~mean.isfinite()", "mean.isinf()"),
          "a NaN is not equal to inf"),
    Wrong("looks at home only", "MendedStep", changed(CLASS, CHECK, "        if not mean.isfinite().all():\n"),
          "the ranks part ways"),
    Wrong("looks at its own gradient", "MendedStep", changed(CLASS, "~mean.isfinite()", "~gradient.isfinite()"),
          "each of them is finite, and their sum"),
    Wrong("looks too late", "MendedStep", changed(changed(CLASS, CHECK + "            return False\n", ""),
          "        self.written.clear()\n", "        self.written.clear()\n" + CHECK + "            return False\n"),
          "an overflow has got into it"),
    Wrong("skips everything", "MendedStep", changed(CLASS, CHECK, "        if True:\n"), "whose gradients are finite"),
    Wrong("takes a large norm for an overflow", "MendedStep",
          changed(CLASS, CHECK, "        if not self.comm.all_reduce(mean.norm().view(1)).isfinite().item():\n"),
          "a finite mean: rank 0 skips"),
    Wrong("forgets at the second full disk", "MendedStep",
          changed(changed(CLASS, "        pieces =", FORGETS + "        pieces ="), "if k not in self.written",
                  "if k not in old"), "full twice, plain: each rank ends with"),
    Wrong("leaves a write under way behind", "MendedStep", BEHIND, "the disk does everything at once"),
    Wrong("does not say", "MendedStep", changed(CLASS, "        return True\n", ""), "True where it has stepped"),
    Wrong("writes twice", "MendedStep", changed(CLASS, "                self.written.add(k)\n", ""),
          "some groups were updated twice"),
    Wrong("marks before it writes", "MendedStep",
          changed(changed(CLASS, "                self.written.add(k)\n", ""), WRITE,
                  "                self.written.add(k)\n" + WRITE), "the group that failed"),
    Wrong("never forgets", "MendedStep", changed(CLASS, "        self.written.clear()\n", ""),
          "the records of the first step"),
    Wrong("keeps the error to itself", "MendedStep",
          changed(CLASS, WRITE, '''                try:
                    self.disk.write(k, self.buffers[0]).wait()
                except OSError:
                    self.disk.write(k, self.buffers[0]).wait()
'''), "caller does not hear of it"),
    Wrong("always fails", "MendedStep",
          changed(CLASS, "        shard = row", '''        if not self.written:
            self.written.add(-1)
            raise OSError("first make room")
        shard = row'''), "raises an OSError though all is well"),
    Wrong("sum for mean", "MendedStep", changed(CLASS, ", average=True", ""), "take their mean"),
    Wrong("divides twice", "MendedStep", changed(CLASS, "average=True)", "average=True) / self.comm.size"),
          "divided by N twice"),
    Wrong("does not gather", "MendedStep", changed(CLASS, "        self.comm.all_gather(shard, out=row)\n", ""),
          "its own shard alone is new"),
    Wrong("the row stays", "MendedStep",
          changed(CLASS, "piece.copy_(self.update(self.buffers[0], part))", "self.update(self.buffers[0], part)"),
          "new parameters go into it"),
    Wrong("zeroes the gradient", "MendedStep", changed(CLASS, "        return True\n",
          "        gradient.zero_()\n        return True\n"), "it overwrote"),
    Wrong("leaves a read under way behind", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        mean = self.comm.reduce_scatter(gradient, average=True)
        if self.comm.all_reduce((~mean.isfinite()).sum().float().view(1)).item():
            return False
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        pieces, parts = shard.chunk(self.disk.count), mean.chunk(self.disk.count)
        todo = [k for k in range(self.disk.count) if k not in self.notes]
        reading = self.disk.read(todo[0], self.buffers[0]) if todo else None
        for i, k in enumerate(todo):
            reading.wait()
            if i + 1 < len(todo):
                reading = self.disk.read(todo[i + 1], self.buffers[(i + 1) % 2])
            pieces[k].copy_(self.update(self.buffers[i % 2], parts[k]))
            self.disk.write(k, self.buffers[i % 2]).wait()
            self.notes.add(k)
        self.notes.clear()
        self.comm.all_gather(shard, out=row)
        return True
""", "what is still under way?"),
]  # fmt: skip
