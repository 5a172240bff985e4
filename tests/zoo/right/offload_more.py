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
    Right("counter", "tier_bytes", """
from collections import Counter
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    held = Counter(device=0, host=0, disk=0)
    def put(place, nbytes):
        pages, rest = divmod(nbytes, 4096)
        held[place] += 4096 * (pages + bool(rest)) if place == "disk" else nbytes
    mine = numel // ranks
    put(parameters, recipe["params"] * (mine if stage == 3 else numel))
    at = "host" if optimizer in ("host", "disk") and stage > 1 else "device"
    put(at, recipe["grads"] * (mine if stage > 1 else numel))
    shared = recipe["main_params"] == recipe["params"] and parameters == optimizer and optimizer in ("device", "host")
    put(optimizer, (recipe["moments"] + recipe["main_params"] * (not shared)) * (mine if stage else numel))
    return held
"""),
    Right("async handles", "host_step", """
def host_step(comm, row, gradient, host, step):
    arriving = comm.reduce_scatter_async(gradient, average=True)
    host["gradient"][:] = arriving.wait()
    adamw(host, step)
    sizes = [len(part) for part in row.tensor_split(comm.size)]
    mine = row.split(sizes)[comm.rank]
    mine[...] = host["main"]
    comm.all_gather_async(mine, out=row).wait()
"""),
    Right("sum halved on the host by mul", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient)).div_(comm.size)
    adamw(host, step)
    comm.all_gather(host["main"].to(row.dtype), numel=row.numel(), out=row)
"""),
    Right("cuts first, offsets by accumulate", "sub_groups", """
from itertools import accumulate
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    groups, used = [], limit
    for start, stop in segments:
        while stop - start > 0:
            room = (limit - used) - (limit - used) % align
            if not room:
                groups.append([])
                used = 0
                continue
            end = min(start + room, stop)
            groups[-1].append((start, end))
            used += end - start
            start = end
    sizes = [sum(b - a for a, b in parts) * width for parts in groups]
    starts = accumulate((-(-size // 4096) * 4096 for size in sizes[:-1]), initial=0)
    return list(zip(starts, groups))
"""),
    Right("next of an iterator in then", "overlapped_walk", """
def overlapped_walk(groups, buffers, read, compute, write):
    coming, order = {}, iter(range(groups))
    def refill(b):
        k = next(order, None)
        if k is not None:
            coming[k] = (b, read(k, b))
    for b in range(buffers):
        refill(b)
    going = []
    for k in range(groups):
        for w in going:
            if k in coming:
                break
            w.wait()
        b, reading = coming.pop(k)
        reading.wait()
        compute(k, b)
        w = write(k, b)
        w.then(lambda b=b: refill(b))
        going.append(w)
    [w.wait() for w in going]
"""),
    Right("all new pieces kept until the end, also those of before", "MendedStep", """
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
    Right("the buffer kept for the second try", "MendedStep", """
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
    Right("dicts and a loop over tiers", "best_place", """
def best_place(numel, ranks, tokens, machine):
    psi_n = numel / ranks
    over_link = 4 * psi_n / machine["link_bytes_per_s"]
    in_host = 28 * psi_n / machine["host_bytes_per_s"]
    on_disk = 24 * psi_n / (machine["disk_bytes_per_s"] / machine["ranks_per_disk"])
    needs = {"device": dict(device=2 * numel + 14 * psi_n), "host": dict(device=2 * numel, host=14 * psi_n),
             "disk": dict(device=2 * numel, host=2 * psi_n, disk=12 * psi_n)}
    moving = {"device": 0, "host": over_link + in_host, "disk": over_link + max(in_host, on_disk)}
    found = {}
    for place, need in needs.items():
        if any(nbytes > machine[tier + "_bytes"] for tier, nbytes in need.items()):
            continue
        fits = int((machine["device_bytes"] - need["device"]) // machine["token_bytes"])
        if fits:
            times = (tokens + fits - 1) // fits
            found[place] = times * machine["micro_us"] / 1_000_000 + moving[place]
            found[place] += 6 * numel * tokens / machine["flop_per_s"]
    if not found:
        return None
    place = min(found, key=found.get)
    return [place, found[place]]
"""),
]  # fmt: skip
