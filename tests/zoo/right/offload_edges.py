"""Right answers to lessons 07 and 07b that have to hold at their edges."""

from zoo.right.answer import Right

RIGHT = [
    Right("any buffer that is free", "overlapped_walk", """
from collections import deque
def overlapped_walk(groups, buffers, read, compute, write):
    order, todo, ended = deque(), iter(range(groups)), []
    def fill(buffer):
        for k in todo:
            order.append((k, buffer, read(k, buffer)))
            return
    for buffer in range(buffers):
        fill(buffer)
    for _ in range(groups):
        while not order:
            ended.pop(0).wait()
        k, buffer, handle = order.popleft()
        handle.wait()
        compute(k, buffer)
        out = write(k, buffer)
        ended.append(out)
        out.then(lambda buffer=buffer: fill(buffer))
    for out in ended:
        out.wait()
"""),
    Right("recursion, waits on the way back", "overlapped_walk", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads, writes = {}, {}
    def chain(k):
        reads[k] = read(k, k % buffers)
    def go(k):
        if k == groups:
            return
        if k >= buffers and k not in reads:
            writes[k - buffers].wait()
        reads[k].wait()
        compute(k, k % buffers)
        writes[k] = write(k, k % buffers)
        if k + buffers < groups:
            writes[k].then(lambda: chain(k + buffers))
        go(k + 1)
        writes[k].wait()
    for k in range(min(groups, buffers)):
        chain(k)
    go(0)
"""),
    Right("reads while it writes, settles the write", "MendedStep", """
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
    Right("last group first", "MendedStep", """
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
    Right("a generator of what is left", "MendedStep", """
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
    Right("generator, offsets beside it", "sub_groups", """
def sub_groups(segments, limit, align, width):
    def packed():
        room, parts = max(limit, align), []
        for start, stop in segments:
            while start < stop:
                take = min(stop - start, room - room % align)
                if not take:
                    yield parts
                    room, parts = max(limit, align), []
                    continue
                parts.append((start, start + take))
                start, room = start + take, room - take
        if parts:
            yield parts
    result, offset = [], 0
    for parts in packed():
        result.append((offset, parts))
        offset += (sum(b - a for a, b in parts) * width + 4095) // 4096 * 4096
    return result
"""),
    Right("reduces into the row's own shard", "host_step", """
def host_step(comm, row, gradient, host, step):
    mine = torch.tensor_split(row, comm.size)[comm.rank]
    comm.reduce_scatter(gradient, average=True, out=mine)
    host["gradient"][:] = mine
    adamw(host, step)
    mine[:] = host["main"]
    comm.all_gather_async(mine, out=row).wait()
"""),
    Right("fractions, a table and min", "best_place", """
from fractions import Fraction as F
def best_place(numel, ranks, tokens, machine):
    n, part = numel, numel // ranks
    link = F(4 * part, machine["link_bytes_per_s"])
    update = F(28 * part, machine["host_bytes_per_s"])
    swap = F(24 * part * machine["ranks_per_disk"], machine["disk_bytes_per_s"])
    table = [("device", 2 * n + 14 * part, 0, 0, F(0)), ("host", 2 * n, 14 * part, 0, link + update),
             ("disk", 2 * n, 2 * part, 12 * part, link + max(update, swap))]
    found = []
    for place, device, host, disk, moving in table:
        fits = (machine["device_bytes"] - device) // machine["token_bytes"]
        if fits >= 1 and host <= machine["host_bytes"] and disk <= machine["disk_bytes"]:
            many = -(-tokens // fits)
            time = moving + many * F(machine["micro_us"], 10**6) + F(6 * n * tokens, machine["flop_per_s"])
            found.append((time, len(found), place))
    if not found:
        return None
    time, _, place = min(found)
    return [place, float(time)]
"""),
]  # fmt: skip
