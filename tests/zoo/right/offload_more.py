"""Right answers of lesson 07 that are careful with what is under way, and some in yet other styles."""

from zoo.right.answer import Right

RIGHT = [
    Right("read ahead, waited for when a write fails", "MendedStep", """
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
            try:
                self.disk.write(k, self.buffers[i % 2]).wait()
            finally:
                reading.wait()
            self.notes.add(k)
        self.notes.clear()
        self.comm.all_gather(shard, out=row)
        return True
"""),
    Right("handle kept", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        if getattr(self, 'reading', None):
            self.reading.wait()
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
            self.reading = reading
            self.disk.write(k, self.buffers[i % 2]).wait()
            self.notes.add(k)
        self.notes.clear()
        self.comm.all_gather(shard, out=row)
        return True
"""),
    Right("own buffers each call", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        mean = self.comm.reduce_scatter(gradient, average=True)
        if self.comm.all_reduce((~mean.isfinite()).sum().float().view(1)).item():
            return False
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        pieces, parts = shard.chunk(self.disk.count), mean.chunk(self.disk.count)
        buffers = [torch.empty_like(b) for b in self.buffers]
        todo = [k for k in range(self.disk.count) if k not in self.notes]
        reading = self.disk.read(todo[0], buffers[0]) if todo else None
        for i, k in enumerate(todo):
            reading.wait()
            if i + 1 < len(todo):
                reading = self.disk.read(todo[i + 1], buffers[(i + 1) % 2])
            pieces[k].copy_(self.update(buffers[i % 2], parts[k]))
            self.disk.write(k, buffers[i % 2]).wait()
            self.notes.add(k)
        self.notes.clear()
        self.comm.all_gather(shard, out=row)
        return True
"""),
]  # fmt: skip
