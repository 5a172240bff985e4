"""Wrong answers to the plain functions of lesson 07."""

from zoo import offload_edges, offload_edges_pays, offload_more, offload_slipped, offload_walk
from zoo.wrong import Wrong, blank, changed

TIERS = """
def tier_bytes(numel, ranks, stage, recipe, optimizer, parameters):
    shard = numel // ranks
    params, grads, states = (shard if stage >= first else numel for first in (3, 2, 1))
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    width = recipe["moments"] + (0 if one_copy else recipe["main_params"])
    used_at = "host" if stage >= 2 and optimizer != "device" else "device"
    book = {"device": 0, "host": 0, "disk": 0}
    rests = [(parameters, params * recipe["params"]), (used_at, grads * recipe["grads"]), (optimizer, states * width)]
    for place, nbytes in rests:
        book[place] += -(-nbytes // 4096) * 4096 if place == "disk" else nbytes
    return book
"""
GROUPS = """
def sub_groups(segments, limit, align, width):
    groups = []
    room = offset = nbytes = 0
    for start, stop in segments:
        while start < stop:
            size = min(stop - start, room // align * align)
            if size == 0:
                offset += -(-nbytes // 4096) * 4096
                groups.append((offset, []))
                room, nbytes = max(limit, align), 0
                continue
            groups[-1][1].append((start, start + size))
            start, room, nbytes = start + size, room - size, nbytes + width * size
    return groups
"""
BEST = """
def best_place(numel, ranks, tokens, machine):
    share, best = numel // ranks, None
    link = 4 * share / machine["link_bytes_per_s"]
    update = 28 * share / machine["host_bytes_per_s"]
    swap = 24 * share * machine["ranks_per_disk"] / machine["disk_bytes_per_s"]
    places = {
        "device": (2 * numel + 14 * share, 0, 0, 0.0),
        "host": (2 * numel, 14 * share, 0, link + update),
        "disk": (2 * numel, 2 * share, 12 * share, link + max(update, swap)),
    }
    for place, (device, host, disk, moving) in places.items():
        micro = (machine["device_bytes"] - device) // machine["token_bytes"]
        if micro > 0 and host <= machine["host_bytes"] and disk <= machine["disk_bytes"]:
            computing = -(-tokens // micro) * machine["micro_us"] / 1e6 + 6 * numel * tokens / machine["flop_per_s"]
            if best is None or computing + moving < best[1]:
                best = [place, computing + moving]
    return best
"""
MICRO = '(machine["device_bytes"] - device) // machine["token_bytes"]'

