"""Small records, such as a rank's times and bytes, from all ranks to all ranks: as JSON, in two all-gathers."""

from __future__ import annotations

import json
from typing import Any

import torch

from zerolab.collectives.contract import Collectives
from zerolab.flat.views import has_values, numbers


def gather_records(comm: Collectives, record: Any) -> list[Any]:
    """Every rank's record (anything that JSON can hold), in rank order, on every rank."""
    text = torch.frombuffer(bytearray(json.dumps(record).encode()), dtype=torch.uint8).to(comm.device)
    own = torch.tensor([text.numel()], device=comm.device)
    lengths = numbers(comm.all_gather(own), instead=[text.numel()] * comm.size)
    padded = text.new_zeros(max(lengths))
    padded[: text.numel()] = text
    rows = comm.all_gather(padded).view(comm.size, -1).cpu()
    if not has_values(rows):
        # The other ranks do the same as this one.
        return [record] * comm.size
    return [json.loads(row[:length].numpy().tobytes()) for row, length in zip(rows, lengths, strict=True)]
