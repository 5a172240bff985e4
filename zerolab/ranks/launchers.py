"""Who has started this process as a rank, and what it says of its place: torchrun, srun, or an mpirun.

All of them set variables of the environment, each under names of its own. They are told here in torchrun's names,
which everybody else reads: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import NamedTuple

from zerolab.errors import InputError

LOCAL_RANK, LOCAL_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
MEETING = ("MASTER_ADDR", "MASTER_PORT")
"""Where ranks meet; srun and mpirun leave it to the job script."""


class Launcher(NamedTuple):
    """A launcher's names for a rank's number, the number of ranks, and both on the rank's own machine."""

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", LOCAL_RANK, LOCAL_SIZE)
# A launcher that was started inside another's job comes first. srun names the tasks of each node in one variable.
OTHERS = (
    Launcher(
        "Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher(
        "MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    Launcher("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # A batch script finds SLURM_PROCID, too, and no SLURM_STEP_NUM_TASKS: it is one process, no rank.
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)  # fmt: skip


def adopt(environment: MutableMapping[str, str]) -> None:
    """Say a rank's place in torchrun's names, where another launcher has said it; what is set already stays.

    Raises InputError where a launcher has started several ranks and nobody says where they meet: each would train
    alone.
    """
    own = place_in(environment, TORCHRUN)
    for launcher in OTHERS:
        place = place_in(environment, launcher)
        if place is None or (own is not None and place != own):
            continue
        if own is None:
            missing = [name for name in MEETING if not environment.get(name)]
            if place[1] == 1:
                continue
            if missing:
                raise InputError(
                    f"{launcher.name} has started this process as rank {place[0]} of {place[1]}, and "
                    f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set, so the ranks cannot meet; "
                    "set MASTER_ADDR to the first machine's name and MASTER_PORT to a free port, on all ranks alike"
                )
            own = place
            environment["RANK"], environment["WORLD_SIZE"] = map(str, place)
        for name, value in local_place(environment, launcher):
            environment.setdefault(name, value)


def place_in(environment: Mapping[str, str], launcher: Launcher) -> tuple[int, int] | None:
    """The rank's number and the number of ranks, if this launcher has said both."""
    said = environment.get(launcher.rank, ""), environment.get(launcher.size, "")
    return (int(said[0]), int(said[1])) if all(value.isdecimal() for value in said) else None


def local_place(environment: Mapping[str, str], launcher: Launcher) -> Iterator[tuple[str, str]]:
    """What a launcher says of a rank's place on its machine, in torchrun's names."""
    if environment.get(launcher.local_rank, "").isdecimal():
        yield LOCAL_RANK, environment[launcher.local_rank]
    size = environment.get(launcher.local_size, "")
    if launcher.name == "srun":
        node, sizes = environment.get("SLURM_NODEID", "0"), tasks_by_node(size)
        size = str(sizes[int(node)]) if node.isdecimal() and int(node) < len(sizes) else ""
    if size.isdecimal():
        yield LOCAL_SIZE, size


def local_rank_in(environment: Mapping[str, str]) -> int | None:
    """A rank's number on its machine, as whoever started it has said it; None: nobody has."""
    said = (environment.get(launcher.local_rank, "") for launcher in (TORCHRUN, *OTHERS))
    return next((int(value) for value in said if value.isdecimal()), None)


def tasks_by_node(text: str) -> list[int]:
    """Slurm's short form, such as "8(x2),4", as a number a node: [8, 8, 4]; nothing if it is no such text."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found
