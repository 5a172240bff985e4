"""What one rank needs for a training run, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.memory.states import RECIPES, predict_states
from zerolab.plan.shapes import Shape

OFFLOADS = ("nothing", "optimizer", "optimizer and parameters")
GB = 10**9


@dataclass(frozen=True)
class Run:
    """A training run. `batch` counts sequences a rank, of `tokens` tokens; `recipe` names the bytes a parameter
    (`zerolab.memory.RECIPES`); `offload` says what lies in the host's memory instead of the GPU's."""

    shape: Shape
    ranks: int = 8
    stage: int = 0
    recipe: str = "mixed"
    batch: int = 1
    tokens: int = 1024
    checkpointing: bool = False
    offload: str = "nothing"

    def __post_init__(self) -> None:
        check_count("ranks", self.ranks)
        if self.offload not in OFFLOADS:
            raise InputError(f"offload is {self.offload!r}; choose one of {', '.join(OFFLOADS)}")
        if self.offload == "optimizer and parameters" and self.stage != 3:
            raise InputError(
                f"parameters can be offloaded at stage 3, where nobody keeps them whole, not at {self.stage}; offload "
                "the optimizer, or take stage 3"
            )
        if self.tokens > self.shape.context:
            raise InputError(
                f"{self.tokens} tokens are more than the context of {self.shape.name}, {self.shape.context}; give "
                "fewer, or another model"
            )
        self.needs()

    def needs(self) -> dict[str, float]:
        """Bytes on one rank's GPU by kind, and "host" for what lies outside it."""
        states = predict_states(self.shape.parameters, self.ranks, self.stage, self.recipe)
        host = 0.0
        if self.offload != "nothing":
            host += states.pop("optimizer_states")
            states["optimizer_states"] = 0.0
            if self.stage >= 2:
                # Gradients go where they are used, as soon as they are reduced; whole ones stay.
                host += states["gradients"]
                states["gradients"] = 0.0
        if self.offload == "optimizer and parameters":
            host += states["parameters"]
            states["parameters"] = 0.0
        travelling = 2 * self.shape.layer_parameters * 2.0 if self.stage == 3 and self.ranks > 1 else 0.0
        activations = self.shape.activation_bytes(self.batch, self.tokens, self.checkpointing)
        # The formula counts 16 bits; fp32 activations are twice as long.
        width = RECIPES[self.recipe].parameter / 2 if self.recipe == "fp32" else 1
        return {**states, "gathered_units": travelling * width, "activations": activations * width, "host": host}

    def gpu_bytes(self) -> float:
        """All that one GPU must hold. Not in it: the head's logits, the framework's own, and fragmentation."""
        return sum(nbytes for kind, nbytes in self.needs().items() if kind != "host")


def advice(run: Run, gpu_bytes: float) -> Run | None:
    """The run with the smallest change that makes it fit into a GPU: itself, else one of `changes`, in that order;
    None if none of them does."""
    return next((changed for changed in changes(run) if changed.gpu_bytes() <= gpu_bytes), None)


def changes(run: Run) -> Iterator[Run]:
    """From what costs least to what costs most: a higher stage, recomputation, a smaller batch, the host, and last more
    ranks."""
    yield run
    stages = [stage for stage in range(run.stage, 4) if stage in RECIPES[run.recipe].stages]
    for ranks in [run.ranks, *(2**power for power in range(1, 14) if 2**power > run.ranks)]:
        for offload in ("nothing", "optimizer") if run.offload == "nothing" else (run.offload,):
            for batch in dict.fromkeys((run.batch, 1)):
                for checkpointing in dict.fromkeys((run.checkpointing, True)):
                    for stage in stages:
                        yield replace(
                            run, ranks=ranks, stage=stage, batch=batch, checkpointing=checkpointing, offload=offload
                        )
