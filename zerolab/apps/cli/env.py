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
import torch
import torch.distributed as dist

from zerolab import __version__
from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser, with_dashes
from zerolab.errors import ZerolabError
from zerolab.offload.files import SwapFile
from zerolab.system import THINGS, has
from zerolab.train.outputs import check_output, write_output

Facts = dict[str, Any]
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG",
    "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "RANK", "TMPDIR",
    "WORLD_SIZE", "ZEROLAB_COLLECTIVES", "ZEROLAB_DEVICE", "ZEROLAB_TRACEBACK",
)  # fmt: skip
"""Of the environment these are told, and no others: some hold secrets."""


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zerolab env",
        description="Report what zerolab finds on this machine: versions, torch's backends, devices, cores, memory and "
        "what the system offers. Paste it into a bug report; it names no files of yours but the temporary folder.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the report to this file, too, for programs")
    given = parser.parse_args(with_dashes(arguments))
    if given.json is not None:
        check_output("--json", given.json, 2**16)
    found = report()
    ending.show(text_of(found))
    if given.json is not None:
        write_output("the report", given.json, json.dumps(found, indent=1) + "\n")
    return 0


def report() -> dict[str, Facts]:
    """What there is, by subject: numbers, texts, truth values and lists of them."""
    memory = psutil.virtual_memory()
    return {
        "versions": {"zerolab": __version__, "python": sys.version.split()[0], "torch": str(torch.__version__)},
        "system": {
            "platform": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "cores_of_this_process": len(psutil.Process().cpu_affinity()) if has("affinity") else os.cpu_count(),
            "memory_bytes": memory.total,
            "memory_available_bytes": memory.available,
        },
        "torch": backends(),
        "devices": devices(),
        "places": {"memfd": has("memfd"), **temporary_folder()},
        "missing": {name: thing.instead for name, thing in THINGS.items() if not has(name)},
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "packages": packages(),
    }


def backends() -> Facts:
    nccl = dist.is_nccl_available()
    return {
        "distributed": dist.is_available(),
        "gloo": dist.is_gloo_available(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl and torch.cuda.is_available() else nccl,
        "cuda": torch.version.cuda or False,
        "threads": torch.get_num_threads(),
    }


def devices() -> Facts:
    """Each GPU with its memory; none on a machine of CPUs alone."""
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {f"cuda:{index}": f"{gpu.name}, {gpu.total_memory} bytes" for index, gpu in enumerate(found)}


def temporary_folder() -> Facts:
    """Where things rest on disk unless a run says otherwise, and whether their bytes go past the page cache."""
    folder = tempfile.gettempdir()
    try:
        file = SwapFile(folder, "env", [1])
        direct: bool | str = file.direct or file.why_not
        file.close()
    except (ZerolabError, OSError) as error:
        direct = str(error)
    return {"temporary_folder": folder, "free_bytes": shutil.disk_usage(folder).free, "direct_io": direct}


def packages() -> Facts:
    """What zerolab and its extras ask for: installed versions, or None."""
    try:
        asked = metadata.requires("zerolab") or []
    except metadata.PackageNotFoundError:
        return {}
    names = dict.fromkeys(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in asked)
    return {name: version_of(name) for name in sorted(names) if name != "zerolab"}


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def text_of(found: dict[str, Facts]) -> str:
    """The report for people: a subject, and its facts indented below it, so that it may be pasted anywhere."""
    lines: list[str] = []
    for subject, facts in found.items():
        lines.append(subject)
        width = max(map(len, facts), default=0)
        lines += [f"  {name:<{width}}  {words(name, value)}" for name, value in facts.items()] or ["  none"]
    return "\n".join(lines) + "\n"


def words(name: str, value: Any) -> str:
    if value is None:
        return "not installed"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,} ({value / 2**30:.1f} GiB)" if name.endswith("_bytes") else str(value)
