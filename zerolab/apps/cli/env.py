"""`zerolab env`: what a machine and its Python have, to paste into a bug report."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from zerolab import __version__
from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import Flags
from zerolab.errors import ZerolabError
from zerolab.run.spec import flag
from zerolab.system import THINGS, has
from zerolab.train.outputs import check_output, write_output

Facts = dict[str, Any]
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG",
    "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "RANK", "TMPDIR",
    "WORLD_SIZE", "ZEROLAB_COLLECTIVES", "ZEROLAB_DEVICE", "ZEROLAB_TRACEBACK",
)  # fmt: skip
"""Of the environment these are told, and no others: some hold secrets."""


class EnvFlags(Flags):
    """Report what zerolab finds on this machine, for a bug report."""

    json_: Path | None = flag("write the report to this file, too, for programs")


def main(arguments: list[str]) -> int:
    file = EnvFlags.read("zerolab env", arguments).json_
    if file is not None:
        check_output("--json", file, 2**16)
    text = json.dumps(report(), indent=1) + "\n"
    ending.print_output(text)
    if file is not None:
        write_output("the report", file, text)
    return 0


def report() -> dict[str, Facts]:
    import torch
    import torch.distributed as dist

    memory, nccl = psutil.virtual_memory(), dist.is_nccl_available()
    cores = len(psutil.Process().cpu_affinity()) if has("affinity") else os.cpu_count()
    gpus = list(map(torch.cuda.get_device_properties, range(torch.cuda.device_count())))
    return {
        "versions": {"zerolab": __version__, "python": sys.version.split()[0], "torch": str(torch.__version__)},
        "system": {
            "platform": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "cores_of_this_process": cores,
            "memory_bytes": memory.total,
            "memory_available_bytes": memory.available,
        },
        "torch": {
            "distributed": dist.is_available(),
            "gloo": dist.is_gloo_available(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl and gpus else nccl,
            "cuda": torch.version.cuda or False,
            "threads": torch.get_num_threads(),
        },
        "devices": {f"cuda:{index}": f"{gpu.name}, {gpu.total_memory} bytes" for index, gpu in enumerate(gpus)},
        "places": {"memfd": has("memfd"), **temporary_folder()},
        "missing": {name: thing.instead for name, thing in THINGS.items() if not has(name)},
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "packages": packages(),
    }


def temporary_folder() -> Facts:
    """Where things rest on disk by default, and whether their bytes go past the page cache."""
    from zerolab.offload.files import SwapFile

    folder = tempfile.gettempdir()
    try:
        file = SwapFile(folder, "env", [1])
        direct: bool | str = file.direct or file.why_not
        file.close()
    except (ZerolabError, OSError) as error:
        direct = str(error)
    return {"temporary_folder": folder, "free_bytes": shutil.disk_usage(folder).free, "direct_io": direct}


def packages() -> Facts:
    """Versions of what zerolab and its extras ask for, or None; nothing of a bare checkout."""
    asked = (metadata.requires("zerolab") or []) if version_of("zerolab") else []
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in asked}
    return {name: version_of(name) for name in sorted(names - {"zerolab"})}


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
