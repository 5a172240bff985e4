"""Where states rest: device, host or disk (ZeRO-Offload, arXiv 2101.06840; ZeRO-Infinity, arXiv 2104.07857).

    optimizer    main parameters and moments. Off the device the step is computed on the host, by torch's fused AdamW.
    parameters   at stage 3, each rank's shards of the parameters

Where the optimizer is off the device, sharded gradients (stages 2 and 3) rest on the host: that is where they are used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.precision.recipe import Precision

if TYPE_CHECKING:
    import torch

TIERS = ("device", "host", "disk")
TIER_OF = {"none": "device", "cpu": "host", "nvme": "disk"}
"""DeepSpeed's names of the places, and ours."""
SUB_GROUP = 1 << 22
"""Elements of a sub-group, few enough to stay, nearly, in a processor's caches during a step."""
SUB_GROUP_ON_GPU = 1 << 26
"""A GPU takes a millisecond for so many, in which the host queues the next; in fp32 they are 268 MB."""


@dataclass(frozen=True)
class Offload:
    """Places of states, and how they travel. Counts are elements.

    path              the folder of the swap files; the disk needs one
    buffer_count      host buffers through which the disk's states pass: 1 reads, computes and writes in turn, 2 read
                      ahead, 3 also write behind
    sub_group_numel   the step updates so many elements at a time, if states rest elsewhere or in another dtype than the
                      step computes with; None: `SUB_GROUP`, and `SUB_GROUP_ON_GPU` where a GPU steps
    buffer_numel      parameters on disk: elements of a host buffer; None: as many as the largest shard of a bucket
    max_in_cpu        of parameters on disk, so many elements of a rank's shards stay on the host
    """

    optimizer: str = "device"
    parameters: str = "device"
    path: Path | str | None = None
    buffer_count: int = 3
    sub_group_numel: int | None = None
    buffer_numel: int | None = None
    max_in_cpu: int = 0

    def __post_init__(self) -> None:
        for what in ("optimizer", "parameters"):
            if getattr(self, what) not in TIERS:
                raise InputError(f"offload {what} to {getattr(self, what)!r}; choose one of {', '.join(TIERS)}")
        check_count("buffer_count", self.buffer_count)
        for what in ("sub_group_numel", "buffer_numel"):
            if getattr(self, what) is not None:
                check_count(what, getattr(self, what))
        check_count("max_in_cpu", self.max_in_cpu, least=0)
        if self.on_disk and self.path is None:
            raise InputError(
                "states go to the disk but no path is given; name a folder there, in a command by offload_path"
            )
        if self.max_in_cpu and self.parameters != "disk":
            raise InputError(
                f"max_in_cpu is {self.max_in_cpu} but parameters rest on the {self.parameters}; it says how many of "
                "those on disk stay on the host, so leave it out"
            )

    def shards_on_disk(self, numels: Iterable[int]) -> list[int]:
        """Of a rank's shards, of so many elements each, those on the disk: all but the first, up to `max_in_cpu`."""
        found, room = [], self.max_in_cpu
        for number, numel in enumerate(numels):
            if numel <= room:
                room -= numel
            else:
                found.append(number)
        return found

    @property
    def moves(self) -> bool:
        """Whether any state rests off the device."""
        return not self.optimizer == self.parameters == "device"

    def on(self, gpus: bool) -> Offload:
        """These places with `sub_group_numel` filled in where nobody gave it and a GPU steps."""
        if not gpus or self.optimizer != "device" or self.sub_group_numel is not None:
            return self
        return replace(self, sub_group_numel=SUB_GROUP_ON_GPU)

    def step_device(self, device: torch.device) -> torch.device:
        """Where the optimizer of ranks on `device` steps: there, or on the host beside its states."""
        import torch

        return device if self.optimizer == "device" else torch.device("cpu")

    @property
    def on_disk(self) -> bool:
        """Whether any state rests on a disk."""
        return "disk" in (self.optimizer, self.parameters)

    @property
    def folder(self) -> Path:
        assert self.path is not None
        return Path(self.path).expanduser()


NO_OFFLOAD = Offload()
"""Everything on the device."""


def ledger(tier: str, kind: str) -> str:
    """The name of a kind of state in a tier's ledger: "gradients", "host:gradients", "disk:parameters"."""
    return kind if tier == "device" else f"{tier}:{kind}"


def check_places(stage: int, precision: Precision | None, offload: Offload) -> None:
    """Refuse what a stage cannot do: parameters rest elsewhere, or are cast when they are gathered, at stage 3 only."""
    if offload.parameters != "device" and stage != 3:
        raise InputError(
            f"parameters can rest on the {offload.parameters} at stage 3, where nobody keeps them whole, not at stage "
            f"{stage}; offload the optimizer, or take stage 3"
        )
    if precision is not None and stage not in precision.stages:
        raise InputError(
            f"precision {precision.name} has no stage {stage}, since main parameters can be what is sharded at stage 3 "
            "only; take stage 3, or another precision"
        )


def check_folder(folder: Path, nbytes: int) -> None:
    """Refuse a folder in which a file of `nbytes` cannot be made; nothing is written."""
    if not folder.is_dir():
        what = "is not a folder; name" if folder.exists() else "does not exist; create it, or name"
        raise InputError(f"{folder}, which is to hold a swap file, {what} another folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}, which is to hold a swap file, is not writable; name another folder")
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise InputError(
            f"a swap file of {nbytes} bytes does not fit into {folder}, where {free} bytes are free; make room, or "
            "name a folder on another disk"
        )