BYTES = [
    blank("tier_bytes"),
    Wrong("unsharded", "tier_bytes", changed(TIERS, "shard = numel // ranks", "shard = numel"), "Nothing is sharded"),
    Wrong("all sharded", "tier_bytes", changed(TIERS, "(3, 2, 1)", "(1, 1, 1)"), "You shard everything"),
    Wrong("gradients too early", "tier_bytes", changed(TIERS, "(3, 2, 1)", "(3, 1, 1)"),
          "Gradients are whole up to stage 1"),
    Wrong("gradients too late", "tier_bytes", changed(TIERS, "(3, 2, 1)", "(3, 3, 1)"),
          "Gradients are shards from stage 2 on"),
    Wrong("parameters too early", "tier_bytes", changed(TIERS, "(3, 2, 1)", "(2, 2, 1)"),
          "Parameters are whole up to stage 2"),
    Wrong("gradients stay on the device", "tier_bytes",
          changed(TIERS, '"host" if stage >= 2 and optimizer != "device" else "device"', '"device"'),
          "on which tier is the step computed"),
    Wrong("whole gradients go, too", "tier_bytes", changed(TIERS, "stage >= 2 and optimizer", "optimizer"),
          "whole ones stay on the device"),
    Wrong("gradients to the disk", "tier_bytes", changed(TIERS, '"host" if stage >= 2', "optimizer if stage >= 2"),
          "Gradients wait on the host"),
    Wrong("forgets main parameters", "tier_bytes",
          changed(TIERS, '(0 if one_copy else recipe["main_params"])', "0"), "Main parameters are not in moments"),
    Wrong("two copies always", "tier_bytes", changed(TIERS, "(0 if one_copy else", "(0 if False else"),
          "count once where both rest in the same memory"),
    Wrong("one copy wherever", "tier_bytes", changed(TIERS, ' and optimizer == parameters != "disk"', ""),
          "One copy cannot be in two places"),
    Wrong("one copy on the disk", "tier_bytes", changed(TIERS, ' != "disk"\n    width', "\n    width"),
          "On the disk the two are separate"),
    Wrong("no pages", "tier_bytes", changed(TIERS, '-(-nbytes // 4096) * 4096 if place == "disk" else nbytes',
          "nbytes"),
          "takes whole pages of 4,096 bytes"),
    Wrong("pages of the sum", "tier_bytes", changed(changed(
        TIERS, '-(-nbytes // 4096) * 4096 if place == "disk" else nbytes', "nbytes"),
        "    return book", '    book["disk"] = -(-book["disk"] // 4096) * 4096\n    return book'),
          "each is rounded up"),
    Wrong("a page too many", "tier_bytes", changed(TIERS, "-(-nbytes // 4096) * 4096", "(nbytes // 4096 + 1) * 4096"),
          "A record that fills its pages takes no other"),
    Wrong("one copy of fp32 alone", "tier_bytes",
          changed(TIERS, 'recipe["params"] == recipe["main_params"]', 'recipe["params"] == 4'),
          "Also with 16-bit main parameters"),
    Wrong("pages everywhere", "tier_bytes", changed(TIERS, ' if place == "disk" else nbytes', ""),
          "Only what is on the disk"),
    Wrong("swaps the places", "tier_bytes", changed(TIERS, "    shard = numel // ranks\n",
          "    shard = numel // ranks\n    optimizer, parameters = parameters, optimizer\n"),
          "mixed up the two places"),
    Wrong("elements", "tier_bytes", changed(TIERS, "    shard = numel // ranks\n",
          '    shard = numel // ranks\n    recipe = dict(params=1, grads=1, main_params=1.0, moments=2)\n').replace(
              'recipe["params"] == recipe["main_params"] and', "False and").replace("1.0", "1").replace(
              '-(-nbytes // 4096) * 4096 if place == "disk" else nbytes', "nbytes"), "You count elements"),
    Wrong("spoils the recipe", "tier_bytes",
          changed(TIERS, 'recipe["moments"] + (0 if one_copy else recipe["main_params"])',
          'recipe.pop("moments") + (0 if one_copy else recipe["main_params"])'), "it overwrote"),
]  # fmt: skip

