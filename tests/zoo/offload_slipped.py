"""Wrong answers to exercises of lesson 07 that a check let pass once, or sent elsewhere."""

from zoo.wrong import Wrong

ZOO = [
    Wrong("the mean in 32 bits on the device", "host_step", """
def host_step(comm, row, gradient, host, step):
    mean = comm.reduce_scatter(gradient, average=True).float()
    host["gradient"].copy_(mean)
    del mean
    adamw(host, step)
    shard = row.tensor_split(comm.size)[comm.rank]
    shard.copy_(host["main"])
    comm.all_gather(shard, out=row)
""", "the worst moment, beside the row and the gradient: 6,144, and the target is at most 4,128"),
    Wrong("one write after the other", "overlapped_walk", """
def overlapped_walk(groups, buffers, read, compute, write):
    reading, writing = {}, []
    def begin(k):
        if k < groups:
            reading[k] = read(k, k % buffers)
    for k in range(min(buffers, groups)):
        begin(k)
    for k in range(groups):
        if k >= buffers:
            writing[k - buffers].wait()
        reading[k].wait()
        compute(k, k % buffers)
        if writing:
            writing[-1].wait()
        handle = write(k, k % buffers)
        handle.then(lambda k=k: begin(k + buffers))
        writing.append(handle)
    writing[-1].wait()
""", "before you begin the next: the disk takes writes in turn"),
    Wrong("gradients follow the optimizer to the disk", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    tiers = {"device": 0, "host": 0, "disk": 0}
    shard = numel // ranks
    pages = lambda count: -(-count // 4096) * 4096
    weights = recipe["params"] * (shard if stage == 3 else numel)
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    states = (recipe["moments"] + (0 if one_copy else recipe["main_params"])) * (shard if stage else numel)
    tiers[parameters] += pages(weights) if parameters == "disk" else weights
    tiers[optimizer] += pages(states) if optimizer == "disk" else states
    tiers[optimizer if stage >= 2 else "device"] += recipe["grads"] * (shard if stage >= 2 else numel)
    return tiers
""", "on the disk there are none"),
    Wrong("main parameters and moments two records", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    tiers = {"device": 0, "host": 0, "disk": 0}
    shard = numel // ranks
    pages = lambda count: -(-count // 4096) * 4096
    weights = recipe["params"] * (shard if stage == 3 else numel)
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    length = shard if stage else numel
    tiers[parameters] += pages(weights) if parameters == "disk" else weights
    for width in (recipe["moments"], 0 if one_copy else recipe["main_params"]):
        tiers[optimizer] += pages(width * length) if optimizer == "disk" else width * length
    tiers["host" if stage >= 2 and optimizer != "device" else "device"] += recipe["grads"] * (
        shard if stage >= 2 else numel
    )
    return tiers
""", "Main parameters and moments are one record"),
    Wrong("optimizer shared out at stage 0", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    tiers = {"device": 0, "host": 0, "disk": 0}
    shard = numel // ranks
    pages = lambda count: -(-count // 4096) * 4096
    weights = recipe["params"] * (shard if stage == 3 else numel)
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    states = (recipe["moments"] + (0 if one_copy else recipe["main_params"])) * shard
    tiers[parameters] += pages(weights) if parameters == "disk" else weights
    tiers[optimizer] += pages(states) if optimizer == "disk" else states
    tiers["host" if stage >= 2 and optimizer != "device" else "device"] += recipe["grads"] * (
        shard if stage >= 2 else numel
    )
    return tiers
""", "At stage 0 nothing is shared out"),
    Wrong("moments doubled", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    tiers = {"device": 0, "host": 0, "disk": 0}
    shard = numel // ranks
    pages = lambda count: -(-count // 4096) * 4096
    weights = recipe["params"] * (shard if stage == 3 else numel)
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    states = (2 * recipe["moments"] + (0 if one_copy else recipe["main_params"])) * (shard if stage else numel)
    tiers[parameters] += pages(weights) if parameters == "disk" else weights
    tiers[optimizer] += pages(states) if optimizer == "disk" else states
    tiers["host" if stage >= 2 and optimizer != "device" else "device"] += recipe["grads"] * (
        shard if stage >= 2 else numel
    )
    return tiers
""", "is for both moments together"),
    Wrong("empty tiers left out", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    tiers = {}
    shard = numel // ranks
    pages = lambda count: -(-count // 4096) * 4096

    def put(place, count):
        tiers[place] = tiers.get(place, 0) + (pages(count) if place == "disk" else count)

    put(parameters, recipe["params"] * (shard if stage == 3 else numel))
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    put(optimizer, (recipe["moments"] + (0 if one_copy else recipe["main_params"])) * (shard if stage else numel))
    put(
        "host" if stage >= 2 and optimizer != "device" else "device",
        recipe["grads"] * (shard if stage >= 2 else numel),
    )
    return tiers
""", "All three tiers are due"),
    Wrong("gradients add up", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].add_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    mine = row.tensor_split(comm.size)[comm.rank]
    mine.copy_(host["main"])
    comm.all_gather(mine, out=row)
""", "nothing of use does, so write over it"),
    Wrong("step off by one", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step + 1)
    mine = row.tensor_split(comm.size)[comm.rank]
    mine.copy_(host["main"])
    comm.all_gather(mine, out=row)
""", "if steps count from 2"),
    Wrong("limit rounded once", "sub_groups", """
def sub_groups(segments, limit, align, width):
    limit = max(limit, align) // align * align
    groups, room = [], 0
    for start, stop in segments:
        while start < stop:
            take = min(stop - start, room)
            if take == 0:
                groups.append([])
                room = limit
                continue
            groups[-1].append((start, start + take))
            start += take
            room -= take
    found, offset = [], 0
    for parts in groups:
        found.append((offset, parts))
        offset = -(-(offset + width * sum(b - a for a, b in parts)) // 4096) * 4096
    return found
""", "and not the limit alone"),
    Wrong("parts merged across neighbours", "sub_groups", """
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    groups, room = [], 0
    for start, stop in segments:
        while start < stop:
            take = min(stop - start, room // align * align)
            if take == 0:
                groups.append([])
                room = limit
                continue
            if groups[-1] and groups[-1][-1][1] == start:
                groups[-1][-1] = (groups[-1][-1][0], start + take)
            else:
                groups[-1].append((start, start + take))
            start += take
            room -= take
    found, offset = [], 0
    for parts in groups:
        found.append((offset, parts))
        offset = -(-(offset + width * sum(b - a for a, b in parts)) // 4096) * 4096
    return found
""", "Segments that touch stay two parts"),
    Wrong("rounds with bits", "sub_groups", """
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    groups, room = [], 0
    for start, stop in segments:
        while start < stop:
            take = min(stop - start, room & -align)
            if take == 0:
                groups.append([])
                room = limit
                continue
            groups[-1].append((start, start + take))
            start += take
            room -= take
    found, offset = [], 0
    for parts in groups:
        found.append((offset, parts))
        offset = -(-(offset + width * sum(b - a for a, b in parts)) // 4096) * 4096
    return found
""", "align=12"),
    Wrong("no room for a token counts as zero", "best_place", """
import math


def best_place(numel, ranks, tokens, machine):
    share = numel // ranks
    link = 4 * share / machine["link_bytes_per_s"]
    update = 28 * share / machine["host_bytes_per_s"]
    swap = 24 * share * machine["ranks_per_disk"] / machine["disk_bytes_per_s"]
    places = [
        ("device", 2 * numel + 14 * share, 0, 0, 0),
        ("host", 2 * numel, 14 * share, 0, link + update),
        ("disk", 2 * numel, 2 * share, 12 * share, link + max(update, swap)),
    ]
    best = None
    for name, device, host, disk, moving in places:
        left = machine["device_bytes"] - device
        if left < 0 or host > machine["host_bytes"] or disk > machine["disk_bytes"]:
            continue
        micro = max(1, left // machine["token_bytes"])
        seconds = (
            -(-tokens // micro) * machine["micro_us"] / 1e6 + 6 * numel * tokens / machine["flop_per_s"] + moving
        )
        if best is None or seconds < best[1]:
            best = [name, seconds]
    return best
""", "Room for a part of a token"),
    Wrong("python max of gathered maxima", "MendedStep", """
class MendedStep(DiskStep):
    def step(self, row, gradient):
        comm, disk = self.comm, self.disk
        mean = comm.reduce_scatter(gradient, average=True)
        most = max(comm.all_gather(mean.abs().max().view(1)).tolist())
        if most == float("inf") or most != most:
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
""", "no maximum is sure to keep it"),
    Wrong("swallows the error", "MendedStep", """
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
            try:
                disk.write(k, buffer).wait()
            except OSError:
                return False
            self.notes.add(k)
        comm.all_gather(shard, out=row)
        self.notes.clear()
        return True
""", "returns False, which means an overflow"),
    Wrong("notes hold the last only", "MendedStep", """
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
""", "must not replace what is noted"),
    Wrong("truncates instead of rounding", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    mine = row.tensor_split(comm.size)[comm.rank]
    mine.view(torch.int16).copy_(host["main"].view(torch.int32) >> 16)
    comm.all_gather(mine, out=row)
""", "whose last bits were cut off"),
    Wrong("fp16 on the way", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    row.copy_(comm.all_gather(host["main"].half(), len(row)))
""", "that went through fp16"),
    Wrong("limit below align takes limit", "sub_groups", """
def sub_groups(segments, limit, align, width):
    groups, room = [], 0
    align = min(align, limit)
    for start, stop in segments:
        while start < stop:
            take = min(stop - start, room // align * align)
            if take == 0:
                groups.append([])
                room = limit
                continue
            groups[-1].append((start, start + take))
            start += take
            room -= take
    found, offset = [], 0
    for parts in groups:
        found.append((offset, parts))
        offset = -(-(offset + width * sum(b - a for a, b in parts)) // 4096) * 4096
    return found
""", "A limit below `align` counts"),
]  # fmt: skip
