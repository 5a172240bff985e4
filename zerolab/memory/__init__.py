"""Two ledgers that must meet: bytes predicted from the layout, and bytes measured on live storages."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.memory.kinds import KINDS, Labels, model_labels
    from zerolab.memory.predict import predict
    from zerolab.memory.states import predict_states, state_widths
    from zerolab.memory.timeline import Sample
    from zerolab.memory.track import Tracker
    from zerolab.memory.traffic import TrafficSettings, predict_traffic
    from zerolab.offload.formats import StateSize
    from zerolab.zero.limits import Stage3Limits

import_when_asked(__name__)
