"""What fits where: known models, what a run needs, and what would make it fit."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.apps.cost.gpus import GB
    from zerolab.apps.plan.footprint import advice, gpu_bytes, predict_memory, predict_peak
    from zerolab.apps.plan.shapes import SHAPES, Shape, make_gpt

import_when_asked(__name__)
