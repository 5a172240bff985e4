"""Collective operations: one contract, several implementations, and transports to wrap around them."""

from __future__ import annotations

from collections.abc import Callable

from zerolab.collectives.call import phase
from zerolab.collectives.contract import Collectives
from zerolab.collectives.cost import Link, VirtualCollectives, wire_bytes
from zerolab.collectives.handle import Handle
from zerolab.collectives.observe import Checked, Linked, Meter, Span, Tracer, overlap_seconds
from zerolab.collectives.ring import LocalCollectives, RingCollectives
from zerolab.collectives.shared.collectives import SharedMemoryCollectives
from zerolab.collectives.torch_ import TorchCollectives
from zerolab.collectives.transport import LocalTransport, Request, Transport
from zerolab.errors import InputError

IMPLEMENTATIONS: dict[str, Callable[[Transport], Collectives]] = {
    "shared": SharedMemoryCollectives,
    "ring": RingCollectives,
    "torch": TorchCollectives,
    "local": LocalCollectives,
    "virtual": VirtualCollectives,
}


def build(
    transport: Transport,
    impl: str = "ring",
    link: Link | None = None,
    trace: bool = False,
    check: bool = False,
) -> Collectives:
    """Collectives `impl` ("shared", "ring", "torch", "local" or "virtual") on a transport, metered, and linked, checked
    or traced if asked for. `comm.meter` and `comm.tracer` hold what was counted and recorded."""
    if impl not in IMPLEMENTATIONS:
        raise InputError(f"there are no collectives {impl!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    if link is not None:
        transport = Linked(transport, link)
    # In shared memory ranks compare their calls anyhow, by their notes; and there a call may not wait for a message.
    if check and impl != "shared":
        transport = Checked(transport)
    transport = meter = Meter(transport)
    tracer = None
    if trace:
        transport = tracer = Tracer(transport)
    comm = IMPLEMENTATIONS[impl](transport)
    comm.meter, comm.tracer = meter, tracer
    return comm


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
