"""What the exercises of lesson 01 are given: a chunk of a tensor, and a step around the ring."""

from __future__ import annotations

import torch

from zerolab.collectives import Collectives
from zerolab.flat.layout import chunk_bound


def chunk(tensor: torch.Tensor, index: int, ranks: int) -> torch.Tensor:
    start, stop = chunk_bound(tensor.numel(), ranks, index % ranks)
    return tensor[start:stop]


def pass_on(comm: Collectives, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    receiving = comm.irecv(incoming, (comm.rank - 1) % comm.size)
    sending = comm.isend(outgoing, (comm.rank + 1) % comm.size)
    receiving.wait()
    sending.wait()
