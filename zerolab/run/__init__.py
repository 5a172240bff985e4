"""One description of a run, which training, plans, sweeps, dialects and lessons read."""

from zerolab.run.spec import OFFLOADS, RunSpec

__all__ = ["OFFLOADS", "RunSpec"]
