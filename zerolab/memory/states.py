"""Bytes of model states from a count of parameters: what a rank keeps from step to step.

With Ψ parameters, N ranks, and P, G, O bytes a parameter for parameters, gradients and optimizer states:

    stage 0   P + G + O              stage 2   P + (G + O) / N
    stage 1   P + G + O / N          stage 3   (P + G + O) / N

This is the arithmetic of the ZeRO paper (arXiv 1910.02054, section 5 and figure 1): no padding, no activations, no
buffers. `zerolab.memory.predict` has the padding of a real layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.precision.recipe import PRECISIONS, Precision

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class StateSize:
    """What an optimizer keeps for a tensor: tensors as long as it, by name if that matters, and tensors of fixed size
    (a step counter)."""

    tensors_per_element: int
    bytes_per_tensor: int
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(f"state {at}" for at in range(self.tensors_per_element)))


@dataclass(frozen=True)
class Recipe:
    """Bytes a parameter, by state. `master` is a wider copy of the parameters that the optimizer updates, 0 where
    it updates the parameters themselves; `first` and `second` are Adam's two moments."""

    parameter: float
    gradient: float
    master: float
    first: float
    second: float
    stages: tuple[int, ...] = STAGES

    @property
    def optimizer(self) -> float:
        return self.master + self.first + self.second


RECIPES = {
    "fp32": Recipe(4, 4, 0, 4, 4),
    # ZeRO paper, section 3.1: 16-bit parameters and gradients; master copy and moments in fp32.
    "mixed": Recipe(2, 2, 4, 4, 4),
    # Megatron-LM sums gradients in fp32.
    "mixed_fp32_grads": Recipe(2, 4, 4, 4, 4),
    # FSDP2: the fp32 shard is the master. The 16-bit unit at hand comes on top, as a gathered unit.
    "fsdp2": Recipe(4, 4, 0, 4, 4, stages=(3,)),
    "pure_bf16": Recipe(2, 2, 0, 2, 2),
    # Scales of the moments left out: 3 % of them.
    "mixed_fp8_moments": Recipe(2, 2, 4, 1, 1),
}
"""Add your own: `Recipe(2, 2, 4, 1, 1)` keeps 8-bit moments."""


def recipe_of(precision: Precision) -> Recipe:
    """Bytes a parameter of a precision. The scales of 8-bit moments are left out: 4 bytes for each 128 of them."""
    size = precision.itemsize
    main, moments = size("main_params"), (size("exp_avg"), size("exp_avg_sq"))
    if precision.sharded_main:
        return Recipe(main, size("main_grads"), 0, *moments, stages=(3,))
    return Recipe(size("params"), size("main_grads"), 0 if precision.shares_main else main, *moments)


def predict_states(parameters: int, ranks: int, stage: int, recipe: str | Recipe = "mixed") -> dict[str, float]:
    """Bytes that one rank keeps of `parameters`, `gradients` and `optimizer_states`, for a model of so many
    parameters. Not rounded: a share of an odd count may end in a fraction.

    Raises InputError for a count below 1, an unknown stage or recipe, and a stage that the recipe does not have.
    """
    check_count("parameters", parameters)
    check_count("ranks", ranks)
    check_stage(stage)
    if isinstance(recipe, str):
        if recipe not in RECIPES and recipe not in PRECISIONS:
            known = ", ".join(dict.fromkeys([*RECIPES, *PRECISIONS]))
            raise InputError(f"there is no recipe {recipe!r}; choose one of {known}, or give a Recipe")
        name, recipe = recipe, RECIPES[recipe] if recipe in RECIPES else recipe_of(PRECISIONS[recipe])
    else:
        name = str(recipe)
    if stage not in recipe.stages:
        listed = ", ".join(map(str, recipe.stages))
        raise InputError(f"recipe {name} has no stage {stage}; choose stage {listed} or another recipe")

    def share(sharded_from: int) -> float:
        return parameters / ranks if stage >= sharded_from else float(parameters)

    return {
        "parameters": share(3) * recipe.parameter,
        "gradients": share(2) * recipe.gradient,
        "optimizer_states": share(1) * recipe.optimizer,
    }


def check_stage(stage: int) -> None:
    if isinstance(stage, bool) or stage not in STAGES:
        raise InputError(f"there is no ZeRO stage {stage!r}; choose 0, 1, 2 or 3")