CUTS = [
    blank("sub_groups"),
    Wrong("new one for each segment", "sub_groups",
          changed(GROUPS, "        while start < stop:", "        room = 0\n        while start < stop:"),
          "does each segment begin a new one"),
    Wrong("does not fill up", "sub_groups",
          changed(GROUPS, "        while start < stop:",
                  "        room = room if stop - start <= room else 0\n        while start < stop:"),
          "its first part fills the room that is left"),
    Wrong("cuts anywhere", "sub_groups", changed(GROUPS, "room // align * align)", "room)"),
          "A cut lies a multiple of `align`"),
    Wrong("what just fits", "sub_groups",
          changed(GROUPS, "room // align * align)", "room if stop - start <= room else room // align * align)"),
          "also for a rest that would just fit"),
    Wrong("empty parts", "sub_groups",
          changed(GROUPS, "        while start < stop:",
                  "        if start == stop and groups:\n            groups[-1][1].append((start, stop))\n"
                  "        while start < stop:"),
          "A segment without elements has no part"),
    Wrong("no pages", "sub_groups", changed(GROUPS, "-(-nbytes // 4096) * 4096", "nbytes"),
          "with the rest of its page"),
    Wrong("one page each", "sub_groups", changed(GROUPS, "offset += -(-nbytes // 4096) * 4096",
          "offset += 4096 if nbytes else 0"), "A record may take several pages"),
    Wrong("as if each were full", "sub_groups",
          changed(GROUPS, "-(-nbytes // 4096)", "-(-width * max(limit, align) * bool(groups) // 4096)"),
          "Not every sub-group is full"),
    Wrong("a page too many", "sub_groups",
          changed(GROUPS, "-(-nbytes // 4096) * 4096", "(nbytes // 4096 + 1) * 4096 if nbytes else 0"),
          "A record that fills its pages leaves no rest"),
    Wrong("offsets in pages", "sub_groups", changed(GROUPS, "-(-nbytes // 4096) * 4096", "-(-nbytes // 4096)"),
          "You count offsets in pages"),
    Wrong("forgets the width", "sub_groups", changed(GROUPS, "width * size", "size"), "You count offsets in elements"),
    Wrong("forgets the last", "sub_groups", changed(GROUPS, "return groups", "return groups[:-1]"),
          "the last sub-group is missing"),
    Wrong("drops what follows a cut", "sub_groups",
          changed(GROUPS, "start, room, nbytes = start + size,", "start, room, nbytes = stop,"),
          "what follows a cut"),
    Wrong("an element twice", "sub_groups", changed(GROUPS, "start, room, nbytes = start + size,",
          "start, room, nbytes = start + size - (size > 1 and start + size < stop),"),
          "where does the part after a cut begin"),
    Wrong("too large", "sub_groups", changed(GROUPS, "room, nbytes = max(limit, align), 0",
          "room, nbytes = max(limit, align) + align, 0"), "how much room is left"),
    Wrong("an empty one at the start", "sub_groups", changed(GROUPS, "    groups = []", "    groups = [(0, [])]"),
          "a sub-group has no parts"),
    Wrong("without offsets", "sub_groups", changed(GROUPS, "return groups", "return [parts for _, parts in groups]"),
          "a list of (offset, parts) is due"),
    Wrong("spoils the segments", "sub_groups", changed(GROUPS, "return groups", "segments.clear()\n    return groups"),
          "it overwrote"),
]  # fmt: skip

