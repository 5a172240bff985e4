"""The exercise of lesson 07 on what each tier holds."""

from __future__ import annotations

from itertools import product
from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

TEXT = """
Predict: what each tier holds

`numel` parameters, which the `ranks` divide, at stage 0, 1, 2 or 3. `recipe` says how many bytes an element has in
each state: `recipe["params"]`, `recipe["grads"]`, `recipe["main_params"]` and `recipe["moments"]`, the last for both
moments together. `optimizer` is the place of main parameters and moments, and `parameters` that of the parameters:
`"device"`, `"host"` or `"disk"`; below stage 3 it is `"device"`. At stage 0 nothing is shared out, the optimizer
neither.

- Gradients rest on the device. Where they are shards (stages 2 and 3) and the optimizer is off the device, they rest
  on the host.
- If parameters and main parameters have as many bytes, they are one copy and count once, as part of `params`, as long
  as both rest in the same memory. In two places, or both on the disk, they are two.
- On the disk the parameters are one record, main parameters and moments another. Each record takes whole pages of
  4,096 bytes.

Return what *one* rank keeps between two steps, as `{"device": ..., "host": ..., "disk": ...}`. The library's own
prediction has to agree.

The check draws 1 to 8 ranks, all stages and places, recipes with and without one copy of both, and records that fill
their last page or do not. About ten lines.
"""


def tier_bytes(numel: int, ranks: int, stage: int, recipe: dict, optimizer: str, parameters: str) -> dict[str, int]:
    """Bytes that a rank keeps on each tier."""
    ### BEGIN SOLUTION
    shard = numel // ranks
    params, grads, states = (shard if stage >= first else numel for first in (3, 2, 1))
    one_copy = recipe["params"] == recipe["main_params"] and optimizer == parameters != "disk"
    width = recipe["moments"] + (0 if one_copy else recipe["main_params"])
    used_at = "host" if stage >= 2 and optimizer != "device" else "device"
    book = {"device": 0, "host": 0, "disk": 0}
    rests = [(parameters, params * recipe["params"]), (used_at, grads * recipe["grads"]), (optimizer, states * width)]
    for place, nbytes in rests:
        book[place] += -(-nbytes // 4096) * 4096 if place == "disk" else nbytes
    return book
    ### END SOLUTION


MISTAKES = r"""
Nothing is sharded there; which states are shards at this stage?
    numel // ranks => numel
Parameters are whole up to stage 2
    (3, 2, 1) => (2, 2, 1)
You shard everything at every stage above 0
    (3, 2, 1) => (1, 1, 1)
At stage 0 nothing is shared out, the optimizer's states neither
    (3, 2, 1) => (3, 2, 0)
Sharded gradients rest where they are used; on which tier is the step computed?
    used_at = => used_at = "device" or
Only sharded gradients go to the host; whole ones stay on the device
    stage >= 2 and optimizer => optimizer
Gradients wait on the host, also where the states are on the disk
    "host" if stage => optimizer if stage
Parameters that are the main parameters count once where both rest in the same memory
    one_copy = => one_copy = False and
On the disk the two are separate records, even with the same dtype
    parameters != "disk" => parameters
One copy cannot be in two places: then there are parameters and main parameters
    and optimizer == parameters != "disk" =>
On the disk a record takes whole pages of 4,096 bytes
    -(-nbytes // 4096) * 4096 => nbytes
Parameters and states are two records, and each is rounded up to whole pages
    -(-nbytes // 4096) * 4096 => nbytes
    return book => return book | {"disk": -(-book["disk"] // 4096) * 4096}
"""
RECIPES = {"bf16": (2, 2, 4, 8), "fp32": (4, 4, 4, 8), "bf16_fp32_grads": (2, 4, 4, 8), "pure_bf16": (2, 2, 2, 4)}
PLACES = ("device", "host", "disk")


def tier_cases(rng: Random) -> list[Case]:
    # Where some mistakes come to the same, they part in a case that comes earlier.
    return [
        drawn(rng, rng.randint(1, 5), stage, name, optimizer, parameters)
        for stage, name, optimizer, parameters in product(range(4), RECIPES, PLACES, PLACES)
        if parameters == "device" or stage == 3
    ] + [drawn(rng, 4, 2, "bf16", "disk", "device", 4096)]


def drawn(rng, ranks, stage, name, optimizer, parameters, unit=64):
    recipe = dict(zip(("params", "grads", "main_params", "moments"), RECIPES[name], strict=True))
    while True:
        shard = unit * rng.randint(20, 900)
        # Two records in whole pages are often, but not always, more than their sum in whole pages.
        rests = [-shard * recipe["params"] % 4096, -shard * (recipe["main_params"] + recipe["moments"]) % 4096]
        if {optimizer, parameters} != {"disk"} or sum(rests) >= 4096:
            return Case([(ranks * shard, ranks, stage, recipe, optimizer, parameters)])


LOOK = "Write down a line each for parameters, gradients and states: how many elements, how many bytes, and where"
EXERCISE = Exercise(
    "tier_bytes",
    tier_cases,
    (Claim("what you predict is what a rank keeps", Gives("", LOOK)),),
    run=alone,
    hints=(
        "First how many elements a rank keeps of parameters, gradients and states, then where each of the three rests.",
        "A dictionary of three zeros; then each of the three adds its bytes to its place.",
        "The two special cases: one copy of parameters that are main parameters, in one memory; whole pages on disk.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(tier_bytes,),
    points=2,
)
