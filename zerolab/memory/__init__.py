"""Two ledgers that must meet: bytes predicted from the layout, and bytes measured on live storages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.lazy import import_when_asked

if TYPE_CHECKING:
    from zerolab.memory.kinds import KINDS, Labels, model_labels
    from zerolab.memory.predict import predict
    from zerolab.memory.states import predict_states, state_widths
    from zerolab.memory.timeline import Sample
    from zerolab.memory.track import Tracker
    from zerolab.memory.traffic import TrafficSettings, predict_traffic
    from zerolab.offload.formats import StateSize
    from zerolab.zero.limits import Stage3Limits

__all__ = [
    "KINDS",
    "Labels",
    "Sample",
    "Stage3Limits",
    "StateSize",
    "Tracker",
    "TrafficSettings",
    "model_labels",
    "predict",
    "predict_states",
    "predict_traffic",
    "state_widths",
]
import_when_asked(__name__)
