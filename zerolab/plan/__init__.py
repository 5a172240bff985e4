"""What fits where: the description of a run, known models, what a run needs, and what would make it fit."""

from zerolab.plan.needs import GB, advice, gpu_bytes, needs
from zerolab.plan.shapes import SHAPES, Shape, shape_of
from zerolab.plan.spec import OFFLOADS, RunSpec

__all__ = ["GB", "OFFLOADS", "SHAPES", "RunSpec", "Shape", "advice", "gpu_bytes", "needs", "shape_of"]
