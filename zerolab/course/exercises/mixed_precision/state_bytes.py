"""The exercise of lesson 06 on the bytes of model states."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

TEXT = """
The cost

How many bytes of model states does one rank keep? `recipe` says the dtype of each of five states, such as

    {"params": "bf16", "main_grads": "bf16", "main_params": "fp32", "exp_avg": "fp32", "exp_avg_sq": "fp8"}

with `"fp32"` (4 bytes), `"bf16"`, `"fp16"` (2 bytes each) and `"fp8"` (1 byte). `exp_avg` and `exp_avg_sq` are Adam's
moments. `main_grads` are the gradients as they rest; main parameters belong to the optimizer's states. This is for
recipes that keep a 16-bit copy, or one copy in all; `fsdp2`, which casts a unit only when it gathers it, is not
asked.

- Where `main_params` has the dtype of `params`, there is one copy of both: `main_params` then takes nothing.
- `numel` is padded up to the next multiple of `ranks`. Padding takes room as everything else does, in whole states
  and in shards.
- Stages 0 to 3, as in lessons 03 to 05. Leave the scales of 8-bit moments out.

The check draws sizes that the ranks do not divide, 1 to 64 ranks, all stages, and mixes of these dtypes. Return a
whole number. About six lines.
"""


def state_bytes(numel: int, ranks: int, stage: int, recipe: dict[str, str]) -> int:
    """Bytes of model states that one rank keeps."""
    ### BEGIN SOLUTION
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    sharded_from = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    shard = -(-numel // ranks)
    one_copy = recipe["main_params"] == recipe["params"]
    states = [state for state in recipe if not (one_copy and state == "main_params")]
    return sum(size[recipe[state]] * shard * (1 if stage >= sharded_from[state] else ranks) for state in states)
    ### END SOLUTION


MISTAKES = """
Main parameters of the same dtype as the parameters are no second copy
    if not (one_copy and state == "main_params") =>
Main parameters of another dtype are a copy of their own, if both are as wide, too
    recipe["main_params"] == recipe["params"] => size[recipe["main_params"]] == size[recipe["params"]]
Gradients are sharded from stage 2 on, and not at stage 1
    "main_grads": 2 => "main_grads": 1
At stage 3 parameters are sharded, too
    "params": 3 => "params": 4
Main parameters belong to the optimizer, and are sharded with its moments
    "main_params": 1 => "main_params": 3
A whole state is padded, too
    shard * (1 if stage >= sharded_from[state] else ranks) => (shard if stage >= sharded_from[state] else numel)
A shard is cut off: pad up to the next multiple of N
    -(-numel // ranks) => numel // ranks
"""
STATES = ("params", "main_grads", "main_params", "exp_avg", "exp_avg_sq")


def mixes(rng: Random) -> list[dict[str, str]]:
    """Recipes with a copy of main parameters and without; one as wide as the parameters is a copy, too."""
    pairs = [("fp16", "fp32"), ("bf16", "bf16"), ("bf16", "fp32"), ("fp32", "fp32"), ("fp16", "bf16"), ("bf16", "fp16")]
    drawn = []
    for params, main in pairs:
        moments = rng.sample(("fp32", "fp32", "bf16", "fp16", "fp8"), 2)
        drawn.append((params, rng.choice((params, "fp32")), main, *moments))
    return [dict(zip(STATES, dtypes, strict=True)) for dtypes in drawn]


def cases(rng: Random) -> list[Case]:
    recipes = mixes(rng)
    # N divides none of them but the one of 1 rank; who remembers an answer by the sizes gives it for another recipe.
    sizes = [(ranks * rng.randint(50, 5000) + 2, ranks) for ranks in (3, 5, 7, 48, 64)]
    sizes = [sizes[0], *sizes, (rng.randint(500, 999), 1), (rng.randint(3, 7), 8)]
    return [
        Case(
            [(numel, ranks, stage, recipe)],
            about=f"{numel} parameters, {plural(ranks, 'rank')}, stage {stage}, recipe {' '.join(recipe.values())}",
        )
        for (numel, ranks), recipe in zip(sizes, [*recipes, recipes[0], recipes[0]], strict=True)
        for stage in range(4)
    ]


EXERCISE = Exercise(
    "state_bytes",
    cases,
    (
        Claim(
            "it is what the library predicts, for any mix of dtypes, stage and number of ranks",
            Gives(look="Write down one line a state: its bytes, and whether it is sharded at this stage"),
        ),
    ),
    run=alone,
    mistakes=MISTAKES,
    hints=(
        "A shard has ceil(numel / ranks) elements, a whole state N times as many.",
        "From which stage on is each of the five sharded? Main parameters and both moments belong to the optimizer.",
        "If main_params has the dtype of params, leave it out.",
    ),
    text=TEXT,
    answer=(state_bytes,),
    points=2,
)
