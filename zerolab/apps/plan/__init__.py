"""What fits where: known models, what a run needs, and what would make it fit."""

from zerolab.apps.plan.needs import GB, Needs, advice, gpu_bytes, needs, needs_of
from zerolab.apps.plan.shapes import SHAPES, Shape, make_gpt

__all__ = ["GB", "SHAPES", "Needs", "Shape", "advice", "gpu_bytes", "make_gpt", "needs", "needs_of"]
