"""A step's time, predicted and measured on this machine: `python -m benchmarks.cost` (about twenty minutes).

    python -m benchmarks.cost --ranks 2 --gbit-per-s 1 5 --models "llama tiny"

Method. In rounds, one after the other: for each number of ranks and bandwidth the machine is calibrated
(`zerolab.apps.cost.calibrate`, seconds), and right after it comes a launch with rings on a link that really delays
(`launch(..., link=)`), in which every model trains at every stage: two steps to warm up, then some that are timed. A
step lasts as long as on its slowest rank, and the median of the steps counts. Its prediction knows the calibration of
its round and the link, never a step; behind it is the spread of the machine's speed while it was calibrated. Of the
rounds the medians count, of times and of errors. What is done is in a file of JSON lines, so a run that was ended goes
on where it was, and may be split by its flags; --out names another, to begin anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.plan import fill_readme
from zerolab.apps.cost import Machine, calibrate
from zerolab.apps.plan import Shape
from zerolab.apps.plan.mixture import build_model
from zerolab.apps.plan.timing import predict_step
from zerolab.collectives import Collectives, Link
from zerolab.course.measure import decay_of_train
from zerolab.models import GPT2Config, config_of
from zerolab.ranks import launch
from zerolab.run import RunSpec
from zerolab.zero import ZeroEngine

BEGIN = "<!-- python -m benchmarks.cost --readme -->"
MODELS = {
    "llama tiny": config_of("llama", "tiny", max_seq_len=128),
    "gpt2 tiny": config_of("gpt2", "tiny", max_seq_len=128),
    "gpt2 2 x 512": GPT2Config(256, 512, 2, 8, 128),
    "llama nano": config_of("llama", "nano", max_seq_len=128),
}
"""The last is not asked for by default: its step is Python and few numbers, which no roofline knows."""
RANKS = (1, 2, 4)
GBITS = (0.5, 1.0, 2.0, 5.0, 20.0)
LATENCY_US = 50.0
TOKENS, BATCH = 128, 4
WARM = 2


def run_of(model: str, ranks: int, stage: int) -> RunSpec:
    return RunSpec(
        Shape(MODELS[model], model), ranks=ranks, stage=stage, precision=None, micro_batch_size=BATCH, seq_len=TOKENS
    )


def measure(comm: Collectives, models: Sequence[str], steps: int) -> dict[str, list[float]]:
    """Seconds of this rank's steps, by model and stage."""
    found = {}
    for model, stage in product(models, range(4)):
        torch.manual_seed(0)
        built = build_model(MODELS[model], False)
        engine = ZeroEngine(built, comm, stage, 1e-3, clip_norm=1.0, groups=decay_of_train)
        taken = []
        for _ in range(WARM + steps):
            tokens, targets = (part.clone() for part in torch.randint(0, 256, (2, BATCH, TOKENS)))
            comm.barrier()
            start = time.perf_counter()
            engine.backward(engine(tokens, targets))
            engine.step()
            engine.synchronize()
            taken.append(time.perf_counter() - start)
        engine.close()
        found[f"{model} {stage}"] = taken[WARM:]
    return found


def rows_of(ranks: int, gbit: float, models: Sequence[str], steps: int, machine: Machine) -> list[dict[str, Any]]:
    link = Link(gbit, LATENCY_US)
    by_rank = launch(
        measure, models, steps, ranks=ranks, collectives="ring", device="cpu", link=link if ranks > 1 else None,
        timeout=900, prints="quiet",
    )  # fmt: skip
    rows = []
    for model, stage in product(models, range(4)):
        each = [max(taken) for taken in zip(*(rank[f"{model} {stage}"] for rank in by_rank), strict=True)]
        step = predict_step(run_of(model, ranks, stage), machine, link)
        rows.append(
            {"model": model, "ranks": ranks, "gbit_per_s": gbit, "stage": stage, "measured": median(each),
             "least": min(each), "most": max(each), "predicted": step.seconds, "exposed": step.exposed,
             "error": step.seconds / median(each) - 1, "spread": machine.spread}
        )  # fmt: skip
    return rows


