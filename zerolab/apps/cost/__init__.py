"""How long operations and collectives take: by data sheets, by measuring, by formula."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.apps.cost.calibration import calibrate
    from zerolab.apps.cost.gpus import GPU, GPUS, find_gpu
    from zerolab.apps.cost.machine import Machine, Rate, machine_of
    from zerolab.apps.cost.network import Network

import_when_asked(__name__)
