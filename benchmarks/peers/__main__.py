"""zerolab's stages beside DDP, ZeroRedundancyOptimizer, FSDP2 and DeepSpeed.

    python -m benchmarks.peers                                   both workloads, 2 and 4 ranks
    python -m benchmarks.peers --workload stack --ranks 2 --rounds 10 --json peers.json --picture docs/peers.png

Method. Every contender trains the same model from the same seeds on the same batches, with fused AdamW and a thread
for each core that falls to a rank. It does so alone, in processes of its own, so that none profits or suffers from
what another left behind. There are rounds: in each, every contender starts, makes three steps to warm up and then
`--steps` timed ones, a barrier before each; a step lasts as long as on its slowest rank, and the median of the steps is
the round's figure. The order turns from round to round. A ratio compares figures of one round; tables give the median
over the rounds, with the smallest and largest.

Ranks of zerolab keep freed memory (`zerolab/ranks/forkserver.py`), which `launch` sees to. The others run with glibc as
it is, as they do when torchrun starts them; `--same-malloc` gives all of them zerolab's setting.

The floor of a stage is what it cannot do without: forward and backward alone, fused AdamW alone on a rank's share (all
of it at stage 0), and the bytes that its collectives must read and write (`zerolab/collectives/shared`), over the
bandwidth of a plain copy; each part is measured in the same rounds, on all ranks at once. Beside it stands what we
know of the rest: the copy of the gradients from where autograd leaves them to their buckets, at that bandwidth, and how
long a rank slept until the others came, in the mean over the ranks. What is left then is Python's and the caches'.

Memory and traffic are watched from outside, in a launch of their own for each contender (`measure.Watcher`): every two
milliseconds another process reads what each rank holds, private pages and shared memory, and the most that any rank
has held beyond what it held before its model was built is its peak. Traffic is what the loopback interface carried in
a step, headers and all, divided by the ranks; shared memory sends nothing but notes, in pipes.

With `--device cuda` each rank has a GPU, zerolab's collectives are what "auto" takes there (NCCL's own), a step ends
when the GPU has done it, and the peak is that of torch's allocator. What NCCL sends nobody counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.peers.contenders import OURS, PARTS, PEERS, RINGS, is_installed
from benchmarks.peers.measure import Watcher, allocated, keep_freed_memory, timed, watched
from benchmarks.peers.report import Case, draw, machine, tables
from benchmarks.peers.workload import DEFAULT_ROWS, WORKLOADS
from zerolab.ranks import launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), nargs="+", default=list(DEFAULT_ROWS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rows", type=int, help="rows or sequences a rank (default: 32 for stack, 2 for llama)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--rings", action="store_true", help="zerolab's stages over the ring, too")
    parser.add_argument("--ours", action="store_true", help="zerolab's stages and their floors alone, without peers")
    parser.add_argument("--same-malloc", action="store_true", help="peers, too, keep freed memory")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    parser.add_argument("--picture", type=Path, help="draw the first case's step times to this PNG")
    options = parser.parse_args()

    wanted = {**OURS, **(RINGS if options.rings else {}), **({} if options.ours else PEERS), **PARTS}
    names = [name for name in wanted if is_installed(name)]
    if missing := [name for name in wanted if name not in names]:
        print(f"left out, not installed (see make bench-env): {', '.join(missing)}", file=sys.stderr)
    cases = []
    for workload in options.workload:
        for ranks in options.ranks:
            case = Case(workload, options.rows or DEFAULT_ROWS.get(workload, 1), ranks, options.device)
            measure(case, names, options.rounds, options.steps, options.same_malloc)
            cases.append(case)
            print(tables(case), flush=True)
    print(machine(options.rounds, options.steps, options.device))
    if options.json:
        options.json.write_text(json.dumps([vars(case) for case in cases]))
    if options.picture:
        draw(cases[0]).savefig(options.picture, dpi=100, facecolor="white", metadata={"Software": None})


def measure(case: Case, names: list[str], rounds: int, steps: int, same_malloc: bool) -> None:
    work = (case.workload, case.rows)

    def start(fn: Any, name: str, *args: Any) -> list[Any]:
        keeps = same_malloc or name not in PEERS
        keep_freed_memory(keeps)
        env = {"DS_ACCELERATOR": case.device}
        return launch(
            fn,
            work,
            name,
            *args,
            ranks=case.ranks,
            collectives="transport",
            device=case.device,
            env=env,
            timeout=300,
            prints="quiet",
        )

    for name in names:
        case.seconds[name] = []
    turns = [(at, name) for at in range(rounds) for name in (names[at % len(names) :] + names[: at % len(names)])]
    for _, name in tqdm(turns, desc=f"{case.workload}, {case.ranks} ranks: time", file=sys.stderr):
        by_rank = start(timed, name, steps)
        case.seconds[name].append([max(rank["seconds"][at] for rank in by_rank) for at in range(steps)])
        case.waited.setdefault(name, []).append(
            [sum(rank["waited"][at] for rank in by_rank) / case.ranks for at in range(steps)]
        )
        case.losses[name] = [sum(rank["losses"][at] for rank in by_rank) / case.ranks for at in range(steps)]
    trained = [name for name in names if name not in PARTS]
    for name in tqdm(trained, desc=f"{case.workload}, {case.ranks} ranks: memory", file=sys.stderr):
        if case.device == "cuda":
            case.peak[name] = max(rank["peak"] for rank in start(allocated, name, 8))
            continue
        with tempfile.TemporaryDirectory() as folder, Watcher(folder) as watcher:
            by_rank = start(watched, name, 8, folder)
            peaks = [watcher.peaks[rank] - by_rank[rank]["before"] for rank in range(case.ranks)]
        case.peak[name] = max(peaks)
        case.sent[name] = by_rank[0]["sent"] // case.ranks


if __name__ == "__main__":
    main()
