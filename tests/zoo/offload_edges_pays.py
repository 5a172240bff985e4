"""Wrong answers to lesson 07b that fail in few machines."""

from zoo.wrong import Wrong

ZOO = [
    Wrong("a disk whose room is shared", "best_place", """
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
""", "what each of them has"),
    Wrong("operations of full micro-batches", "best_place", """
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
        if size < 1 or host > machine["host_bytes"] or disk > machine["disk_bytes"]:
            continue
        count = -(-tokens // size)
        done = count * min(size, tokens)
        time = count * machine["micro_us"] / 1e6 + 6 * numel * done / machine["flop_per_s"] + moving
        if best is None or time < best[1]:
            best = [place, time]
    return best
""", "The operations are those of the tokens"),
    Wrong("a micro-batch more", "best_place", """
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
        if size < 1 or host > machine["host_bytes"] or disk > machine["disk_bytes"]:
            continue
        count = tokens // size + 1
        time = count * machine["micro_us"] / 1e6 + 6 * numel * tokens / machine["flop_per_s"] + moving
        if best is None or time < best[1]:
            best = [place, time]
    return best
""", "there is no further one"),
]  # fmt: skip
