"""What a training run is: the one description that the planner, `zerolab train` and the course's controls read."""

from __future__ import annotations

from dataclasses import dataclass

from zerolab.apps.plan.instances import check_instances
from zerolab.apps.plan.shapes import Shape
from zerolab.apps.plan.trace import ATTENTION
from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.memory.traffic import check_reduction
from zerolab.offload.formats import check_places
from zerolab.offload.places import NO_OFFLOAD, Offload
from zerolab.precision.recipe import Precision, find_precision
from zerolab.zero.limits import NO_LIMITS, Stage3Limits
from zerolab.zero.table import check_stage

OFFLOADS = {
    "nothing": NO_OFFLOAD,
    "optimizer": Offload("host"),
    "optimizer and parameters": Offload("host", "host"),
}
"""What may lie in the host's memory instead of the GPU's, by name."""


@dataclass(frozen=True)
class RunSpec:
    """A training run: its model, its ranks, and what is sharded, cast, moved and computed at a time.

    shape                   the model's sizes
    ranks                   N, all ranks
    stage                   of ZeRO: 0, 1, 2 or 3
    precision               dtypes of the states: a name in `PRECISIONS`, a Precision, or None for fp32 as it is
    micro_batch_size        sequences that a rank computes at a time
    micro_batches           such batches of a rank in an optimizer step, whose gradients are added up
    seq_len                 tokens of a sequence
    checkpoint_activations  recompute activations in backward instead of keeping them
    offload                 places of the states: a name in `OFFLOADS`, or an Offload
    reduction               how stage 1 reduces gradients: "reduce_scatter" or "all_reduce"
    reduce_each             gradients are reduced in every micro-batch, not only in the last
    attention               "flash", by a kernel that keeps no scores, as torch takes it on CPUs and GPUs; or "eager"
    prefetch                stage 3: the next unit is gathered while one computes
    bucket_numel            units are cut into buckets of at most so many elements
    limits                  stage 3: which parameters stay, how much comes ahead and is kept
    instances               of the sharded states (hybrid sharding): so many groups of ranks / instances ranks, each of
                            which shares them out; 1: all ranks do
    dropout                 the share of activations that a GPT-2's training leaves out
    on_gpus                 defaults are those of ranks on GPUs (`Offload.on`, `Stage3Limits.on`)

    Raises InputError for a count below 1, names that there are not, a sequence longer than the model's context, and
    what the stage cannot do.
    """

    shape: Shape
    ranks: int = 8
    stage: int = 0
    precision: Precision | str | None = "bf16"
    micro_batch_size: int = 1
    seq_len: int = 1024
    checkpoint_activations: bool = False
    offload: Offload | str = "nothing"
    micro_batches: int = 1
    reduction: str = "reduce_scatter"
    reduce_each: bool = True
    attention: str = "flash"
    prefetch: bool = True
    bucket_numel: int | None = None
    limits: Stage3Limits = NO_LIMITS
    instances: int = 1
    on_gpus: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for what in ("ranks", "micro_batch_size", "seq_len", "micro_batches", "instances"):
            check_count(what, getattr(self, what))
        check_stage(self.stage)
        check_places(self.stage, self.dtypes, self.places)
        check_instances(self.instances, self.ranks, self.stage)
        check_reduction(self.reduction)
        if self.bucket_numel is not None:
            check_count("bucket_numel", self.bucket_numel)
        if self.attention not in ATTENTION:
            raise InputError(f"attention is {self.attention!r}; choose one of {', '.join(ATTENTION)}")
        if self.seq_len > self.shape.context:
            raise InputError(
                f"{self.seq_len} tokens are more than the context of {self.shape.name}, {self.shape.context}; give "
                "fewer, or another model"
            )

    @property
    def sharing(self) -> int:
        """How many ranks share the states out among them."""
        return self.ranks // self.instances

    @property
    def dtypes(self) -> Precision | None:
        """The dtypes that `precision` stands for; None: as the model has them, which is fp32."""
        return find_precision(self.precision)

    @property
    def places(self) -> Offload:
        """The places that `offload` stands for."""
        if isinstance(self.offload, Offload):
            return self.offload
        if not isinstance(self.offload, str) or self.offload not in OFFLOADS:
            raise InputError(f"offload is {self.offload!r}; choose one of {', '.join(OFFLOADS)}")
        return OFFLOADS[self.offload]

    @property
    def batch_size(self) -> int:
        """Sequences of an optimizer step, over all ranks and micro-batches."""
        return self.ranks * self.micro_batches * self.micro_batch_size
