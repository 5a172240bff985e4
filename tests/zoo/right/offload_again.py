"""Right answers of lesson 07 in yet other styles."""

from zoo.right.answer import Right

RIGHT = [
    Right("match statement", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    book = {"device": 0, "host": 0, "disk": 0}
    part = numel // ranks
    match stage:
        case 0:
            p, g, s = numel, numel, numel
        case 1:
            p, g, s = numel, numel, part
        case 2:
            p, g, s = numel, part, part
        case _:
            p, g, s = part, part, part
    def save(where, count):
        book[where] += count + (-count % 4096 if where == "disk" else 0)
    save(parameters, p * recipe["params"])
    at = "device"
    if optimizer in ("host", "disk") and stage > 1:
        at = "host"
    save(at, g * recipe["grads"])
    main = s * recipe["main_params"]
    if recipe["main_params"] == recipe["params"]:
        if (optimizer, parameters) == ("host", "host") or (optimizer, parameters) == ("device", "device"):
            main = 0
    save(optimizer, main + s * recipe["moments"])
    return book
"""),
    Right("rows summed per tier", "tier_bytes", """
import operator
from itertools import groupby
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    of = [numel if stage < first else numel // ranks for first in range(4)]
    twin = recipe["params"] == recipe["main_params"] and optimizer == parameters and optimizer != "disk"
    rows = [
        (parameters, of[3] * recipe["params"]),
        (optimizer, of[1] * (recipe["moments"] + recipe["main_params"] * (not twin))),
        ("host" if optimizer != "device" and stage >= 2 else "device", of[2] * recipe["grads"]),
    ]
    rows = [(tier, 4096 * ((n + 4095) // 4096) if tier == "disk" else n) for tier, n in rows]
    rows.sort(key=operator.itemgetter(0))
    sums = {tier: sum(n for _, n in group) for tier, group in groupby(rows, key=operator.itemgetter(0))}
    return {tier: sums.get(tier, 0) for tier in ("disk", "host", "device")}
"""),
    Right("methods load and save", "host_step", """
class Host:
    def __init__(self, comm, row, host):
        self.comm, self.row, self.host = comm, row, host
        self.own = row.tensor_split(comm.size)[comm.rank]
    def load(self, gradient):
        arrived = self.comm.reduce_scatter(gradient, average=True)
        self.host["gradient"].copy_(arrived, non_blocking=True)
    def save(self):
        self.own.copy_(self.host["main"], non_blocking=True)
        self.comm.all_gather(self.own, out=self.row)
def host_step(comm, row, gradient, host, step):
    it = Host(comm, row, host)
    it.load(gradient)
    adamw(host, step)
    it.save()
"""),
    Right("zero and add, slices by offsets", "host_step", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].zero_()
    host["gradient"].add_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    start = sum(len(part) for part in row.tensor_split(comm.size)[: comm.rank])
    own = row.narrow(0, start, len(host["main"]))
    own[...] = host["main"]
    comm.all_gather(own, numel=len(row), out=row)
"""),
    Right("gathers a fresh cast", "host_step", """
def host_step(comm, row, gradient, host, step):
    down = comm.reduce_scatter(gradient, average=True)
    for name in ["gradient"]:
        host[name].copy_(down)
    adamw(host, step)
    del down
    up = host["main"].to(row.dtype)
    comm.all_gather(up, out=row)
"""),
    Right("bisect over cuts, tuples", "sub_groups", """
def sub_groups(segments, limit, align, width):
    whole = limit if limit >= align else align
    result, group, filled = [], [], 0
    def close():
        at = result[-1][0] + pages(result[-1][1]) if result else 0
        result.append((at, tuple(group)))
        group.clear()
    def pages(parts):
        return -(-sum(b - a for a, b in parts) * width // 4096) * 4096
    for a, b in segments:
        while b > a:
            if (whole - filled) < align:
                close()
                filled = 0
            c = min(b, a + (whole - filled) // align * align)
            group.append((a, c))
            filled, a = filled + c - a, c
    if group:
        close()
    return result
"""),
    Right("an iterator of (segment, room) with lists", "sub_groups", """
def sub_groups(segments, limit, align, width):
    rest = [[start, stop] for start, stop in segments if stop != start][::-1]
    sys, offset = [], 0
    while rest:
        room, parts = max(limit, align), []
        while rest and room // align:
            start, stop = rest.pop()
            end = start + min(stop - start, align * (room // align))
            parts += [[start, end]]
            room -= end - start
            if end != stop:
                rest += [[end, stop]]
        sys += [[offset, parts]]
        nbytes = width * sum(stop - start for start, stop in parts)
        offset += nbytes if nbytes % 4096 == 0 else (nbytes // 4096 + 1) * 4096
    return sys
"""),
    Right("chains by a generator of buffers", "overlapped_walk", """
import functools
def overlapped_walk(groups, buffers, read, compute, write):
    load, save = dict(), dict()
    def arrive(k):
        load[k] = read(k, k % buffers)
    @functools.cache
    def leave(k):
        return write(k, k % buffers)
    [arrive(k) for k in range(groups) if k < buffers]
    for k in range(groups):
        if k not in load:
            leave(k - buffers).wait()
        load[k].wait()
        compute(k, k % buffers)
        handle = leave(k)
        if k + buffers < groups:
            handle.then(functools.partial(arrive, k + buffers))
    for k in range(groups):
        leave(k).wait()
"""),
    Right("free list by then, waits for the oldest write", "overlapped_walk", """
def overlapped_walk(groups, buffers, read, compute, write):
    coming = []
    todo = list(range(groups))[::-1]
    def fetch(buffer):
        if todo:
            k = todo.pop()
            coming.append((k, buffer, read(k, buffer)))
    for buffer in range(buffers):
        fetch(buffer)
    going = []
    for k in range(groups):
        oldest = 0
        while not coming:
            going[oldest].wait()
            oldest += 1
        group, buffer, handle = coming.pop(0)
        handle.wait()
        compute(group, buffer)
        out = write(group, buffer)
        out.then(lambda buffer=buffer: fetch(buffer))
        going.append(out)
    for out in going:
        out.wait()
"""),
    Right("context and save as a method", "MendedStep", """
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
    Right("updates collected before the row is touched", "MendedStep", """
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
    Right("decimals", "best_place", """
from decimal import Decimal as D


def best_place(numel, ranks, tokens, machine):
    share = D(numel) / ranks
    m = {name: D(value) for name, value in machine.items()}
    link, update = 4 * share / m["link_bytes_per_s"], 28 * share / m["host_bytes_per_s"]
    swap = 24 * share * m["ranks_per_disk"] / m["disk_bytes_per_s"]
    found = []
    for name, on_device, on_host, on_disk, moving in [
        ("device", 2 * numel + 14 * share, 0, 0, D(0)),
        ("host", D(2 * numel), 14 * share, 0, link + update),
        ("disk", D(2 * numel), 2 * share, 12 * share, link + max(update, swap)),
    ]:
        fits = (m["device_bytes"] - on_device) // m["token_bytes"]
        if fits >= 1 and on_host <= m["host_bytes"] and on_disk <= m["disk_bytes"]:
            batches = -(-tokens // int(fits))
            found.append(
                (
                    batches * m["micro_us"] / 10**6 + 6 * D(numel) * tokens / m["flop_per_s"] + moving,
                    len(found),
                    name,
                )
            )
    if found:
        seconds, _, name = min(found)
        return [name, float(seconds)]
"""),
    Right("a tuple comes back, generator of places", "best_place", """
import math
def best_place(numel, ranks, tokens, machine):
    def places():
        s = numel // ranks
        yield "device", 2 * numel + 14 * s, 0, 0, 0.0
        down_and_up = 4 * s / machine["link_bytes_per_s"]
        host = 28 * s / machine["host_bytes_per_s"]
        yield "host", 2 * numel, 14 * s, 0, down_and_up + host
        swap = 24 * s / (machine["disk_bytes_per_s"] / machine["ranks_per_disk"])
        yield "disk", 2 * numel, 2 * s, 12 * s, down_and_up + (host if host > swap else swap)
    def seconds(place):
        _, device, host, disk, moving = place
        room = machine["device_bytes"] - device
        if room < machine["token_bytes"] or machine["host_bytes"] < host or machine["disk_bytes"] < disk:
            return math.inf
        batches = math.ceil(tokens / (room // machine["token_bytes"]))
        return moving + batches * machine["micro_us"] * 1e-6 + tokens * (6 * numel / machine["flop_per_s"])
    best = min(places(), key=seconds)
    return (best[0], seconds(best)) if seconds(best) < math.inf else None
"""),
    Right("the last write ends last", "overlapped_walk", """
def overlapped_walk(groups, buffers, read, compute, write):
    reads, writes = {}, {}
    def begin(k):
        reads[k] = read(k, k % buffers)
    for k in range(min(groups, buffers)):
        begin(k)
    for k in range(groups):
        if k not in reads:
            writes[k - buffers].wait()
        reads[k].wait()
        compute(k, k % buffers)
        writes[k] = write(k, k % buffers)
        if k + buffers < groups:
            writes[k].then(lambda k=k: begin(k + buffers))
    # Writes end in the order in which they began.
    writes[groups - 1].wait()
"""),
]  # fmt: skip
