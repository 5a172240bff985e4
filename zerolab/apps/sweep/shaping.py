"""Hosts and wires as command lines of `ip` and `tc` (iproute2): a switch with a port for each host, and a wire between.

Each host is a network namespace without a name, which lasts as long as a process is in it: with the last one the kernel
takes away the namespace, its end of the wire, the other end, and what shapes both. There is nothing to clear, whatever
ends those processes.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerolab.collectives import Link

NETWORK = "10.231.9"
DEVICE = "wire0"
"""A host's end of its wire, in its own namespace."""
MTU = 9000
"""Bytes of a packet: headers take less than a hundredth of the wire."""
QUEUE_BYTES = 1 << 24
LEAST_BURST = 2 * MTU
BURST_SECONDS = 100e-6
"""What a wire that was idle lets through at once, in seconds at its rate: little beside a message, and more than a
kernel's timer is late."""
Command = list[str]


def address(host: int) -> str:
    return f"{NETWORK}.{host + 1}"


def port(host: int) -> str:
    """The switch's end of a host's wire."""
    return f"port{host}"


def switch() -> list[Command]:
    """A switch in this namespace."""
    return [words("ip link add switch mtu {} type bridge", MTU), words("ip link set switch up")]


def wire(host: int, process: int, link: Link | None) -> list[Command]:
    """A wire from the switch into the namespace that a process is in, shaped on its way to the host."""
    end = port(host)
    return [
        words("ip link add {} mtu {} type veth peer name {} mtu {} netns {}", end, MTU, DEVICE, MTU, process),
        words("ip link set {} master switch up", end),
        *shaped(end, link, delayed=False),
    ]


def host_end(host: int, link: Link | None) -> list[Command]:
    """In a host's namespace: its own address, and its end of the wire, shaped on the way out."""
    return [
        words("ip link set lo up"),
        words("ip address add {}/24 dev {}", address(host), DEVICE),
        words("ip link set {} up", DEVICE),
        *shaped(DEVICE, link, delayed=True),
    ]


def shaped(device: str, link: Link | None, delayed: bool) -> Iterator[Command]:
    """What leaves a device leaves it at the link's bandwidth (a token bucket); with `delayed` its latency later, so
    that a message is late once on its way through two devices."""
    if link is None:
        return
    bits = round(link.gbit_per_s * 1e9)
    burst = max(LEAST_BURST, round(bits / 8 * BURST_SECONDS))
    yield words(
        "tc qdisc add dev {} root handle 1: tbf rate {}bit burst {}b limit {}b", device, bits, burst, QUEUE_BYTES
    )
    if delayed and link.latency_us:
        packets = QUEUE_BYTES // MTU
        yield words(
            "tc qdisc add dev {} parent 1:1 handle 2: netem delay {:g}us limit {}", device, link.latency_us, packets
        )


def words(line: str, *values: object) -> Command:
    return line.format(*values).split()
