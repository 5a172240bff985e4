"""A sweep from begin to end: the cases that its folder does not have yet, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerolab.errors import DiskError, ZerolabError
from zerolab.sweep.cases import SweepCase
from zerolab.sweep.measure import Figures, machine, measured
from zerolab.sweep.rows import DONE, FAILED, Row, Rows, held
from zerolab.sweep.shaped import ShapedHosts
from zerolab.train import TrainConfig, train
from zerolab.train.model import load_data
from zerolab.train.progress import Bar


@dataclass(frozen=True)
class SweepOutcome:
    """A sweep that is over: the rows of its cases in order, and how many of them were run now."""

    rows: list[Row]
    ran: int

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row["status"] == FAILED]


def sweep(cases: Sequence[SweepCase], folder: Path) -> SweepOutcome:
    """Run the cases that the folder has no finished row of. One that fails becomes a row that says why, and the others
    go on; it is tried again the next time. Raises an InputError for a folder that cannot be used, a DiskError if its
    disk is full."""
    with held(folder):
        rows = Rows(folder)
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
                    rows.append(row_of(case, hosts))
                    bar.update()
        rows.finish(keys)
        return SweepOutcome([rows.by_key[key] for key in keys], len(left))


def row_of(case: SweepCase, hosts: ShapedHosts) -> Row:
    """Run a case. What is the same each time comes first, so that lines are read by eye, too."""
    row: Row = {"key": case.key, "case": case.title, "status": DONE, "error": None, "settings": case.told}
    try:
        row |= hosts.run(case) if case.hosts else run_here(case.config)
    except DiskError:
        raise
    except ZerolabError as error:
        row |= {"status": FAILED, "error": str(error)}
    except Exception as error:
        row |= {"status": FAILED, "error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return row | {"machine": machine()}


def run_here(config: TrainConfig) -> Figures:
    """Train as the configuration says, traced, in launches of this process."""
    corpus = load_data(config, config.seq_len)
    # Any path turns tracing on; the trace stays in the report.
    return measured(train(config.model_copy(update={"trace": Path("trace.json")}), corpus), corpus)
