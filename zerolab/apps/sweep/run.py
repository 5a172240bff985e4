"""A sweep from begin to end: the cases that its folder does not have yet, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerolab.apps.sweep.cases import SweepCase
from zerolab.apps.sweep.machines import Machines, this_machine
from zerolab.apps.sweep.measure import predicted_times, run_traced
from zerolab.apps.sweep.rows import DONE, FAILED, TABLE, Row, csv_of, held, read_rows, write_file, write_rows
from zerolab.apps.sweep.shaping import check_wires, run_shaped
from zerolab.errors import DiskError, ZerolabError
from zerolab.train.progress import Bar


@dataclass(frozen=True)
class SweepOutcome:
    """A sweep that is over: the rows of its cases in order, and how many of them were run now."""

    rows: list[Row]
    ran: int

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row["status"] == FAILED]


def sweep(cases: Sequence[SweepCase], folder: Path, traces: bool = False) -> SweepOutcome:
    """Run the cases that the folder has no finished row of. One that fails becomes a row that says why, and is tried
    again the next time. With `traces`, each leaves its trace in `traces/KEY.json`."""
    with held(folder):
        rows, machines = {row["key"]: row for row in read_rows(folder)}, Machines(folder)
        left = [case for case in cases if case.key not in rows or rows[case.key]["status"] != DONE]
        for link in dict.fromkeys(case.config.link for case in left if case.hosts):
            check_wires(link)
        done = len(cases) - len(left)
        with Bar(total=len(cases), initial=done, desc="sweep", unit="case", file=sys.stderr, disable=None) as bar:
            for case in left:
                bar.set_postfix_str(case.title)
                row = row_of(case, machines, folder / "traces" / f"{case.key}.json" if traces else None)
                # One that failed before goes.
                rows = {key: other for key, other in rows.items() if key != case.key} | {case.key: row}
                write_rows(folder, rows.values())
                bar.update()
        ours = {case.key: rows.pop(case.key) for case in cases}
        rows |= ours
        write_rows(folder, rows.values())
        write_file(folder / TABLE, csv_of(rows.values()))
        return SweepOutcome([*ours.values()], len(left))


def row_of(case: SweepCase, machines: Machines, trace: Path | None = None) -> Row:
    """Predict and run a case. What lines are found by comes first, for who reads them by eye."""
    row: Row = {"key": case.key, "case": case.title, "status": DONE, "error": None, "settings": case.told}
    try:
        predicted = predicted_times(case.config, machines.of(case))
        row |= predicted | (run_shaped(case, trace) if case.hosts else run_traced(case.config, trace))
    except DiskError:
        raise
    except Exception as error:
        said = str(error)
        if not isinstance(error, ZerolabError):
            said = f"{type(error).__name__}: {' '.join(said.split())}"
        row |= {"status": FAILED, "error": said}
    return row | {"machine": this_machine()}
