"""Tables of a run: what it took, predicted beside measured."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from zerolab.train import Report


def print_report(report: Report) -> None:
    """Loss and time in a line, then traffic and memory by rank."""
    console = Console(highlight=False, soft_wrap=False, width=None)
    first, last = report.loss[0], report.loss[-1]
    console.print(
        f"ZeRO-{report.config.zero_stage}, {report.ranks} ranks, {report.config.model} {report.config.model_size}, "
        f"text {report.text}: loss {first:.4f} -> {last:.4f} in {len(report.loss)} steps, "
        f"median step {report.median_step_seconds * 1e3:.0f} ms"
    )
    console.print(f"parameters sha256 {report.parameters_sha256}")
    traffic = compare("traffic", report.traffic_predicted, report.traffic_measured, "bytes sent a step")
    memory = compare("memory", report.memory_predicted, report.memory_measured, "bytes after a step")
    console.print(traffic)
    console.print(memory)
    peaks = Table(title="memory at the peak of a step, MiB", title_justify="left")
    add_columns(peaks, "kind", report.ranks)
    for kind, sizes in report.peak.items():
        peaks.add_row(kind, *(f"{size / 2**20:,.2f}" for size in sizes))
    peaks.add_row("total", *(f"{sum(of_rank) / 2**20:,.2f}" for of_rank in zip(*report.peak.values(), strict=True)))
    console.print(peaks)


def compare(what: str, predicted: dict[str, list[int]], measured: dict[str, list[int]], title: str) -> Table:
    """A row for each kind and side; `=` where prediction and measurement agree to the byte on every rank."""
    ranks = len(next(iter(measured.values()), next(iter(predicted.values()), [])))
    table = Table(title=f"{what}: {title}", title_justify="left")
    add_columns(table, "kind", ranks)
    table.add_column("agree")
    for kind in dict.fromkeys([*predicted, *measured]):
        said, seen = predicted.get(kind), measured.get(kind, [0] * ranks)
        if said is None:
            table.add_row(f"{kind}, measured", *(f"{n:,}" for n in seen), "")
            continue
        table.add_row(f"{kind}, predicted", *(f"{n:,}" for n in said), "")
        table.add_row(f"{kind}, measured", *(f"{n:,}" for n in seen), "yes" if said == seen else "NO")
    return table


def add_columns(table: Table, first: str, ranks: int) -> None:
    table.add_column(first, no_wrap=True)
    for rank in range(ranks):
        table.add_column(f"rank {rank}", justify="right", no_wrap=True)
