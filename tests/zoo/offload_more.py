"""More wrong answers of lesson 07 that passed once, or got a hint that named no fault."""

from zoo.wrong import Wrong

ZOO = [
    Wrong("pages of the states alone", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    shard = numel // ranks
    params, grads, states = (shard if stage >= first else numel for first in (3, 2, 1))
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    width = recipe["moments"] + (0 if one_copy else recipe["main_params"])
    used_at = "host" if stage >= 2 and optimizer != "device" else "device"
    book = {"device": 0, "host": 0, "disk": 0}
    rests = [(parameters, params * recipe["params"]), (used_at, grads * recipe["grads"]), (optimizer, states * width)]
    for place, nbytes in rests:
        book[place] += -(-nbytes // 4096) * 4096 if place == "disk" and nbytes == states * width else nbytes
    return book
""", "Parameters on the disk are a record, too"),
    Wrong("adamw first", "host_step", """
def host_step(comm, row, gradient, host, step):
    shard = row.tensor_split(comm.size)[comm.rank]
    mean = comm.reduce_scatter(gradient, average=True)
    adamw(host, step)
    host["gradient"].copy_(mean)
    shard.copy_(host["main"])
    comm.all_gather(shard, out=row)
""", "the gradient of the step before"),
    Wrong("first step only zeroes", "host_step", """
def host_step(comm, row, gradient, host, step):
    shard = row.tensor_split(comm.size)[comm.rank]
    if step == 1:
        host["gradient"].zero_()
    host["gradient"] += comm.reduce_scatter(gradient, average=True)
    adamw(host, step)
    shard.copy_(host["main"])
    comm.all_gather(shard, out=row)
""", "the gradients of all steps so far"),
    Wrong("offsets of the total", "sub_groups", """
def sub_groups(segments, limit, align, width):
    groups = []
    room = offset = nbytes = 0
    for start, stop in segments:
        while start < stop:
            size = min(stop - start, room // align * align)
            if size == 0:
                offset = -(-nbytes // 4096) * 4096
                groups.append((offset, []))
                room = max(limit, align)
                continue
            groups[-1][1].append((start, start + size))
            start, room, nbytes = start + size, room - size, nbytes + width * size
    return groups
""", "not once those of all together"),
    Wrong("align by the element's place", "sub_groups", """
def sub_groups(segments, limit, align, width):
    groups = []
    room = offset = nbytes = 0
    for start, stop in segments:
        while start < stop:
            size = min(stop - start, (start + room) // align * align - start) if room >= align else 0
            if size == 0:
                offset += -(-nbytes // 4096) * 4096
                groups.append((offset, []))
                room, nbytes = max(limit, align), 0
                continue
            groups[-1][1].append((start, start + size))
            start, room, nbytes = start + size, room - size, nbytes + width * size
    return groups
""", "wherever the part begins"),
    Wrong("rows only at the end", "MendedStep", """
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
        fresh = {}
        for k, (piece, part) in enumerate(pieces):
            if k not in self.written:
                self.disk.read(k, self.buffers[0]).wait()
                fresh[k] = self.update(self.buffers[0], part).clone()
                self.disk.write(k, self.buffers[0]).wait()
                self.written.add(k)
        self.written.clear()
        for k, new in fresh.items():
            shard.chunk(self.disk.count)[k].copy_(new)
        self.comm.all_gather(shard, out=row)
        return True
""", "Also of a group that was written before"),
    Wrong("isfinite of the sum", "MendedStep", """
class MendedStep:
    def __init__(self, comm, disk, buffers, update):
        self.comm, self.disk, self.buffers, self.update = comm, disk, buffers, update
        self.written = set()

    def step(self, row, gradient):
        shard = row.tensor_split(self.comm.size)[self.comm.rank]
        mean = self.comm.reduce_scatter(gradient, average=True)
        if self.comm.all_reduce((~mean.sum().isfinite()).float().view(1)).item():
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
""", "overflows by itself"),
    Wrong("skips a group without gradients", "MendedStep", """
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
            if k not in self.written and part.any():
                self.disk.read(k, self.buffers[0]).wait()
                piece.copy_(self.update(self.buffers[0], part))
                self.disk.write(k, self.buffers[0]).wait()
                self.written.add(k)
        self.written.clear()
        self.comm.all_gather(shard, out=row)
        return True
""", "the momentum moves on"),
]  # fmt: skip
