"""Collectives by the name of what carries them."""

from __future__ import annotations

from collections.abc import Callable

from zerolab.collectives.contract import Collectives
from zerolab.collectives.cost import Link
from zerolab.collectives.observe import Checked, Linked, Meter, Tracer
from zerolab.collectives.ring import LocalCollectives, RingCollectives
from zerolab.collectives.shared.collectives import SharedMemoryCollectives
from zerolab.collectives.torch_ import TorchCollectives
from zerolab.collectives.transport import Transport
from zerolab.collectives.virtual import VirtualCollectives
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
