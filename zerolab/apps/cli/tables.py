"""Tables of commands, and those of a run: what it took, predicted beside measured. They fit any number of ranks: ranks
with the same numbers share a row."""

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

MIB = 2**20


def render(parts: Iterable[str | Table]) -> str:
    """Lines and tables, as standard output would show them; nothing is written there yet. A path or a name stands there
    as it is, whatever brackets and colons it has."""
    there, kept = Console(), io.StringIO()
    width, terminal = there.width, there.is_terminal
    console = Console(file=kept, markup=False, emoji=False, highlight=False, width=width, force_terminal=terminal)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return kept.getvalue()


def make_table(title: str, columns: str, rows: Sequence[Sequence[str]], **look: Any) -> Table:
    """A table whose columns have names with a | between them. Numbers are at the right, and never broken."""
    table = Table(title=title, title_justify="left", **look)
    for name, *cells in zip(columns.split("|"), *rows, strict=True):
        numbers = all(re.match(r"[-+\d]|$", cell) for cell in cells)
        table.add_column(name, justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def text_of(report: Report) -> str:
    """Loss and time, then traffic and memory."""
    return render(parts_of(report))


def parts_of(report: Report) -> Iterator[str | Table]:
    run, virtual = report.config, report.config.world == "virtual"
    yield f"ZeRO-{run.zero_stage}, {count(report.ranks, 'rank')}, {run.model_name}, text: {report.text}"
    first, last = report.loss[0], report.loss[-1]
    loss = "loss not computed" if first is None or last is None else f"loss {first:.4f} -> {last:.4f}"
    steps = count(len(report.loss), "step")
    if report.resumed is not None:
        steps += f" (from step {report.resumed_step} on, of {report.resumed})"
    time = report.median_step_seconds * 1e3
    yield f"{loss} in {steps}, median step {f'{time:,.3f} ms of virtual time' if virtual else f'{time:.0f} ms'}"
    if report.validation_loss:
        yield validation(report)
    if report.parameters_sha256 is not None:
        yield f"parameters sha256 {report.parameters_sha256}"
    if virtual:
        yield "rank 0 was run, on tensors without values; the other ranks are taken to do the same"
    if run.dtypes is not None:
        yield f"precision: {precision(report)}"
    yield from (f"resumed: {note}" for note in report.notes)
    if report.save_seconds:
        saved, seconds = count(len(report.save_seconds), "checkpoint"), sum(report.save_seconds.values())
        yield f"{saved} saved to {run.save_folder}, the last at step {report.step}, in {seconds:.2f} s of its own"
    if run.places.on_disk and not has("direct"):
        yield "disk: through the page cache, since this system has no direct I/O"
    traffic = "traffic: bytes sent a step"
    if report.traffic_is_stated:
        traffic += " (stated by the ring's formula for the calls made: torch's own messages cannot be counted)"
    yield compare(traffic, report.traffic_predicted, report.traffic_measured)
    kept = (with_total(kinds, report.memory_predicted) for kinds in (report.memory_predicted, report.memory_measured))
    yield compare("memory: bytes kept after a step", *kept)
    yield peak(report.peak)
    if report.traces:
        yield times(report)


def with_total(kinds: dict[str, list[int]], predicted: Iterable[str]) -> dict[str, list[int]]:
    """With the sum of the states that rest on the device, of those that are `predicted`, after them."""
    states = [name for name in predicted if not name.startswith(OFFLOADED)]
    total = [sum(of_rank) for of_rank in zip(*(kinds[name] for name in states), strict=True)]
    others = {name: sizes for name, sizes in kinds.items() if name not in states}
    return {**{name: kinds[name] for name in states}, "total": total, **others}


def compare(title: str, predicted: dict[str, list[int]], measured: dict[str, list[int]]) -> Table:
    """A row for each kind and run of ranks with the same numbers. What was not predicted has no verdict."""
    rows = []
    for kind in dict.fromkeys([*predicted, *measured]):
        seen = measured.get(kind) or [0] * len(predicted[kind])
        said: list[int | None] = [*predicted[kind]] if kind in predicted else [None] * len(seen)
        if kind not in predicted and not any(seen):
            continue
        by_rank = enumerate(zip(said, seen, strict=True))
        for (expected, found), run in groupby(by_rank, key=lambda rank_and_bytes: rank_and_bytes[1]):
            ranks = [rank for rank, _ in run]
            verdict = "" if expected is None else "yes" if expected == found else "NO"
            shown = "" if expected is None else f"{expected:,}"
            span = "-".join(map(str, dict.fromkeys([ranks[0], ranks[-1]])))
            rows.append((kind if ranks[0] == 0 else "", span, shown, f"{found:,}", verdict))
    return make_table(title, "kind|rank|predicted|measured|agree", rows)


def precision(report: Report) -> str:
    """The dtype of each state that is not fp32, and what the loss scale did."""
    states = report.config.dtypes
    assert states is not None
    named = [f"{state} {getattr(states, state)}" for state in STATES if getattr(states, state) != "fp32"]
    text = ", ".join([*named, *(["linear layers compute in emulated fp8"] if states.fp8 else [])]) or "all fp32"
    if not states.scales_loss:
        return text
    skipped = ", ".join(map(str, report.skipped_steps)) or "none"
    return f"{text}; loss scale {report.loss_scale[0]:g} -> {report.loss_scale[-1]:g}, skipped steps: {skipped}"


def validation(report: Report) -> str:
    """The first, last and lowest loss on held-out text."""
    losses = report.validation_loss
    first, last, lowest = min(losses), max(losses), min(losses, key=lambda step: losses[step])
    if first == last:
        return f"validation loss {losses[first]:.4f} after step {first}"
    text = f"validation loss {losses[first]:.4f} -> {losses[last]:.4f} after steps {first} and {last}"
    return text if lowest == last else f"{text}, lowest {losses[lowest]:.4f} after step {lowest}"


def peak(kinds: dict[str, list[int]]) -> Table:
    """What the rank that held most held on its device at the highest moment of a step."""
    kinds = {kind: sizes for kind, sizes in kinds.items() if not kind.startswith(OFFLOADED)}
    totals = [sum(of_rank) for of_rank in zip(*kinds.values(), strict=True)]
    rank = totals.index(max(totals))
    held = {kind: sizes[rank] for kind, sizes in {**kinds, "total": totals}.items() if sizes[rank]}
    rows = [(kind, f"{nbytes:,}", f"{nbytes / MIB:,.2f}") for kind, nbytes in held.items()]
    return make_table(f"device memory at the peak of a step, rank {rank}", "kind|bytes|MiB", rows)


def times(report: Report) -> Table:
    """What a step's time went to, as the trace has it."""
    of_all = max(time.milliseconds for time in report.times)
    clock = "milliseconds" if report.config.world == "processes" else "virtual milliseconds"
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
    columns = "what|calls|time|of the step|not waited for"
    return make_table(f"times of a step, mean of ranks, {clock}", columns, rows)
