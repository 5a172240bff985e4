"""What fits where: the description of a run, known models, what a run needs, and what would make it fit."""

from zerolab.apps.plan.needs import GB, Needs, advice, fits, gpu_bytes, needs, needs_of
from zerolab.apps.plan.shapes import SHAPES, Shape, shape_of
from zerolab.run import OFFLOADS, RunSpec

__all__ = [
    "GB",
    "OFFLOADS",
    "SHAPES",
    "Needs",
    "RunSpec",
    "Shape",
    "advice",
    "fits",
    "gpu_bytes",
    "needs",
    "needs_of",
    "shape_of",
]
