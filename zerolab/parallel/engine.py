"""Training on a mesh: ZeRO over the data-parallel ranks, of a model whose parameters are sharded along other axes."""

from __future__ import annotations

from typing import Any

from torch import nn

from zerolab.parallel.mesh import Mesh
from zerolab.zero.bucket import Bucket
from zerolab.zero.step import norm_of_partials, partial_norm
from zerolab.zero.zero_engine import ZeroEngine


class GridEngine(ZeroEngine):
    """A `ZeroEngine` on a mesh, with the same settings: states are sharded over dp_shard and replicated over
    dp_replicate. Ranks that differ along tp get the same part of a batch; the norm counts each element once."""

    def __init__(self, model: nn.Module, mesh: Mesh, stage: int, lr: float | None = None, **settings: Any) -> None:
        if not hasattr(model, "mesh"):
            model.mesh = mesh  # type: ignore[assignment]
        self.mesh = mesh
        if mesh.sizes["dp_replicate"] > 1:
            settings["replicate"] = mesh.comms["dp_replicate"]
        super().__init__(model, mesh.comms["dp_shard"], stage, lr, **settings)

    def gradient_norm(self, buckets: list[Bucket], norm_type: float) -> float:
        sizes = self.mesh.sizes
        # Each rank counts its own shard, which so many ranks have.
        holders = {
            slot.name: sizes["dp_replicate"] * (1 if getattr(parameter, "sharded", {}) else sizes["tp"])
            for bucket in buckets
            for parameter, slot in zip(bucket.parameters, bucket.layout.slots, strict=True)
        }
        return norm_of_partials(self.mesh.world, partial_norm(self.comm, buckets, norm_type, holders), norm_type)
