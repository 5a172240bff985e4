"""Collective operations: one contract, several implementations, and transports to wrap around them."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.collectives.build import IMPLEMENTATIONS, build
    from zerolab.collectives.call import phase
    from zerolab.collectives.contract import Collectives
    from zerolab.collectives.cost import Link, wire_bytes
    from zerolab.collectives.handle import Handle
    from zerolab.collectives.observe import Meter, Span, Tracer, overlap_seconds
    from zerolab.collectives.ring import LocalCollectives, RingCollectives
    from zerolab.collectives.shared.collectives import SharedMemoryCollectives
    from zerolab.collectives.torch_ import TorchCollectives
    from zerolab.collectives.transport import LocalTransport, Request, Transport
    from zerolab.collectives.virtual import VirtualCollectives

import_when_asked(__name__)
