"""Right answers of lesson 07 on steps: on the host, from a disk, and the overlapped walk."""

from zoo.right.answer import Right

RIGHT = [
    Right("straight", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    mine = row.tensor_split(comm.size)[comm.rank]
    mine.copy_(host["main"])
    comm.all_gather(mine, out=row)
"""),
    Right("divided on the host", "host_step", """
def host_step(comm, row, gradient, host, step):
    shard = comm.reduce_scatter(gradient)
    host["gradient"].copy_(shard)
    host["gradient"] /= comm.size
    del shard
    adamw(host, step)
    own = row.tensor_split(comm.size)[comm.rank]
    own[:] = host["main"]
    comm.all_gather(own, row.numel(), out=row)
"""),
    Right("a new shard of 16 bits", "host_step", """
def host_step(comm, row, gradient, host, step):
    mean = comm.reduce_scatter(gradient, average=True)
    host["gradient"][...] = mean
    adamw(host, step)
    mean.copy_(host["main"])
    comm.all_gather(mean, out=row)
"""),
    Right("reduced into the row's own place", "host_step", """
def host_step(comm, row, gradient, host, step):
    place = torch.tensor_split(row, comm.size)[comm.rank]
    comm.reduce_scatter(gradient, average=True, out=place)
    host["gradient"].copy_(place)
    adamw(host, step)
    place.copy_(host["main"])
    comm.all_gather(place, out=row)
"""),
    Right("bfloat16() and all_gather", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    comm.all_gather(host["main"].bfloat16(), out=row)
"""),
    Right("narrow and set_ of data", "host_step", """
def host_step(comm, row, gradient, host, step):
    handle = comm.reduce_scatter_async(gradient, average=True)
    arrived = host["gradient"]
    arrived.data.copy_(handle.wait())
    adamw(host, step)
    for rank, piece in enumerate(row.tensor_split(comm.size)):
        if rank == comm.rank:
            piece.data.copy_(host["main"])
            mine = piece
    comm.all_gather_async(mine, out=row).wait()
"""),
    Right("reads begun by the disk's thread", "overlapped_walk", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads, writes = {}, []
    def begin(k):
        reads[k] = read(k, k % buffers)
    for k in range(min(groups, buffers)):
        begin(k)
    for k in range(groups):
        reads[k].wait()
        compute(k, k % buffers)
        handle = write(k, k % buffers)
        writes.append(handle)
        if k + buffers < groups:
            handle.then(lambda k=k: begin(k + buffers))
        if k + 1 < groups and k + 1 not in reads:
            writes[k + 1 - buffers].wait()
    for handle in writes:
        handle.wait()
"""),
    Right("a list of slots, waits before a read it lacks", "overlapped_walk", """
def overlapped_walk(groups, buffers, read, compute, write):
    reading, writing = [None] * groups, [None] * groups
    def load_next(group):
        reading[group] = read(group, group % buffers)
    for group in range(min(buffers, groups)):
        load_next(group)
    for group in range(groups):
        if group >= buffers:
            writing[group - buffers].wait()
        reading[group].wait()
        compute(group, group % buffers)
        writing[group] = write(group, group % buffers)
        if group + buffers < groups:
            writing[group].then(lambda following=group + buffers: load_next(following))
    [handle.wait() for handle in writing]
"""),
    Right("a class with a partial", "overlapped_walk", """
from functools import partial
class Walk:
    def __init__(self, groups, buffers, read, compute, write):
        self.groups, self.buffers = groups, buffers
        self.read, self.compute, self.write = read, compute, write
        self.coming, self.going = {}, {}
    def start(self, group, buffer):
        if group < self.groups:
            self.coming[group] = self.read(group, buffer)
    def go(self):
        for b in range(self.buffers):
            self.start(b, b)
        for group in range(self.groups):
            buffer = group % self.buffers
            if group not in self.coming:
                self.going[group - self.buffers].wait()
            self.coming.pop(group).wait()
            self.compute(group, buffer)
            self.going[group] = self.write(group, buffer)
            self.going[group].then(partial(self.start, group + self.buffers, buffer))
        for handle in self.going.values():
            handle.wait()
def overlapped_walk(groups, buffers, read, compute, write):
    Walk(groups, buffers, read, compute, write).go()
"""),
    Right("a queue of free buffers", "overlapped_walk", """
from collections import deque
def overlapped_walk(groups, buffers, read, compute, write):
    arrived, last, ahead = {}, [], iter(range(groups))
    place = {}
    def take(buffer):
        k = next(ahead, None)
        if k is not None:
            place[k] = buffer
            arrived[k] = read(k, buffer)
    for buffer in range(buffers):
        take(buffer)
    for k in range(groups):
        while k not in arrived:
            last.pop(0).wait()
        arrived[k].wait()
        compute(k, place[k])
        done = write(k, place[k])
        done.then(lambda buffer=place[k]: take(buffer))
        last.append(done)
    for done in last:
        done.wait()
"""),
    Right("waits everywhere", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        bad = torch.tensor([0.0 if mean.isfinite().all() else 1.0])
        if comm.all_reduce(bad).item():
            return False
        shard = row.tensor_split(comm.size)[comm.rank]
        for k in range(disk.count):
            if k in self.notes:
                continue
            buffer = self.buffers[0]
            disk.read(k, buffer).wait()
            shard.chunk(disk.count)[k].copy_(self.update(buffer, mean.chunk(disk.count)[k]))
            disk.write(k, buffer).wait()
            self.notes.add(k)
        comm.all_gather(shard, out=row)
        self.notes.clear()
        return True
"""),
    Right("a deep pipeline", "MendedStep", """
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
    Right("all_gather of flags, notes as a difference", "MendedStep", """
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
    Right("pieces noted and put after all", "MendedStep", """
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
    Right("prefetch by hand, notes of writes that ended", "MendedStep", """
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
]  # fmt: skip
