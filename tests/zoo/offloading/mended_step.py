"""Answers to `MendedStep` of lesson 07, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("own buffers each call", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        mean = self.comm.reduce_scatter(gradient, average=True)
        if self.comm.all_reduce((mean * 0).sum()).isnan():
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
    Right("the buffer kept for the second try", """
class MendedStep(DiskStep):
    kept = None
    def step(self, row, gradient):
        mean = self.comm.reduce_scatter(gradient, average=True)
        if not self.comm.all_gather(torch.tensor([mean.isfinite().all()], dtype=torch.uint8)).all().item():
            return False
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        for k, (piece, part) in enumerate(zip(shard.chunk(self.disk.count), mean.chunk(self.disk.count))):
            if k in self.notes:
                continue
            if self.kept != k:
                self.disk.read(k, self.buffers[1]).wait()
                piece.copy_(self.update(self.buffers[1], part))
                self.kept = k
            self.disk.write(k, self.buffers[1]).wait()
            self.notes.add(k)
        self.kept = None
        self.notes.clear()
        self.comm.all_gather(shard, out=row)
        return True
"""),
    Right("reads while it writes, settles the write", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        flags = comm.all_gather(torch.isfinite(mean).all().reshape(1).to(torch.uint8))
        if int(flags.min()) == 0:
            return False
        shard = row.tensor_split(comm.size)[comm.rank]
        pieces, parts = shard.chunk(disk.count), mean.chunk(disk.count)
        todo = [k for k in range(disk.count) if k not in self.notes]
        pending = None
        error = None
        for turn, k in enumerate(todo):
            buffer = self.buffers[turn % 2]
            reading = disk.read(k, buffer)
            if pending is not None:
                error = self.settle(pending)
                pending = None
            reading.wait()
            if error:
                break
            pieces[k].copy_(self.update(buffer, parts[k]))
            pending = k, disk.write(k, buffer)
        if pending is not None:
            error = self.settle(pending)
        if error:
            raise error
        self.notes = set()
        comm.all_gather(shard, out=row)
        return True
    def settle(self, pending):
        k, handle = pending
        try:
            handle.wait()
        except OSError as error:
            return error
        self.notes.add(k)
        return None
"""),
    Right("a generator of what is left", """
class MendedStep(DiskStep):
    def left(self, shard, mean):
        count = self.disk.count
        for k, both in enumerate(zip(shard.chunk(count), mean.chunk(count))):
            if ("done", k) not in self.notes:
                yield k, *both
                self.notes.add(("done", k))
        self.notes.clear()
    def step(self, row, gradient):
        comm = self.comm
        mean = comm.reduce_scatter(gradient, average=True)
        count = torch.tensor(int((~mean.isfinite()).sum()))
        comm.all_reduce(count)
        if count:
            return False
        shard = row.tensor_split(comm.size)[comm.rank].clone()
        for k, piece, part in self.left(shard, mean):
            own = self.buffers[k % 2]
            self.disk.read(k, own).wait()
            piece[:] = self.update(own, part)
            row.tensor_split(comm.size)[comm.rank].copy_(shard)
            self.disk.write(k, own).wait()
        comm.all_gather(shard, out=row)
        return True
"""),
]  # fmt: skip
