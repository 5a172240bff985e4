"""How long operations and collectives take: by data sheets, by measuring, by formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.lazy import import_when_asked

if TYPE_CHECKING:
    from zerolab.apps.cost.calibration import calibrate
    from zerolab.apps.cost.gpus import GPU, GPUS, find_gpu
    from zerolab.apps.cost.machine import Machine, Rate, machine_of
    from zerolab.apps.cost.network import Network

__all__ = ["GPU", "GPUS", "Machine", "Network", "Rate", "calibrate", "find_gpu", "machine_of"]
import_when_asked(__name__)
