"""Answers to `MendedStep` of lesson 07, wrong and right."""

from zoo.answers import Right, changed

LAST_NOTES_ONLY = """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        if comm.all_reduce((~mean.isfinite()).sum().float()) > 0:
            return False
        shard = row.tensor_split(comm.size)[comm.rank]
        for k in range(disk.count):
            if k in self.notes:
                continue
            buffer = self.buffers[0]
            disk.read(k, buffer).wait()
            shard.chunk(disk.count)[k].copy_(self.update(buffer, mean.chunk(disk.count)[k]))
            disk.write(k, buffer).wait()
            self.notes = {k}
        comm.all_gather(shard, out=row)
        self.notes.clear()
        return True
"""
READ_LEFT_BEHIND = """
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
"""

RIGHT = [
    Right("waits everywhere",
          changed(changed(LAST_NOTES_ONLY,
                          "if comm.all_reduce((~mean.isfinite()).sum().float()) > 0:",
                          "bad = torch.tensor([0.0 if mean.isfinite().all() else 1.0])\n"
                          "        if comm.all_reduce(bad).item():"),
                  "self.notes = {k}",
                  "self.notes.add(k)")),
    Right("a deep pipeline", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        mean = self.comm.reduce_scatter(gradient, average=True)
        worst = self.comm.all_reduce((mean * 0).sum())
        if worst.isnan():
            return False
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        pieces, parts = shard.chunk(self.disk.count), mean.chunk(self.disk.count)
        todo = [k for k in range(self.disk.count) if k not in self.notes]
        writes = {}
        def ended(k):
            writes.pop(k).wait()
            self.notes.add(k)
        reading = self.disk.read(todo[0], self.buffers[0]) if todo else None
        for i, k in enumerate(todo):
            buffer = self.buffers[i % 2]
            reading.wait()
            if i > 0:
                ended(todo[i - 1])
            if i + 1 < len(todo):
                reading = self.disk.read(todo[i + 1], self.buffers[(i + 1) % 2])
            pieces[k].copy_(self.update(buffer, parts[k]))
            writes[k] = self.disk.write(k, buffer)
        for k in list(writes):
            ended(k)
        self.notes.clear()
        self.comm.all_gather(shard.clone(), out=row)
        return True
"""),
    Right("all_gather of flags, notes as a difference", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm = self.comm
        mean = comm.reduce_scatter(gradient).div_(comm.size)
        fine = comm.all_gather(mean.isfinite().all().float().view(1))
        if not bool(fine.all()):
            return False
        mine = row.tensor_split(comm.size)[comm.rank]
        size = len(mine) // self.disk.count
        for k in sorted(set(range(self.disk.count)) - self.notes):
            at = slice(k * size, (k + 1) * size)
            self.disk.read(k, self.buffers[k % 2]).wait()
            mine[at] = self.update(self.buffers[k % 2], mean[at])
            self.disk.write(k, self.buffers[k % 2]).wait()
            self.notes |= {k}
        self.notes -= set(range(self.disk.count))
        comm.all_gather(mine, row.numel(), row)
        return True
"""),
    Right("pieces noted and put after all", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        count = comm.all_reduce((~mean.isfinite()).sum().float())
        if count > 0:
            return False
        own = row.tensor_split(comm.size)[comm.rank]
        waiting = None
        for k, (piece, part) in enumerate(zip(own.chunk(disk.count), mean.chunk(disk.count))):
            if k in self.notes:
                continue
            buffer = self.buffers[k & 1]
            if waiting is not None and waiting[0] % 2 == k % 2:
                waiting[1].wait()
                self.notes.add(waiting[0])
                waiting = None
            disk.read(k, buffer).wait()
            new = self.update(buffer, part)
            if waiting is not None:
                waiting[1].wait()
                self.notes.add(waiting[0])
            waiting = (k, disk.write(k, buffer))
            piece.copy_(new)
        if waiting:
            waiting[1].wait()
        self.notes.clear()
        comm.all_gather(own, out=row)
        return True
"""),
    Right("prefetch by hand, notes of writes that ended", """
class MendedStep(DiskStep):
    def overflown(self, mean):
        votes = self.comm.all_gather(torch.logical_not(torch.isfinite(mean)).any().view(1).to(torch.int32))
        return votes.sum().item() > 0
    def step(self, row, gradient):
        mean = torch.empty_like(row.tensor_split(self.comm.size)[self.comm.rank])
        self.comm.reduce_scatter(gradient, average=True, out=mean)
        if self.overflown(mean):
            return False
        shard = row.view(self.comm.size, -1)[self.comm.rank]
        rows, parts = shard.view(self.disk.count, -1), mean.view(self.disk.count, -1)
        buffer, _ = self.buffers
        for k in range(self.disk.count):
            if k in self.notes:
                continue
            self.disk.read(k, buffer).wait()
            rows[k] = self.update(buffer, parts[k])
            self.disk.write(k, buffer).wait()
            self.notes.update([k])
        while self.notes:
            self.notes.pop()
        self.comm.all_gather(shard.clone(), out=row)
        return True
"""),
    Right("context and save as a method", """
class MendedStep(DiskStep):
    def save(self, k, buffer):
        self.disk.write(k, buffer).wait()
        self.notes.add(k)
    def load(self, k):
        buffer = self.buffers[k % len(self.buffers)]
        self.disk.read(k, buffer).wait()
        return buffer
    def step(self, row, gradient):
        mean = self.comm.reduce_scatter(gradient, average=True)
        everyone = torch.stack([mean.isnan().any(), mean.isinf().any()]).double()
        if self.comm.all_reduce(everyone).sum().item():
            return False
        own = row.tensor_split(self.comm.size)[self.comm.rank]
        for k, new in enumerate(own.split(len(own) // self.disk.count)):
            if k not in self.notes:
                buffer = self.load(k)
                new.copy_(self.update(buffer, mean.chunk(self.disk.count)[k]))
                self.save(k, buffer)
        self.notes = set()
        self.comm.all_gather(own.clone(), numel=len(row), out=row)
        return True
"""),
    Right("updates collected before the row is touched", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        mean = self.comm.reduce_scatter(gradient) / self.comm.size
        fine = torch.ones(1) * mean.isfinite().all()
        if self.comm.all_reduce(fine, average=True).item() < 1:
            return False
        own = row.tensor_split(self.comm.size)[self.comm.rank]
        pending = None
        def finish():
            nonlocal pending
            if pending:
                k, handle = pending
                pending = None
                handle.wait()
                self.notes.add(k)
        for k in range(self.disk.count):
            if k in self.notes:
                continue
            buffer = self.buffers[k % 2]
            finish()
            self.disk.read(k, buffer).wait()
            own.chunk(self.disk.count)[k][:] = self.update(buffer, mean.chunk(self.disk.count)[k])
            pending = k, self.disk.write(k, buffer)
        finish()
        self.notes.clear()
        self.comm.all_gather(own, out=row)
        return True
"""),
    # Careful with what is under way.
    Right("read ahead, waited for when a write fails",
          changed(READ_LEFT_BEHIND,
                  "self.disk.write(k, self.buffers[i % 2]).wait()",
                  "try:\n"
                  "                self.disk.write(k, self.buffers[i % 2]).wait()\n"
                  "            finally:\n"
                  "                reading.wait()")),
    Right("handle kept",
          changed(changed(READ_LEFT_BEHIND,
                          "mean = self",
                          "if getattr(self, 'reading', None):\n"
                          "            self.reading.wait()\n"
                          "        mean = self"),
                  "disk.write",
                  "reading = reading\n            self.disk.write")),
    Right("own buffers each call",
          changed(changed(READ_LEFT_BEHIND,
                          "todo = [k for k in range(self.disk.count) if k not in self.notes]\n"
                          "        reading = self.disk.read(todo[0], self.buffers[0])",
                          "buffers = [torch.empty_like(b) for b in self.buffers]\n"
                          "        todo = [k for k in range(self.disk.count) if k not in self.notes]\n"
                          "        reading = self.disk.read(todo[0], buffers[0])"),
                  "self.buffers[(i + 1) % 2])\n"
                  "            pieces[k].copy_(self.update(self.buffers[i % 2], parts[k]))\n"
                  "            self.disk.write(k, self.",
                  "buffers[(i + 1) % 2])\n"
                  "            pieces[k].copy_(self.update(buffers[i % 2], parts[k]))\n"
                  "            self.disk.write(k, ")),
    Right("all new pieces kept until the end, also those of before", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        if comm.all_reduce(mean.isfinite().logical_not().any().float()) > 0:
            return False
        mine = row.tensor_split(comm.size)[comm.rank].view(disk.count, -1)
        means = mean.view(disk.count, -1)
        for k in range(disk.count):
            if k in self.notes:
                continue
            here = self.buffers[0]
            disk.read(k, here).wait()
            fresh = self.update(here, means[k]).clone()
            disk.write(k, here).wait()
            self.notes.add(k)
            mine[k] = fresh
        self.notes.clear()
        comm.all_gather(mine.flatten(), out=row)
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
    # Have to hold at the edges.
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
    Right("last group first", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        mean = self.comm.reduce_scatter(gradient, average=True)
        if self.comm.all_reduce((mean * 0).sum()).isnan():
            return False
        mine = row.tensor_split(self.comm.size)[self.comm.rank]
        count = self.disk.count
        for k in sorted(set(range(count)) - self.notes, reverse=True):
            buffer = self.buffers[k % 2]
            self.disk.read(k, buffer).wait()
            new = self.update(buffer, mean.chunk(count)[k])
            self.disk.write(k, buffer).wait()
            mine.chunk(count)[k].copy_(new)
            self.notes |= {k}
        self.notes -= set(range(count))
        self.comm.all_gather(mine, out=row)
        return True
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
