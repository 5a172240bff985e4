"""Collective operations: one contract, several implementations, and transports to wrap around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.lazy import import_when_asked

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

__all__ = [
    "IMPLEMENTATIONS",
    "Collectives",
    "Handle",
    "Link",
    "LocalCollectives",
    "LocalTransport",
    "Meter",
    "Request",
    "RingCollectives",
    "SharedMemoryCollectives",
    "Span",
    "TorchCollectives",
    "Tracer",
    "Transport",
    "VirtualCollectives",
    "build",
    "overlap_seconds",
    "phase",
    "wire_bytes",
]
import_when_asked(__name__)
