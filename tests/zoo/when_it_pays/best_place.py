"""Answers to `best_place` of lesson 07b, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a NamedTuple and sorted", """
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
    Right("closures and filter", """
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
    Right("a tuple comes back, generator of places", """
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
    Right("fractions, a table and min", """
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
