"""Collectives in a process group that somebody else has made: a script's own, torchrun's, a test's.

    torch.distributed.init_process_group("gloo")
    comm = from_process_group()
    engine = ZeroEngine(model, comm, stage=2, lr=1e-3)

`launch` starts ranks and joins them; here they are there already, and this process is one of them. The group stays with
whoever made it: nothing here ends it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from zerolab.collectives import IMPLEMENTATIONS, Collectives, build
from zerolab.collectives.shared.peers import host_number, is_possible
from zerolab.collectives.torch_ import backends_of, carriers, connect
from zerolab.errors import InputError
from zerolab.ranks.devices import check_timed, wanted
from zerolab.ranks.process_transport import ProcessTransport, own_carrier

if TYPE_CHECKING:
    from zerolab.collectives import Link


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
                 simulated. NCCL's order of addition is not fixed (`zerolab.ranks.devices`).
    link, trace, check  as in `launch`

    `comm.rank` and `comm.size` are those of the group. Each further comm of a group that gloo joins has a process group
    of its own, so that the calls of both may be under way at once.

    Raises:
        InputError: no group was made, this process is not in it, its backend cannot serve the device, all ranks of a
            machine would take its first GPU, some ranks would take a GPU and others the CPU, or there are no such
            collectives.
    """
    if collectives not in ("auto", *IMPLEMENTATIONS):
        raise InputError(f"there are no collectives {collectives!r}; choose auto, {', '.join(IMPLEMENTATIONS)}")
    group = _check_group(group)
    backends = backends_of(group)
    device = _choose_device(device, backends)
    _check_alike(group, device, backends)
    check_timed(device, link, trace)
    nccl = backends.get(device.type) == "nccl"
    if nccl:
        carrier, host = carriers(group, nccl)
        connect(carrier, device)
    else:
        carrier = host = own_carrier(group)
    transport = ProcessTransport(carrier, device, nccl, host=host)
    if collectives == "auto" and link is None:
        collectives = wanted(os.environ)
    if collectives == "auto":
        if transport.size == 1 or link is not None:
            collectives = "ring"
        elif nccl:
            collectives = "torch"
        else:
            collectives = "shared" if device.type == "cpu" and _share_a_machine(transport) else "ring"
    return build(transport, impl=collectives, link=link, trace=trace, check=check)


def _check_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise InputError(
            "there is no process group yet; call torch.distributed.init_process_group first, or let "
            "zerolab.ranks.launch start the ranks"
        )
    if group is None:
        group = dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InputError(
            f"rank {dist.get_rank()} is no member of this group; call from_process_group on the group's own ranks only"
        )
    if not isinstance(group, dist.ProcessGroup):
        raise InputError(
            f"group is of type {type(group).__name__}; give what torch.distributed.new_group returned, or None"
        )
    return group


def _choose_device(device: torch.device | str | None, backends: dict[str, str]) -> torch.device:
    if device is None:
        device = "cuda" if backends.get("cuda") == "nccl" and torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f'device is {device!r}; give "cpu", "cuda" or "cuda:1", or leave it out') from None
    backend = backends.get(device.type)
    if backend not in ("gloo", "nccl") or device.type not in ("cpu", "cuda"):
        joined = ", ".join(f"{kind} by {name}" for kind, name in backends.items())
        raise InputError(
            f"this process group joins {joined}, and ranks on "
            f'{device} need gloo, or NCCL on GPUs; call init_process_group("gloo") or ("nccl"), or name another device'
        )
    if device.type == "cuda" and device.index is None:
        try:
            device = torch.device("cuda", torch.cuda.current_device())
        except (AssertionError, RuntimeError):
            # As torch says it where it has no CUDA, or sees no GPU.
            raise InputError('device is "cuda", but this process sees no GPU; give "cpu", or leave it out') from None
        own = os.environ.get("LOCAL_RANK", "0")
        if backend == "nccl" and device.index == 0 and own != "0" and torch.cuda.device_count() > 1:
            raise InputError(
                f"rank {own} of this machine would compute on {device}, which is rank 0's; call "
                f"torch.cuda.set_device({own}) first, or name another device"
            )
    return device


def _check_alike(group: dist.ProcessGroup, device: torch.device, backends: dict[str, str]) -> None:
    """Refuse a group of which a part is on GPUs, on all its ranks: each would choose its own collectives, and wait for
    the others for ever. Where it joins one kind of device alone, the others are refused by themselves."""
    if backends.get("cpu") == "gloo" and "cuda" in backends:
        own = torch.tensor([device.type == "cuda"], dtype=torch.uint8, device="cpu")
        seen = [torch.zeros_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(seen, own, group=group)
        on_gpu = [bool(rank) for rank in seen]
        if any(on_gpu) and not all(on_gpu):
            raise InputError(
                f"rank {on_gpu.index(False)} of the group is on the CPU, since it sees no GPU or was told so, and rank "
                f'{on_gpu.index(True)} is on a GPU; give each rank a GPU, or all of them device="cpu"'
            )


def _share_a_machine(transport: ProcessTransport) -> bool:
    """Whether all ranks can open each other's memory, as far as their numbers tell; asked in a call of all ranks."""
    own = host_number() if is_possible() else -1 - transport.rank
    return len({host for (host,) in transport.all_gather_ints([own])}) == 1
