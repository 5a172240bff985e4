"""What the planner says of a step's peak, beside what a tracker sees: `python -m benchmarks.plan`.

A row for each model, stage, precision and checkpointing setting; ranks, micro-batches, batch and the optimizer's place
change from row to row. All ranks are in one process, on a CPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from zerolab.apps.plan import Shape, predict_memory
from zerolab.course.measure import Measured, measure
from zerolab.models import config_of
from zerolab.run import RunSpec

TOKENS = 32
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- python -m benchmarks.plan --readme -->", "<!-- end -->"


def matrix(sizes: tuple[str, ...] = ("nano", "tiny")) -> Iterator[RunSpec]:
    """48 runs. What is no axis of its own takes turns, so that each value meets each stage, recipe and model."""
    axes = product(("llama", "gpt2"), range(4), ("fp32", "bf16", "fp16"), (False, True))
    for number, (model, stage, precision, checkpoint) in enumerate(axes):
        turn = number // 2 + number  # 0 1 3 4 6 7 9 10 ...: each pair of neighbours differs, and so do the pairs
        size = sizes[number // 3 % len(sizes)]
        yield RunSpec(
            Shape(config_of(model, size, max_seq_len=TOKENS), f"{model} {size}"),
            ranks=(2, 4)[turn // 2 % 2],
            stage=stage,
            precision=precision,
            micro_batch_size=(1, 4)[number // 5 % 2],
            seq_len=TOKENS,
            checkpoint_activations=checkpoint,
            offload="optimizer" if number % 4 == 3 else "nothing",
            micro_batches=(1, 2)[turn % 2],
        )


def error_of(run: RunSpec, measured: list[Measured]) -> float:
    """Predicted over tracked peak, less one; the rank that held most counts."""
    tracked = max(of_rank.total for of_rank in measured)
    return predict_memory(run).peak.total / tracked - 1


def table(runs: list[RunSpec], measured: list[list[Measured]]) -> list[str]:
    """A line of Markdown for each run, and one with the largest error."""
    lines = [
        "| model | stage | precision | recomputes | ranks | micro-batches | optimizer | predicted | tracked | error |",
        "|---|---|---|---|---|---|---|---:|---:|---:|",
    ]
    errors = []
    for run, of_ranks in zip(runs, measured, strict=True):
        errors.append(error_of(run, of_ranks))
        tracked = max(of_rank.total for of_rank in of_ranks)
        cells = [
            run.model_name, run.stage, run.precision, "yes" if run.checkpoint_activations else "no", run.ranks,
            f"{run.micro_batches} of {run.micro_batch_size}", "host" if run.offload == "optimizer" else "device",
            f"{predict_memory(run).peak.total:,}", f"{tracked:,}", f"{errors[-1]:+.3%}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    worst = max(errors, key=abs)
    return [*lines, "", f"{len(runs)} rows; the largest error is {worst:+.3%}."]


def fill_readme(begin: str, text: str) -> None:
    """Put a table between its marks in README.md, in the place of the one that is there."""
    before, mark, rest = README.read_text(encoding="utf-8").partition(begin)
    if not mark:
        raise SystemExit(f"{README} has no line {begin!r}; write one, and {END!r} below it, where the table shall be")
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{begin}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help="write the table into benchmarks/README.md, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args()
    runs = [*matrix()]
    measured = measure(runs)
    text = "\n".join(table(runs, measured))
    print(text)
    if arguments.json:
        rows = [
            {"run": repr(run), "predicted": predict_memory(run).peak.bytes, "tracked": [rank.peak for rank in of_ranks]}
            for run, of_ranks in zip(runs, measured, strict=True)
        ]
        arguments.json.write_text(json.dumps(rows, indent=1))
    if arguments.readme:
        fill_readme(BEGIN, text)


if __name__ == "__main__":
    main()
