"""Which part of a whole parameter a rank has, along an axis of the mesh; and
the whole again from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerolab.collectives.contract import Collectives
from zerolab.errors import InputError
from zerolab.parallel.exchange import move
from zerolab.parallel.mesh import Mesh


@dataclass(frozen=True)
class Cut:
    """How a parameter is cut along an axis.

    dim     the dim that is shared out
    parts   how many things lie in it one after the other, each of which
            is shared out by itself: queries, keys and values, say
    length  of the whole in that dim, without padding
    """

    axis: str
    dim: int
    parts: int
    length: int


def sharded(parameter: Any) -> dict[str, int]:
    """Along which axes a parameter is cut, and in which dim: {"tp": 0}."""
    cut: Cut | None = getattr(parameter, "cut", None)
    return {} if cut is None else {cut.axis: cut.dim}


def shard(
    parameter: nn.Parameter,
    comm: Collectives,
    axis: str,
    dim: int,
    parts: int = 1,
    pad: bool = False,
) -> nn.Parameter:
    """This rank's part of a whole parameter, as a parameter that says how it
    was cut. What ranks cannot share evenly is padded with zeros, or
    refused."""
    cut = Cut(axis, dim, parts, parameter.shape[dim])
    if cut.length % (parts * comm.size) and not pad:
        raise InputError(
            f"{axis} {comm.size} does not divide dim {dim} of a parameter of shape "
            f"{tuple(parameter.shape)}; choose a divisor of heads, kv_heads, the "
            "feed-forward width and the number of experts"
        )
    own = part_of(parameter.detach(), cut, comm).clone()
    made = nn.Parameter(own, parameter.requires_grad)
    made.cut = cut  # type: ignore[attr-defined]
    return made


def part_of(whole: Tensor, cut: Cut, comm: Collectives) -> Tensor:
    """What this rank has of a whole tensor."""
    dim, missing = cut.dim, -cut.length % (cut.parts * comm.size)
    if missing:
        whole = F.pad(whole.movedim(dim, -1), (0, missing)).movedim(-1, dim)
    shared = whole.unflatten(dim, (cut.parts, comm.size, -1))
    return shared.select(dim + 1, comm.rank).flatten(dim, dim + 1)


@torch.no_grad()
def unshard(tensor: Tensor, parameter: nn.Parameter, mesh: Mesh) -> Tensor:
    """The whole of what this rank has a part of: a parameter's own values, or
    what has its shape, such as a gradient. A collective."""
    cut: Cut | None = getattr(parameter, "cut", None)
    if cut is None:
        return tensor
    comm = mesh.comms[cut.axis]
    return joined(move(tensor, comm, "all_gather", cut.dim).chunk(comm.size, cut.dim), cut)


def joined(parts: Sequence[Tensor], cut: Cut) -> Tensor:
    """The whole from all ranks' parts, in the order of the axis."""
    dim = cut.dim
    stacked = torch.stack([*parts], dim).unflatten(dim + 1, (cut.parts, -1))
    by_part = stacked.transpose(dim, dim + 1).flatten(dim, dim + 2)
    return by_part.narrow(dim, 0, cut.length)
