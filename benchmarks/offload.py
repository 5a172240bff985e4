"""What it costs to keep states off the device, and what it saves; DeepSpeed's own offload beside it.

    python -m benchmarks.offload                                  the stack of blocks, 2 ranks
    python -m benchmarks.offload --folder F --rows 256 --rounds 9 --json offload.json

Method. As in `benchmarks.peers`: every contender trains the same model from the same seeds on the same batches, alone,
in processes of its own, with torch's fused AdamW; three steps warm up, then `--steps` are timed, a step lasts as long
as on its slowest rank, and a round's figure is its median. The order turns from round to round; ratios compare figures
of one round. "Beside no offload" is the same engine's step at the same stage with everything on the device; a contender
that fails on this machine is left out and named with its last line.

The device here is a CPU, so "host" and "device" are one memory and only the ledgers part them: the ratio of host
offload is the price of copies and of stepping apart, without the wire to a GPU. The disk is real. `--rows` says how
much there is to compute a step: the more, the less the disk shows. Bytes saved on the device are those of
`zerolab.memory.predict`, which tests hold to tracked bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from typing import Any

from tqdm import tqdm

from benchmarks.peers.contenders import OFFLOADED, OURS, PEERS, SWAP, is_installed
from benchmarks.peers.measure import keep_freed_memory, timed
from benchmarks.peers.report import machine, ratio
from benchmarks.peers.workload import WORKLOADS
from zerolab.errors import ZerolabError
from zerolab.memory import predict
from zerolab.offload import Offload
from zerolab.offload.formats import StateSize
from zerolab.ranks import launch
from zerolab.zero import find_units

ON_DEVICE = {name: who for name, who in {**OURS, **PEERS}.items() if name.split()[0] in ("zerolab", "DeepSpeed")}
Seconds = dict[str, list[float]]
"""By contender: the median step of each round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where swap files go")
    parser.add_argument("--rows", type=int, default=32, help="rows a rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_args()
    wanted = [name for name in {**ON_DEVICE, **OFFLOADED} if name.split()[1][0] in "23"]
    names = [name for name in wanted if is_installed(name)]
    if missing := [name for name in wanted if name not in names]:
        print(f"left out, not installed (see make bench-env): {', '.join(missing)}", file=sys.stderr)
    seconds = measure(names, options)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(seconds, file)
    print(table(seconds, options.rows, options.ranks))
    print(machine(options.rounds, options.steps))


def measure(names: list[str], options: Any) -> Seconds:
    seconds: Seconds = {name: [] for name in names}
    turns = [(at, name) for at in range(options.rounds) for name in names[at % len(names) :] + names[: at % len(names)]]
    for _, name in tqdm(turns, desc="steps", file=sys.stderr):
        if name not in seconds:
            continue
        env = {"DS_ACCELERATOR": "cpu", SWAP: options.folder}
        # As peers run under torchrun; ours keep freed memory.
        keep_freed_memory(name.startswith("zerolab"))
        try:
            by_rank = launch(
                timed, ("stack", options.rows), name, options.steps, ranks=options.ranks, collectives="transport",
                device="cpu", env=env, timeout=300, prints="quiet",
            )  # fmt: skip
        except ZerolabError as error:
            del seconds[name]
            tqdm.write(f"{name} failed and is left out: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
            continue
        steps = [max(rank["seconds"][at] for rank in by_rank) for at in range(options.steps)]
        seconds[name].append(statistics.median(steps))
    return seconds


def table(seconds: Seconds, rows: int, ranks: int) -> str:
    what = WORKLOADS["stack"](rows).what
    lines = [
        f"\n### {what}; {ranks} ranks\n",
        "| | step, ms | beside no offload | ours / DeepSpeed's | device MB a rank | host | disk |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, own in seconds.items():
        who, _, tier = name.partition(", ")
        beside = ratio(own, seconds[who]) if tier and who in seconds else ""
        rival = name.replace("zerolab", "DeepSpeed")
        against = ratio(own, seconds[rival]) if rival != name and rival in seconds else ""
        held = " | ".join(states(name, ranks)) if name.startswith("zerolab") else " | | "
        lines.append(f"| {name} | {1e3 * statistics.median(own):.0f} | {beside} | {against} | {held} |")
    return "\n".join(lines)


def states(name: str, ranks: int) -> list[str]:
    """MB of model states of rank 0 on device, host and disk."""
    who: Any = OFFLOADED.get(name)
    stage, *places = who.args if who else (int(name.split()[1]), "device", "device")
    offload = Offload(*places, path=os.curdir, sub_group_numel=1 << 20)
    model = WORKLOADS["stack"](1).model()
    plans = [bucket.plan for unit in find_units(model, ranks) for bucket in unit.buckets]
    kinds = predict(plans, stage, StateSize(2, 4, ("exp_avg", "exp_avg_sq")), offload=offload)
    tiers = {"device": 0, "host": 0, "disk": 0}
    for kind, by_rank in kinds.items():
        place, colon, _ = kind.partition(":")
        tiers[place if colon else "device"] += by_rank[0]
    return [f"{nbytes / 1e6:.1f}" for nbytes in tiers.values()]


if __name__ == "__main__":
    main()
