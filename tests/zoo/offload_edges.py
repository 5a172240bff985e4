"""Wrong answers to lesson 07 that fail at an edge alone, or in a second step."""

from zoo.wrong import Wrong

ZOO = [
    Wrong("one read ahead at the start", "overlapped_walk", """
def overlapped_walk(groups, buffers, read, compute, write):
    reading, writing = {0: read(0, 0)}, {}
    def begin(k):
        if k < groups and k not in reading and (k < buffers or k - buffers in done):
            reading[k] = read(k, k % buffers)
    done = set()
    def ended(k):
        done.add(k)
        begin(k + buffers)
    for k in range(groups):
        begin(k + 1)
        if k not in reading:
            writing[k - buffers].wait()
            begin(k)
        reading[k].wait()
        compute(k, k % buffers)
        writing[k] = write(k, k % buffers)
        writing[k].then(lambda k=k: ended(k))
    for handle in writing.values():
        handle.wait()
""", "with 3 buffers somebody stands still: "),
    Wrong("looks at the maximum", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        if not comm.all_reduce(mean.max()).isfinite():
            return False
        shard = row.tensor_split(comm.size)[comm.rank]
        for k, (piece, part) in enumerate(zip(shard.chunk(disk.count), mean.chunk(disk.count))):
            if k not in self.notes:
                disk.read(k, self.buffers[0]).wait()
                piece.copy_(self.update(self.buffers[0], part))
                disk.write(k, self.buffers[0]).wait()
                self.notes.add(k)
        self.notes.clear()
        comm.all_gather(shard, out=row)
        return True
""", "-inf is no maximum"),
    Wrong("never forgets what it noted", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        if comm.all_reduce((~mean.isfinite()).sum()):
            return False
        shard = row.tensor_split(comm.size)[comm.rank]
        for k, (piece, part) in enumerate(zip(shard.chunk(disk.count), mean.chunk(disk.count))):
            if k not in self.notes:
                disk.read(k, self.buffers[0]).wait()
                piece.copy_(self.update(self.buffers[0], part))
                try:
                    disk.write(k, self.buffers[0]).wait()
                except OSError:
                    self.notes |= set(range(k))
                    raise
        comm.all_gather(shard, out=row)
        return True
""", "is forgotten when the step is whole"),
    Wrong("leaves another write alone when one fails", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        if comm.all_reduce((~mean.isfinite()).sum()):
            return False
        shard = row.tensor_split(comm.size)[comm.rank]
        pieces, parts = shard.chunk(disk.count), mean.chunk(disk.count)
        writes = {}
        for turn, k in enumerate(k for k in range(disk.count) if k not in self.notes):
            buffer = self.buffers[turn % 2]
            if buffer.data_ptr() in writes:
                j, handle = writes.pop(buffer.data_ptr())
                handle.wait()
                self.notes.add(j)
            disk.read(k, buffer).wait()
            pieces[k].copy_(self.update(buffer, parts[k]))
            writes[buffer.data_ptr()] = k, disk.write(k, buffer)
        for j, handle in writes.values():
            handle.wait()
            self.notes.add(j)
        self.notes.clear()
        comm.all_gather(shard, out=row)
        return True
""", "whose write was under way when another failed"),
    Wrong("each rank looks for itself", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        shard = row.tensor_split(comm.size)[comm.rank]
        bad = not mean.isfinite().all()
        for k, (piece, part) in enumerate(zip(shard.chunk(disk.count), mean.chunk(disk.count))):
            if bad or k in self.notes:
                continue
            disk.read(k, self.buffers[0]).wait()
            piece.copy_(self.update(self.buffers[0], part))
            disk.write(k, self.buffers[0]).wait()
            self.notes.add(k)
        self.notes.clear()
        if comm.all_reduce(torch.tensor([float(bad)])).item():
            return False
        comm.all_gather(shard, out=row)
        return True
""", "find nothing in their own shard"),
    Wrong("the mean lies in the gradient", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = gradient.tensor_split(comm.size)[comm.rank]
        comm.reduce_scatter(gradient, average=True, out=mean)
        if comm.all_reduce((~mean.isfinite()).sum()):
            return False
        shard = row.tensor_split(comm.size)[comm.rank]
        for k, (piece, part) in enumerate(zip(shard.chunk(disk.count), mean.chunk(disk.count))):
            if k not in self.notes:
                disk.read(k, self.buffers[0]).wait()
                piece.copy_(self.update(self.buffers[0], part))
                disk.write(k, self.buffers[0]).wait()
                self.notes.add(k)
        self.notes.clear()
        comm.all_gather(shard, out=row)
        return True
""", "it overwrote rank 0's gradient"),
    Wrong("main parameters rounded after a step", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    mine = row.tensor_split(comm.size)[comm.rank]
    mine.copy_(host["main"])
    host["main"].copy_(mine)
    comm.all_gather(mine, out=row)
""", "are rounded to 16 bits after a step"),
    Wrong("the first gradient in both steps", "host_step", """
def host_step(comm, row, gradient, host, step):
    mean = comm.reduce_scatter(gradient, average=True)
    if step == 1:
        host["gradient"].copy_(mean)
    adamw(host, step)
    host["gradient"].copy_(mean)
    mine = row.tensor_split(comm.size)[comm.rank]
    mine.copy_(host["main"])
    comm.all_gather(mine, out=row)
""", "what the first gradient gives in each step"),
    Wrong("adds to the gradient, and clears it afterwards", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].add_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    host["gradient"].zero_()
    mine = row.tensor_split(comm.size)[comm.rank]
    mine.copy_(host["main"])
    comm.all_gather(mine, out=row)
""", "at the beginning: write over it"),
    Wrong("the limit rounded, too", "sub_groups", """
def sub_groups(segments, limit, align, width):
    limit = max(limit // align * align, align)
    groups, room = [], 0
    for start, stop in segments:
        while start < stop:
            take = min(stop - start, room // align * align)
            if not take:
                groups.append([])
                room = limit
                continue
            groups[-1].append((start, start + take))
            start += take
            room -= take
    out, offset = [], 0
    for parts in groups:
        out.append((offset, parts))
        offset += -(-sum(b - a for a, b in parts) * width // 4096) * 4096
    return out
""", "also where `align` does not divide that"),
    Wrong("parts take rounded room", "sub_groups", """
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    groups, room = [], 0
    for start, stop in segments:
        while start < stop:
            take = min(stop - start, room // align * align)
            if not take:
                groups.append([])
                room = limit
                continue
            groups[-1].append((start, start + take))
            start += take
            room -= -(-take // align) * align
    out, offset = [], 0
    for parts in groups:
        out.append((offset, parts))
        offset += -(-sum(b - a for a, b in parts) * width // 4096) * 4096
    return out
""", "that is not rounded up to `align`"),
    Wrong("aligned by bits", "sub_groups", """
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    groups, room = [], 0
    for start, stop in segments:
        while start < stop:
            take = min(stop - start, room & ~(align - 1))
            if not take:
                if room == limit:
                    take = min(stop - start, align)
                else:
                    groups.append([])
                    room = limit
                    continue
            groups[-1].append((start, start + take))
            start += take
            room -= take
    out, offset = [], 0
    for parts in groups:
        out.append((offset, parts))
        offset += -(-sum(b - a for a, b in parts) * width // 4096) * 4096
    return out
""", "need not be a power of two"),
]  # fmt: skip
