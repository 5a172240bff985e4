"""Tables of commands, and the report of a run: what it took, predicted beside measured."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from zerolab.memory.kinds import OFFLOADED
from zerolab.precision.recipe import STATES
from zerolab.system import has

if TYPE_CHECKING:
    from zerolab.train import Report

ByRank = dict[str, list[int]]
MIB = 2**20


def render(parts: Iterable[str | Table]) -> str:
    """Lines and tables, as standard output would show them; brackets stay what they are."""
    there, kept = Console(), io.StringIO()
    plain: Any = dict.fromkeys(("markup", "emoji", "highlight"), False)
    console = Console(file=kept, width=there.width, force_terminal=there.is_terminal, **plain)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return kept.getvalue()


def make_table(title: str, columns: str, rows: Sequence[Sequence[str]], **look: Any) -> Table:
    """A table; columns have a | between. Numbers are at the right, and never broken."""
    table = Table(title=title, title_justify="left", **look)
    for name, *cells in zip(columns.split("|"), *rows, strict=True):
        numbers = all(re.match(r"[-+\d]|$", cell) for cell in cells)
        side: Any = "right" if numbers else "left"
        table.add_column(name, justify=side, no_wrap=numbers, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def text_of(report: Report) -> str:
    return render(describe(report))


def describe(report: Report) -> Iterator[str | Table]:
    run, virtual = report.config, report.config.world == "virtual"
    ranks = count(report.ranks, "rank")
    yield f"ZeRO-{run.zero_stage}, {ranks}, {run.model_name}, text: {report.text}"
    first, last = report.loss[0], report.loss[-1]
    computed = first is not None and last is not None
    loss = f"loss {first:.4f} -> {last:.4f}" if computed else "loss not computed"
    steps = count(len(report.loss), "step")
    if report.resumed is not None:
        steps += f" (from step {report.resumed_step} on, of {report.resumed})"
    time = report.median_step_seconds * 1e3
    step = f"{time:,.3f} ms of virtual time" if virtual else f"{time:.0f} ms"
    yield f"{loss} in {steps}, median step {step}"
    if report.validation_loss:
        yield describe_validation(report.validation_loss)
    if report.parameters_sha256 is not None:
        yield f"parameters sha256 {report.parameters_sha256}"
    if virtual:
        yield "rank 0 was run, on tensors without values; the others are taken to do the same"
    if run.dtypes is not None:
        yield f"precision: {describe_precision(report)}"
    yield from (f"resumed: {note}" for note in report.notes)
    if report.save_seconds:
        saved = count(len(report.save_seconds), "checkpoint")
        took = f"in {sum(report.save_seconds.values()):.2f} s of its own"
        yield f"{saved} saved to {run.save_folder}, the last at step {report.step}, {took}"
    if run.places.on_disk and not has("direct"):
        yield "disk: through the page cache, since this system has no direct I/O"
    traffic = "traffic: bytes sent a step"
    if report.traffic_is_stated:
        stated = "stated by the ring's formula for the calls made"
        traffic += f" ({stated}: torch's own messages cannot be counted)"
    yield compare(traffic, report.traffic_predicted, report.traffic_measured)
    said, seen = report.memory_predicted, report.memory_measured
    totals = [with_total(kinds, said) for kinds in (said, seen)]
    yield compare("memory: bytes kept after a step", *totals)
    yield tabulate_peak(report.peak)
    if report.traces:
        yield tabulate_times(report)


def with_total(kinds: ByRank, predicted: Iterable[str]) -> ByRank:
    """With the sum of the `predicted` states that rest on the device after them."""
    states = {name: kinds[name] for name in predicted if not name.startswith(OFFLOADED)}
    total = [sum(of_rank) for of_rank in zip(*states.values(), strict=True)]
    return {**states, "total": total, **{name: kinds[name] for name in kinds if name not in states}}


def compare(title: str, predicted: ByRank, measured: ByRank) -> Table:
    rows = []
    for kind in dict.fromkeys([*predicted, *measured]):
        seen = measured.get(kind) or [0] * len(predicted[kind])
        if kind not in predicted and not any(seen):
            continue
        said = predicted.get(kind) or [-1] * len(seen)
        pairs = enumerate(zip(said, seen, strict=True))
        for (expected, found), alike in groupby(pairs, key=lambda pair: pair[1]):
            ranks = [rank for rank, _ in alike]
            span = "-".join(map(str, dict.fromkeys([ranks[0], ranks[-1]])))
            verdict = ("yes" if expected == found else "NO") if kind in predicted else ""
            shown = f"{expected:,}" if kind in predicted else ""
            rows.append(("" if ranks[0] else kind, span, shown, f"{found:,}", verdict))
    return make_table(title, "kind|rank|predicted|measured|agree", rows)


def describe_precision(report: Report) -> str:
    dtypes, scale = report.config.dtypes, report.loss_scale
    assert dtypes is not None
    words = [f"{state} {dtype}" for state in STATES if (dtype := getattr(dtypes, state)) != "fp32"]
    words += ["linear layers compute in emulated fp8"] if dtypes.fp8 else []
    text = ", ".join(words) or "all fp32"
    if not dtypes.scales_loss:
        return text
    skipped = ", ".join(map(str, report.skipped_steps)) or "none"
    return f"{text}; loss scale {scale[0]:g} -> {scale[-1]:g}, skipped steps: {skipped}"


def describe_validation(losses: dict[int, float]) -> str:
    first, last = min(losses), max(losses)
    if first == last:
        return f"validation loss {losses[first]:.4f} after step {first}"
    change = f"{losses[first]:.4f} -> {losses[last]:.4f}"
    text = f"validation loss {change} after steps {first} and {last}"
    lowest = min(losses, key=lambda step: losses[step])
    return text if lowest == last else f"{text}, lowest {losses[lowest]:.4f} after step {lowest}"


def tabulate_peak(kinds: ByRank) -> Table:
    kinds = {kind: sizes for kind, sizes in kinds.items() if not kind.startswith(OFFLOADED)}
    totals = [sum(of_rank) for of_rank in zip(*kinds.values(), strict=True)]
    rank, kinds = totals.index(max(totals)), {**kinds, "total": totals}
    held = {kind: sizes[rank] for kind, sizes in kinds.items() if sizes[rank]}
    rows = [(kind, f"{nbytes:,}", f"{nbytes / MIB:,.2f}") for kind, nbytes in held.items()]
    title = f"device memory at the peak of a step, rank {rank}"
    return make_table(title, "kind|bytes|MiB", rows)


def tabulate_times(report: Report) -> Table:
    of_all = max(time.milliseconds for time in report.times)
    virtual = "" if report.config.world == "processes" else "virtual "
    rows = [
        (
            time.what,
            "" if time.calls is None else f"{time.calls:.3g}",
            f"{time.milliseconds:.2f}",
            f"{time.milliseconds / of_all:.0%}" if of_all else "",
            "" if time.hidden is None else f"{time.hidden:.2f}",
        )
        for time in report.times
    ]
    title = f"times of a step, mean of ranks, {virtual}milliseconds"
    return make_table(title, "what|calls|time|of the step|not waited for", rows)