PLACES = [
    blank("best_place"),
    Wrong("the first that fits", "best_place",
          changed(BEST, "best is None or computing + moving < best[1]", "best is None"),
          "You take the first place that fits"),
    Wrong("the slowest", "best_place", changed(BEST, "moving < best[1]", "moving > best[1]"),
          "the slowest of the places"),
    Wrong("the last of equals", "best_place", changed(BEST, "moving < best[1]", "moving <= best[1]"),
          "the one higher in the table"),
    Wrong("one micro-batch", "best_place",
          changed(BEST, "-(-tokens // micro)", "1"), "how many micro-batches are there"),
    Wrong("rounds down", "best_place", changed(BEST, "-(-tokens // micro)", "max(1, tokens // micro)"),
          "A rest of tokens needs a micro-batch"),
    Wrong("half a micro-batch", "best_place", changed(BEST, "-(-tokens // micro)", "tokens / micro"),
          "There are only whole micro-batches"),
    Wrong("forward alone", "best_place", changed(BEST, "6 * numel * tokens", "2 * numel * tokens"),
          "with backward there are 6"),
    Wrong("all of it on each rank", "best_place",
          changed(BEST, "numel // ranks", "numel"), "of its N-th of the parameters"),
    Wrong("parameters sharded", "best_place", changed(BEST, "2 * numel", "2 * share"),
          "At stage 2 the parameters on the device are whole"),
    Wrong("gradients stay", "best_place", changed(changed(changed(BEST, "(2 * numel, 14 * share, 0,",
          "(2 * numel + 2 * share, 12 * share, 0,"), "(2 * numel, 2 * share, 12", "(2 * numel + 2 * share, 0, 12"),
          "share, best =", "share, best ="), "leave the device with the optimizer"),
    Wrong("room on the host", "best_place", changed(BEST, ' and host <= machine["host_bytes"]', ""),
          "The host has to have room"),
    Wrong("room on the disk", "best_place", changed(BEST, ' and disk <= machine["disk_bytes"]', ""),
          "The disk has to have room"),
    Wrong("gradients nowhere", "best_place", changed(BEST, "2 * share, 12 * share", "0, 12 * share"),
          "gradients still wait on the host"),
    Wrong("to the byte", "best_place", changed(BEST, "host <= machine", "host < machine"),
          "What fits to the byte fits"),
    Wrong("a token alone", "best_place", changed(BEST, "micro > 0", "micro > 1"), "Room for a single token"),
    Wrong("moving is free", "best_place", changed(BEST, "computing + moving", "computing"),
          "You count nothing for gradients"),
    Wrong("one way", "best_place", changed(BEST, "link = 4 *", "link = 2 *"), "two come up"),
    Wrong("no link", "best_place", changed(BEST, "link = 4 *", "link = 0 *"), "What crosses the link takes time"),
    Wrong("the disk is the link", "best_place", changed(BEST, "link + max(update, swap)", "max(update, swap)"),
          "Also with states on the disk"),
    Wrong("no update", "best_place", changed(BEST, "0, link + update)", "0, link)"), "28 bytes a parameter"),
    Wrong("a disk for each", "best_place", changed(BEST, ' * machine["ranks_per_disk"]', ""), "share its speed"),
    Wrong("reads only", "best_place", changed(BEST, "24 * share", "12 * share"), "12 bytes are read, and 12 written"),
    Wrong("one after the other", "best_place", changed(BEST, "max(update, swap)", "update + swap"),
          "The step goes on beside the disk"),
    Wrong("the disk alone", "best_place", changed(BEST, "max(update, swap)", "swap"), "the step may take longer"),
    Wrong("the place alone", "best_place", changed(BEST, "return best", "return best[0] if best else None"),
          "The place alone is not enough"),
    Wrong("the seconds alone", "best_place", changed(BEST, "return best", "return best[1] if best else None"),
          "The seconds alone are not enough"),
    Wrong("microseconds", "best_place", changed(BEST, " / 1e6", ""), "Write down the seconds of each"),
    Wrong("no room at all", "best_place", changed(BEST, "micro > 0 and", "micro and"), "no room for one token is out"),
    Wrong("a token always fits", "best_place",
          changed(changed(BEST, "micro = (", "micro = max(1, ("), '["token_bytes"]\n', '["token_bytes"])\n'),
          "You count a micro-batch of one token"),
    Wrong("parts of tokens", "best_place", changed(BEST, MICRO, MICRO.replace("//", "/")),
          "A micro-batch has whole tokens"),
    Wrong("parts of tokens and of micro-batches", "best_place",
          changed(changed(BEST, MICRO, MICRO.replace("//", "/")), "-(-tokens // micro)", "tokens / micro"),
          "round up how many times"),
    Wrong("a part where no token fits", "best_place",
          changed(BEST, MICRO, f"{MICRO} or (machine['device_bytes'] - device) / machine['token_bytes']"),
          "Where a part of a token has room"),
    Wrong("one token too many", "best_place", changed(BEST, MICRO, "-(-" + MICRO + ")"),
          "the last of them has no room"),
]  # fmt: skip

ZOO = [*BYTES, *CUTS, *PLACES, *offload_walk.ZOO, *offload_slipped.ZOO, *offload_more.ZOO]
ZOO += [*offload_edges.ZOO, *offload_edges_pays.ZOO]
