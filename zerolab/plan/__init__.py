"""What fits where: known models, what a run needs, and what would make it fit."""

from zerolab.plan.needs import GB, OFFLOADS, Run, advice
from zerolab.plan.shapes import SHAPES, Shape

__all__ = ["GB", "OFFLOADS", "SHAPES", "Run", "Shape", "advice"]
