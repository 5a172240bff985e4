"""A sweep from begin to end: the cases that its folder does not have yet, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerolab.apps.interop.huggingface.start import weights_of
from zerolab.apps.sweep.cases import SweepCase
from zerolab.apps.sweep.machines import Machines
from zerolab.apps.sweep.measure import Figures, machine, measured, predicted_times, write_trace
from zerolab.apps.sweep.rows import DONE, FAILED, Row, Rows, held
from zerolab.apps.sweep.shaped import ShapedHosts
from zerolab.errors import DiskError, ZerolabError
from zerolab.run import RunSpec
from zerolab.train import train
from zerolab.train.model import load_data
from zerolab.train.progress import Bar

TRACES = "traces"
"""A sweep's folder for the traces of its cases."""


@dataclass(frozen=True)
class SweepOutcome:
    """A sweep that is over: the rows of its cases in order, and how many of them were run now."""

    rows: list[Row]
    ran: int

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row["status"] == FAILED]


def sweep(cases: Sequence[SweepCase], folder: Path, traces: bool = False) -> SweepOutcome:
    """Run the cases that the folder has no finished row of. One that fails becomes a row that says why, and the others
    go on; it is tried again the next time. With `traces`, each case that is run leaves its trace in
    `traces/KEY.json`. Raises an InputError for a folder that cannot be used, a DiskError if its disk is full."""
    with held(folder):
        rows, machines = Rows(folder), Machines(folder)
        keys = [case.key for case in cases]
        rows.forget_failed(keys)
        left = [case for case in cases if not rows.is_done(case.key)]
        done = len(cases) - len(left)
        with ShapedHosts() as hosts:
            for link in dict.fromkeys(case.config.link for case in left if case.hosts):
                hosts.check(link)
            with Bar(total=len(cases), initial=done, desc="sweep", unit="case", file=sys.stderr, disable=None) as bar:
                for case in left:
                    bar.set_postfix_str(case.title)
                    trace = folder / TRACES / f"{case.key}.json" if traces else None
                    rows.append(row_of(case, hosts, machines, trace))
                    bar.update()
        rows.finish(keys)
        return SweepOutcome([rows.by_key[key] for key in keys], len(left))


def row_of(case: SweepCase, hosts: ShapedHosts, machines: Machines, trace: Path | None = None) -> Row:
    """Predict and run a case; its trace goes to `trace`. What is the same each time comes first, so that lines
    are read by eye, too."""
    row: Row = {"key": case.key, "case": case.title, "status": DONE, "error": None, "settings": case.told}
    try:
        predicted = predicted_times(case.config, machines.of(case, hosts))
        row |= predicted | (hosts.run(case, trace) if case.hosts else run_here(case.config, trace))
    except DiskError:
        raise
    except ZerolabError as error:
        row |= {"status": FAILED, "error": str(error)}
    except Exception as error:
        row |= {"status": FAILED, "error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return row | {"machine": machine()}


def run_here(config: RunSpec, trace: Path | None = None) -> Figures:
    """Train as the configuration says, traced, in launches of this process."""
    corpus = load_data(config)
    # Any path turns tracing on; the trace stays in the report.
    report = train(config.model_copy(update={"trace": Path("trace.json")}), corpus, weights=weights_of(config))
    write_trace(report, trace)
    return measured(report, corpus)
