"""Draws the README's timeline: `python tools/timeline.py`. The run is in lockstep, so it is always the same picture."""

from __future__ import annotations

from pathlib import Path

from zerolab.course.viz import StepRun, step_skyline

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main() -> None:
    (DOCS / "timeline.png").write_bytes(step_skyline(StepRun(stage=3, ranks=4)).png())


if __name__ == "__main__":
    main()
