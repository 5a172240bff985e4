"""Two ledgers that must meet: bytes predicted from the layout, and bytes measured on live storages."""

from zerolab.memory.kinds import KINDS, Labels, model_labels
from zerolab.memory.predict import predict, predict_building, predict_peaks
from zerolab.memory.report import device_memory, table
from zerolab.memory.skyline import Sample
from zerolab.memory.states import predict_states, state_widths
from zerolab.memory.track import Tracker
from zerolab.memory.traffic import Sending, predict_traffic
from zerolab.offload.formats import StateSize
from zerolab.zero.limits import Stage3Limits

__all__ = [
    "KINDS",
    "Labels",
    "Sample",
    "Sending",
    "Stage3Limits",
    "StateSize",
    "Tracker",
    "device_memory",
    "model_labels",
    "predict",
    "predict_building",
    "predict_peaks",
    "predict_states",
    "predict_traffic",
    "state_widths",
    "table",
]
