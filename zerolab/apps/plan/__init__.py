"""What fits where: known models, what a run needs, and what would make it fit."""

from zerolab.apps.plan.footprint import GB, advice, gpu_bytes, predict_memory, predict_peak
from zerolab.apps.plan.shapes import SHAPES, Shape, make_gpt

__all__ = ["GB", "SHAPES", "Shape", "advice", "gpu_bytes", "make_gpt", "predict_memory", "predict_peak"]
