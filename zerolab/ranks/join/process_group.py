"""Collectives in a process group that somebody else has made: a script's own, torchrun's, a test's.

    torch.distributed.init_process_group("gloo")
    comm = from_process_group()
    engine = ZeroEngine(model, comm, stage=2, lr=1e-3)

`launch` starts ranks and joins them; here they are there already, and this process is one of them. The group stays with
whoever made it: nothing here ends it.
"""

from __future__ import annotations

import zlib

import torch
import torch.distributed as dist

from zerolab.collectives import Collectives, Link, build
from zerolab.collectives.shared.peers import host_number, is_possible
from zerolab.collectives.torch_ import backends_of, carriers, connect, new_group
from zerolab.errors import InputError
from zerolab.ranks.job import check_timed, choose_collectives, wanted
from zerolab.ranks.process_transport import ProcessTransport, made


def from_process_group(
    group: dist.ProcessGroup | None = None,
    device: torch.device | str | None = None,
    *,
    collectives: str = "auto",
    link: Link | None = None,
    trace: bool = False,
    check: bool = False,
) -> Collectives:
    """This rank's `Collectives` in `group`, by default the one that `torch.distributed.init_process_group` made. Every
    rank of the group calls it, with the same arguments but for the device.

    device       where the ranks compute; default: the current GPU if NCCL joins the group, else the CPU
    collectives  "shared", "ring" or "torch", as in `launch`. "auto": shared memory where all ranks run on the CPU of
                 one Linux machine, torch's where NCCL joins them, the ring elsewhere and where a `link` is
                 simulated. NCCL's order of addition is not fixed (`zerolab.ranks.job`).
    link, trace, check  as in `launch`

    `comm.rank` and `comm.size` are those of the group.

    Raises:
        InputError: some ranks would take a GPU and others the CPU, a link or a trace is asked for on GPUs, or there are
            no such collectives.
    """
    backends = backends_of(group)  # type: ignore[arg-type]  # without a group torch says so
    group = group or dist.group.WORLD
    assert group is not None
    device = choose_device(device, backends)
    check_timed(device, link, trace)
    nccl = device.type == "cuda" and backends.get("cuda") == "nccl"
    carrier, host = carriers(group, nccl)
    if not nccl and (used := made[carrier.group_name]):
        # Calls of two comms carry the same numbers, and would take each other's messages: this one's has its own group.
        number = zlib.crc32(f"{carrier.group_name} {used}".encode())
        made[carrier.group_name] += 1
        host = carrier = new_group(dist.get_process_group_ranks(carrier), number, dist.get_backend_config(carrier))
    transport = ProcessTransport(carrier, device, nccl, host=host)
    one_machine = hold_alike(transport)
    if nccl:
        connect(carrier, device)
    linked = link is not None
    impl = choose_collectives(
        wanted(collectives, linked), [device.type] * transport.size, one_machine, linked, nccl=nccl
    )
    return build(transport, impl=impl, link=link, trace=trace, check=check)


def choose_device(device: torch.device | str | None, backends: dict[str, str]) -> torch.device:
    if device is None:
        device = "cuda" if backends.get("cuda") == "nccl" and torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    named = device.type != "cuda" or device.index is not None
    return device if named else torch.device("cuda", torch.cuda.current_device())


def hold_alike(transport: ProcessTransport) -> bool:
    """Whether all ranks can open each other's memory, as far as their numbers tell. Raises an InputError on all of them
    where a part is on GPUs: each would choose its own collectives, and wait for the others for ever."""
    host = host_number() if is_possible() else -1 - transport.rank
    rows = transport.all_gather_ints([host, transport.device.type == "cuda"])
    on_gpu = [gpu for _, gpu in rows]
    if len({*on_gpu}) > 1:
        raise InputError(
            f"rank {on_gpu.index(0)} of the group is on the CPU, since it sees no GPU or was told so, and rank "
            f'{on_gpu.index(1)} is on a GPU; give each rank a GPU, or all of them device="cpu"'
        )
    return len({host for host, _ in rows}) == 1
