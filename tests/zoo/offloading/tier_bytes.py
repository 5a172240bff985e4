"""Answers to `tier_bytes` of lesson 07, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a list of rows", """
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
    Right("a class with a ledger", """
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
    Right("rows summed per tier", """
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
    Right("counter", """
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
]  # fmt: skip