def merged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a case, of the rows of its rounds."""
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["ranks"], row["gbit_per_s"], row["model"], row["stage"]), []).append(row)
    middles = ("measured", "predicted", "exposed", "error", "spread")
    return [
        {
            **of_case[0],
            **{name: median(row[name] for row in of_case) for name in middles},
            "least": min(row["least"] for row in of_case),
            "most": max(row["most"] for row in of_case),
        }
        for of_case in cases.values()
    ]


def between_rounds(rows: Sequence[dict[str, Any]], ranks: int) -> list[float]:
    """By how much the longest of a case's rounds goes beyond its shortest, for each case."""
    cases: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["ranks"] == ranks:
            cases.setdefault((row["gbit_per_s"], row["model"], row["stage"]), []).append(row["measured"])
    return [max(taken) / min(taken) - 1 for taken in cases.values()]


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: a row a case, and the errors."""
    names = [*MODELS]
    rounds = rows
    rows = sorted(merged(rows), key=lambda row: (row["ranks"], row["gbit_per_s"], names.index(row["model"])))
    lines = [
        "| model | ranks | Gbit/s | stage | measured, ms | least to most | predicted | waits | error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        spread = f"{1e3 * row['least']:.0f} to {1e3 * row['most']:.0f}"
        lines.append(
            f"| {row['model']} | {row['ranks']} | {row['gbit_per_s']:g} | {row['stage']} | {1e3 * row['measured']:.1f} "
            f"| {spread} | {1e3 * row['predicted']:.1f} ± {row['spread']:.0%} "
            f"| {row['exposed'] / row['predicted']:.0%} | {row['error']:+.1%} |"
        )
    errors = sorted(abs(row["error"]) for row in rows)
    for ranks in sorted({row["ranks"] for row in rows}):
        of_ranks = [row for row in rows if row["ranks"] == ranks]
        own = sorted(abs(row["error"]) for row in of_ranks)
        quickest = sorted(row["least"] / row["predicted"] - 1 for row in of_ranks)
        beyond, apart = sum(error > 0.25 for error in own), between_rounds(rounds, ranks)
        mean = fmean(row["error"] for row in of_ranks)
        lines += [
            "",
            f"{ranks} ranks: median error {median(own):.1%}, worst {own[-1]:.1%}, {beyond} of {len(own)} beyond 25 %; "
            f"mean {mean:+.1%}. The quickest step is {median(quickest):+.1%} from its prediction by the median "
            f"({quickest[0]:+.1%} to {quickest[-1]:+.1%}). A case's rounds differ by {median(apart):.0%}, at most by "
            f"{max(apart):.0%}.",
        ]
    within = sum(error <= 0.25 for error in errors)
    lines += [
        "",
        f"{len(rows)} cases: median error {median(errors):.1%}, worst {errors[-1]:.1%}; {within} within 25 %.",
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS)[:3])
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--gbit-per-s", type=float, nargs="+", default=list(GBITS))
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is calibrated and measured (3)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a case in a round (3)")
    parser.add_argument("--out", type=Path, default=Path("out/cost.jsonl"), help="what is done, and goes on from there")
    parser.add_argument("--readme", action="store_true", help="write the table into benchmarks/README.md, too")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    done = [json.loads(line) for line in lines]
    cases = [
        (ranks, gbit) for ranks in given.ranks for gbit in (given.gbit_per_s if ranks > 1 else given.gbit_per_s[:1])
    ]
    rounds = list(product(range(given.rounds), cases))
    for turn, (ranks, gbit) in tqdm(rounds, desc="rounds, ranks and links", file=sys.stderr):
        there = {row["model"] for row in done if (row["round"], row["ranks"], row["gbit_per_s"]) == (turn, ranks, gbit)}
        if not (models := [model for model in given.models if model not in there]):
            continue
        machine = calibrate(ranks)
        print(asdict(machine), file=sys.stderr)
        rows = [{"round": turn, **row} for row in rows_of(ranks, gbit, models, given.steps, machine)]
        done += rows
        with given.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    text = "\n".join(table(done))
    print(text)
    if given.readme:
        fill_readme(BEGIN, text)


if __name__ == "__main__":
    main()
