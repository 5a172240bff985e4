"""Right answers of lesson 07 on bytes and seconds: tiers, sub-groups, places."""

from zoo.right.answer import Right

RIGHT = [
    Right("straight", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    tiers = {"device": 0, "host": 0, "disk": 0}
    shard = numel // ranks
    pages = lambda count: -(-count // 4096) * 4096
    weights = recipe["params"] * (shard if stage == 3 else numel)
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    states = (recipe["moments"] + (0 if one_copy else recipe["main_params"])) * (shard if stage else numel)
    tiers[parameters] += pages(weights) if parameters == "disk" else weights
    tiers[optimizer] += pages(states) if optimizer == "disk" else states
    grads = recipe["grads"] * (shard if stage >= 2 else numel)
    tiers["host" if stage >= 2 and optimizer != "device" else "device"] += grads
    return tiers
"""),
    Right("a counter and math.ceil", "tier_bytes", """
from collections import Counter
import math
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    held = Counter(device=0, host=0, disk=0)
    def keep(place, nbytes):
        held[place] += math.ceil(nbytes / 4096) * 4096 if place == "disk" else nbytes
    length = [numel, numel // ranks]
    keep(parameters, recipe["params"] * length[stage == 3])
    same = recipe["params"] == recipe["main_params"]
    shared = same and parameters == optimizer and optimizer in ("device", "host")
    record = recipe["moments"] if shared else recipe["moments"] + recipe["main_params"]
    keep(optimizer, record * length[stage > 0])
    if stage < 2:
        keep("device", recipe["grads"] * numel)
    elif optimizer == "device":
        keep("device", recipe["grads"] * length[1])
    else:
        keep("host", recipe["grads"] * length[1])
    return dict(held)
"""),
    Right("a list of rows", "tier_bytes", """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    part = lambda first: numel // ranks if stage >= first else numel
    rows = [(parameters, part(3) * recipe["params"])]
    rows.append(("device" if optimizer == "device" or stage < 2 else "host", part(2) * recipe["grads"]))
    mains = part(1) * recipe["main_params"]
    if recipe["params"] == recipe["main_params"] and {optimizer, parameters} in ({"device"}, {"host"}):
        mains = 0
    rows.append((optimizer, mains + part(1) * recipe["moments"]))
    return {
        "host": sum(n for place, n in rows if place == "host"),
        "disk": sum((n + 4095) // 4096 * 4096 for place, n in rows if place == "disk"),
        "device": sum(n for place, n in rows if place == "device"),
    }
"""),
    Right("a class with a ledger", "tier_bytes", """
class Ledger:
    def __init__(self):
        self.bytes = dict.fromkeys(("device", "host", "disk"), 0)

    def add(self, place, count):
        if place == "disk" and count % 4096:
            count += 4096 - count % 4096
        self.bytes[place] += count


def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    ledger, shard = Ledger(), numel // ranks
    whole_of = {0: (1, 1, 1), 1: (1, 1, 0), 2: (1, 0, 0), 3: (0, 0, 0)}[stage]
    n_params, n_grads, n_states = (numel if whole else shard for whole in whole_of)
    ledger.add(parameters, n_params * recipe["params"])
    ledger.add(
        "host" if n_grads == shard and stage > 1 and optimizer != "device" else "device", n_grads * recipe["grads"]
    )
    if optimizer == "disk":
        ledger.add("disk", n_states * (recipe["main_params"] + recipe["moments"]))
    else:
        ledger.add(optimizer, n_states * recipe["moments"])
        if optimizer != parameters or recipe["main_params"] != recipe["params"]:
            ledger.add(optimizer, n_states * recipe["main_params"])
    return ledger.bytes
"""),
    Right("straight", "sub_groups", """
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
            groups[-1].append((start, start + take))
            start += take
            room -= take
    found, offset = [], 0
    for parts in groups:
        found.append((offset, parts))
        end = offset + width * sum(b - a for a, b in parts)
        offset = -(-end // 4096) * 4096
    return found
"""),
    Right("recursion", "sub_groups", """
def sub_groups(segments, limit, align, width):
    limit = max(limit, align)
    def fill(todo, room):
        if not todo:
            return [], []
        (start, stop), rest = todo[0], todo[1:]
        if start == stop:
            return fill(rest, room)
        take = min(stop - start, room - room % align)
        if take == 0:
            return [], todo
        parts, left = fill([(start + take, stop)] + rest, room - take)
        return [(start, start + take)] + parts, left
    todo, groups, offset = list(segments), [], 0
    while True:
        parts, todo = fill(todo, limit)
        if not parts:
            return groups
        groups.append((offset, parts))
        nbytes = sum(stop - start for start, stop in parts) * width
        offset += (nbytes + 4095) // 4096 * 4096
"""),
    Right("a class", "sub_groups", """
class Packer:
    def __init__(self, limit, align):
        self.limit, self.align = max(limit, align), align
        self.groups = []
        self.used = self.limit
    def put(self, start, stop):
        while start < stop:
            room = (self.limit - self.used) // self.align * self.align
            if not room:
                self.groups.append([])
                self.used = 0
                room = self.limit // self.align * self.align
            end = min(stop, start + room)
            self.groups[-1].append((start, end))
            self.used += end - start
            start = end
def sub_groups(segments, limit, align, width):
    packer = Packer(limit, align)
    for segment in segments:
        packer.put(*segment)
    offsets = [0]
    for parts in packer.groups:
        length = width * sum(stop - start for start, stop in parts)
        offsets.append(offsets[-1] + length + -length % 4096)
    return list(zip(offsets, packer.groups))
"""),
    Right("a generator, lists for parts, math.ceil", "sub_groups", """
import math
def cut(segments, limit, align):
    parts, held = [], 0
    for start, stop in segments:
        at = start
        while at != stop:
            room = ((limit - held) // align) * align
            if room == 0:
                yield parts
                parts, held = [], 0
            else:
                upto = min(stop, at + room)
                parts.append((at, upto))
                held, at = held + upto - at, upto
    if parts:
        yield parts
def sub_groups(segments, limit, align, width):
    result, at = [], 0
    for parts in cut(segments, max(limit, align), align):
        result.append((at, list(parts)))
        at = math.ceil((at + width * sum(stop - start for start, stop in parts)) / 4096) * 4096
    return result
"""),
    Right("a deque", "sub_groups", """
from collections import deque
def sub_groups(segments, limit, align, width):
    queue = deque((a, b) for a, b in segments if b > a)
    out, offset = [], 0
    while queue:
        parts, room = [], align if limit < align else limit
        while queue and room >= align:
            a, b = queue.popleft()
            c = min(b, a + room - room % align)
            parts.append((a, c))
            if c < b:
                queue.appendleft((c, b))
            room -= c - a
        out.append((offset, parts))
        offset += sum(b - a for a, b in parts) * width
        while offset % 4096:
            offset += 1
    return out
"""),
    Right("straight", "best_place", """
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
        micro = (machine["device_bytes"] - device) // machine["token_bytes"]
        if micro < 1 or host > machine["host_bytes"] or disk > machine["disk_bytes"]:
            continue
        count = -(-tokens // micro)
        seconds = count * machine["micro_us"] / 1e6 + 6 * numel * tokens / machine["flop_per_s"] + moving
        if best is None or seconds < best[1]:
            best = [name, seconds]
    return best
"""),
    Right("fractions", "best_place", """
from fractions import Fraction
import math


def best_place(numel, ranks, tokens, machine):
    m, part = machine, numel // ranks

    def seconds(device, moving):
        room = m["device_bytes"] - device
        micro = room // m["token_bytes"]
        return (
            Fraction(math.ceil(Fraction(tokens, micro)) * m["micro_us"], 10**6)
            + Fraction(6 * numel * tokens, m["flop_per_s"])
            + moving
        )

    link = Fraction(4 * part, m["link_bytes_per_s"])
    update = Fraction(28 * part, m["host_bytes_per_s"])
    swap = Fraction(24 * part * m["ranks_per_disk"], m["disk_bytes_per_s"])
    table = {
        "device": (2 * numel + 14 * part, 0, 0, 0),
        "host": (2 * numel, 14 * part, 0, link + update),
        "disk": (2 * numel, 2 * part, 12 * part, link + max(update, swap)),
    }
    times = {}
    for place, (device, host, disk, moving) in table.items():
        if m["device_bytes"] - device >= m["token_bytes"] and host <= m["host_bytes"] and disk <= m["disk_bytes"]:
            times[place] = seconds(device, moving)
    if not times:
        return None
    place = min(times, key=times.get)
    return [place, float(times[place])]
"""),
    Right("a NamedTuple and sorted", "best_place", """
from typing import NamedTuple
class Place(NamedTuple):
    name: str
    device: float
    host: float
    disk: float
    moving: float
def best_place(numel, ranks, tokens, machine):
    shard = numel / ranks
    link, update = 4 * shard / machine["link_bytes_per_s"], 28 * shard / machine["host_bytes_per_s"]
    swap = 24 * shard / (machine["disk_bytes_per_s"] / machine["ranks_per_disk"])
    places = (
        Place("device", 2 * numel + 14 * shard, 0, 0, 0),
        Place("host", 2 * numel, 14 * shard, 0, link + update),
        Place("disk", 2 * numel, 2 * shard, 12 * shard, link + max(update, swap)),
    )
    found = []
    for place in places:
        left = machine["device_bytes"] - place.device
        if left < machine["token_bytes"] or place.host > machine["host_bytes"] or place.disk > machine["disk_bytes"]:
            continue
        micro = int(left // machine["token_bytes"])
        number, rest = divmod(tokens, micro)
        number += rest > 0
        each = tokens * 6 * numel / machine["flop_per_s"]
        found.append((number * machine["micro_us"] * 1e-6 + each + place.moving, place.name))
    found.sort(key=lambda one: one[0])
    return list(reversed(found[0])) if found else None
"""),
    Right("closures and filter", "best_place", """
def best_place(numel, ranks, tokens, machine):
    get = machine.__getitem__
    share = numel // ranks
    link = 4 * share / get("link_bytes_per_s")
    update = 28 * share / get("host_bytes_per_s")
    swap = 24 * share / get("disk_bytes_per_s") * get("ranks_per_disk")

    def time(device, host, disk, moving):
        micro = (get("device_bytes") - device) // get("token_bytes")
        if micro <= 0 or host > get("host_bytes") or disk > get("disk_bytes"):
            return float("inf")
        return (
            (tokens + micro - 1) // micro * get("micro_us") / 1_000_000
            + 6.0 * numel / get("flop_per_s") * tokens
            + moving
        )

    times = [
        ["device", time(2 * numel + 14 * share, 0, 0, 0.0)],
        ["host", time(2 * numel, 14 * share, 0, link + update)],
        ["disk", time(2 * numel, 2 * share, 12 * share, link + max(update, swap))],
    ]
    fastest = min(times, key=lambda one: one[1])
    return fastest if fastest[1] < float("inf") else None
"""),
]  # fmt: skip
