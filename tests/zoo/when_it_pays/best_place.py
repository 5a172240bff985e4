"""Answers to `best_place` of lesson 07b, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("07b_when_it_pays", "best_place")
SHARED_ROOM = """
def best_place(numel, ranks, tokens, machine):
    cut = numel // ranks
    link, update = 4 * cut / machine["link_bytes_per_s"], 28 * cut / machine["host_bytes_per_s"]
    swap = 24 * cut * machine["ranks_per_disk"] / machine["disk_bytes_per_s"]
    best = None
    for place, device, host, disk, moving in (
        ("device", 2 * numel + 14 * cut, 0, 0, 0.0),
        ("host", 2 * numel, 14 * cut, 0, link + update),
        ("disk", 2 * numel, 2 * cut, 12 * cut, link + max(update, swap)),
    ):
        size = (machine["device_bytes"] - device) // machine["token_bytes"]
        if size < 1 or host > machine["host_bytes"] or disk * machine["ranks_per_disk"] > machine["disk_bytes"]:
            continue
        count = -(-tokens // size)
        time = count * machine["micro_us"] / 1e6 + 6 * numel * tokens / machine["flop_per_s"] + moving
        if best is None or time < best[1]:
            best = [place, time]
    return best
"""
STRAIGHT = """
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
"""

WRONG = [
    blank("best_place"),
    Wrong("the first that fits",
          changed(MODEL, "None or computing + moving < best[1]", "None"),
          "You take the first place that fits"),
    Wrong("the slowest",
          changed(MODEL, "< best[1]", "> best[1]"),
          "the slowest of the places"),
    Wrong("the last of equals",
          changed(MODEL, "< best[1]", "<= best[1]"),
          "the one higher in the table"),
    Wrong("one micro-batch",
          changed(MODEL, "-(-tokens // micro)", "1"),
          "how many micro-batches are there"),
    Wrong("rounds down",
          changed(MODEL, "-(-tokens", "max(1, tokens"),
          "A rest of tokens needs a micro-batch"),
    Wrong("half a micro-batch",
          changed(MODEL, "-(-tokens // micro)", "tokens / micro"),
          "There are only whole micro-batches"),
    Wrong("forward alone",
          changed(MODEL, "6 * numel", "2 * numel"),
          "with backward there are 6"),
    Wrong("all of it on each rank",
          changed(MODEL, "numel // ranks", "numel"),
          "of its N-th of the parameters"),
    Wrong("parameters sharded",
          changed(MODEL,
                  "(2 * numel + 14 * share, 0, 0, 0.0),\n"
                  '        "host": (2 * numel, 14 * share, 0, link + update),\n'
                  '        "disk": (2 * numel',
                  "(2 * share + 14 * share, 0, 0, 0.0),\n"
                  '        "host": (2 * share, 14 * share, 0, link + update),\n'
                  '        "disk": (2 * share'),
          "At stage 2 the parameters on the device are whole"),
    Wrong("gradients stay",
          changed(MODEL,
                  "(2 * numel, 14 * share, 0, link + update),\n"
                  '        "disk": (2 * numel, 2 * share',
                  "(2 * numel + 2 * share, 12 * share, 0, link + update),\n"
                  '        "disk": (2 * numel + 2 * share, 0'),
          "leave the device with the optimizer"),
    Wrong("room on the host",
          changed(MODEL, '0 and host <= machine["host_bytes"]', "0"),
          "The host has to have room"),
    Wrong("room on the disk",
          changed(MODEL, ' and disk <= machine["disk_bytes"]:', ":"),
          "The disk has to have room"),
    Wrong("gradients nowhere",
          changed(MODEL, "2 * share, 12", "0, 12"),
          "gradients still wait on the host"),
    Wrong("to the byte",
          changed(MODEL, "and host <=", "and host <"),
          "What fits to the byte fits"),
    Wrong("a token alone",
          changed(MODEL, "micro > 0", "micro > 1"),
          "Room for a single token"),
    Wrong("moving is free",
          changed(MODEL,
                  "+ moving < best[1]:\n"
                  "                best = [place, computing + moving]",
                  "< best[1]:\n                best = [place, computing]"),
          "You count nothing for gradients"),
    Wrong("one way",
          changed(MODEL, "link = 4", "link = 2"),
          "two come up"),
    Wrong("no link",
          changed(MODEL, "link = 4", "link = 0"),
          "What crosses the link takes time"),
    Wrong("the disk is the link",
          changed(MODEL, "link + max", "max"),
          "Also with states on the disk"),
    Wrong("no update",
          changed(MODEL, "link + update", "link"),
          "28 bytes a parameter"),
    Wrong("a disk for each",
          changed(MODEL, 'share * machine["ranks_per_disk"]', "share"),
          "share its speed"),
    Wrong("reads only",
          changed(MODEL, "swap = 24", "swap = 12"),
          "12 bytes are read, and 12 written"),
    Wrong("one after the other",
          changed(MODEL, "max(update, swap)", "update + swap"),
          "The step goes on beside the disk"),
    Wrong("the disk alone",
          changed(MODEL, "max(update, swap)", "swap"),
          "the step may take longer"),
    Wrong("the place alone",
          changed(MODEL, "return best", "return best[0] if best else None"),
          "The place alone is not enough"),
    Wrong("the seconds alone",
          changed(MODEL, "return best", "return best[1] if best else None"),
          "The seconds alone are not enough"),
    Wrong("microseconds",
          changed(MODEL, '["micro_us"] / 1e6', '["micro_us"]'),
          "Write down the seconds of each"),
    Wrong("no room at all",
          changed(MODEL, "micro > 0", "micro"),
          "no room for one token is out"),
    Wrong("a token always fits",
          changed(MODEL,
                  '(machine["device_bytes"] - device) // machine["token_bytes"]',
                  'max(1, (machine["device_bytes"] - device) // machine["token_bytes"])'),
          "You count a micro-batch of one token"),
    Wrong("parts of tokens",
          changed(MODEL, "// machine", "/ machine"),
          "A micro-batch has whole tokens"),
    Wrong("parts of tokens and of micro-batches",
          changed(changed(MODEL, "// machine", "/ machine"), "-(-tokens // micro)", "tokens / micro"),
          "round up how many times"),
    Wrong("a part where no token fits",
          changed(MODEL,
                  '["token_bytes"]',
                  "[\"token_bytes\"] or (machine['device_bytes'] - device) / machine['token_bytes']"),
          "Where a part of a token has room"),
    Wrong("one token too many",
          changed(MODEL,
                  '(machine["device_bytes"] - device) // machine["token_bytes"]',
                  '-(-(machine["device_bytes"] - device) // machine["token_bytes"])'),
          "the last of them has no room"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("no room for a token counts as zero",
          changed(changed(STRAIGHT,
                          "import math",
                          "import math\n\n"),
                  """micro = (machine["device_bytes"] - device) // machine["token_bytes"]
        if micro < 1 or host > machine["host_bytes"] or disk > machine["disk_bytes"]:
            continue
        count = -(-tokens // micro)
        seconds = count * machine["micro_us"] / 1e6 + 6 * numel * tokens / machine["flop_per_s"] + moving""",
                  """left = machine["device_bytes"] - device
        if left < 0 or host > machine["host_bytes"] or disk > machine["disk_bytes"]:
            continue
        micro = max(1, left // machine["token_bytes"])
        seconds = (
            -(-tokens // micro) * machine["micro_us"] / 1e6 + 6 * numel * tokens / machine["flop_per_s"] + moving
        )"""),
          "Room for a part of a token"),
    # Fail on few machines.
    Wrong("a disk whose room is shared",
          SHARED_ROOM,
          "what each of them has"),
    Wrong("operations of full micro-batches",
          changed(changed(SHARED_ROOM,
                          'disk * machine["ranks_per_disk"]',
                          "disk"),
                  'time = count * machine["micro_us"] / 1e6 + 6 * numel * tokens',
                  "done = count * min(size, tokens)\n"
                  '        time = count * machine["micro_us"] / 1e6 + 6 * numel * done'),
          "The operations are those of the tokens"),
    Wrong("a micro-batch more",
          changed(changed(SHARED_ROOM,
                          'disk * machine["ranks_per_disk"]',
                          "disk"),
                  "-(-tokens // size)",
                  "tokens // size + 1"),
          "there is no further one"),
]  # fmt: skip

RIGHT = [
    Right("straight", STRAIGHT),
    Right("fractions", """
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
    Right("decimals", """
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
    # Careful with what is under way.
    Right("dicts and a loop over tiers", """
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
    # Have to hold at the edges.
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
