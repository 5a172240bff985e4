"""The exercise of lesson 06 on the bytes of model states. What is right is the library's own prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.mistakes import amount
from zerolab.course.judge.same import alike
from zerolab.memory.states import predict_states
from zerolab.precision import PRECISIONS, Precision
from zerolab.precision.recipe import BYTES
from zerolab.zero.table import STAGES

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


STATES = ("params", "main_grads", "main_params", "exp_avg", "exp_avg_sq")
FIRST = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
"""The stage from which a state is sharded."""


def right_bytes(numel: int, ranks: int, stage: int, recipe: dict[str, str]) -> int:
    padded = -(-numel // ranks) * ranks
    precision = replace(PRECISIONS["fp32"], **recipe)  # type: ignore[arg-type]
    return round(sum(predict_states(padded, ranks, stage, precision).values()))


def by_hand(
    numel: int,
    ranks: int,
    stage: int,
    recipe: dict[str, str],
    *,
    first: dict[str, int] | None = None,
    pad: bool = True,
    up: bool = True,
    always: bool = False,
    main: str = "if it differs",
    skip: tuple[str, ...] = (),
    sizes: dict[str, int] = BYTES,
) -> float:
    """The bytes, with a mistake or none."""
    first = FIRST | (first or {})
    shard: float = -(-numel // ranks) if up else numel // ranks
    shard = numel // ranks + 1 if always else shard
    whole = shard * ranks if pad else numel
    nbytes = 0.0
    for state, dtype in recipe.items():
        one_copy = main == "if it differs" and recipe["params"] == recipe["main_params"]
        if state in skip or (state == "main_params" and (one_copy or main == "never")):
            continue
        nbytes += (shard if stage >= first[state] else whole) * sizes[dtype]
    return nbytes


Mistake = Callable[[int, int, int, dict[str, str]], float]


def in_fp32(numel: int, ranks: int, stage: int, recipe: dict[str, str]) -> float:
    """Four bytes for all that the recipe has."""
    one_copy = recipe["params"] == recipe["main_params"]
    return by_hand(numel, ranks, stage, dict.fromkeys(STATES, "fp32"), main="never" if one_copy else "always")


MISTAKES: dict[str, Mistake] = {
    "Main parameters of the same dtype as the parameters are no second copy": partial(by_hand, main="always"),
    "Main parameters of another dtype are a copy of their own": partial(by_hand, main="never"),
    "Gradients are sharded from stage 2 on, and not at stage 1": partial(by_hand, first={"main_grads": 1}),
    "Gradients are sharded from stage 2 on, and not only at stage 3": partial(by_hand, first={"main_grads": 3}),
    "Parameters are sharded at stage 3, and not at stage 2": partial(by_hand, first={"params": 2}),
    "At stage 3 parameters are sharded, too": partial(by_hand, first={"params": 4}),
    "Main parameters belong to the optimizer, and are sharded with its moments": partial(
        by_hand, first={"main_params": 3}
    ),
    "You shard every state at every stage; stages 0 to 2 leave some whole": partial(
        by_hand, first=dict.fromkeys(STATES, 0)
    ),
    "You shard nothing; from stage 1 on a rank has only its shard of some states": partial(
        by_hand, first=dict.fromkeys(STATES, 4)
    ),
    "You are a stage ahead: stage 0 shards nothing, stage 1 the optimizer's states": partial(
        by_hand, first={state: at - 1 for state, at in FIRST.items()}
    ),
    "You are a stage behind: stage 1 shards the optimizer's states, stage 3 everything": partial(
        by_hand, first={state: at + 1 for state, at in FIRST.items()}
    ),
    "A whole state is padded, too": partial(by_hand, pad=False),
    "A shard is cut off: pad up to the next multiple of N": partial(by_hand, up=False),
    "A shard is cut off, and nothing is padded: pad up to the next multiple of N": partial(
        by_hand, up=False, pad=False
    ),
    "Where N divides the parameters there is no padding": partial(by_hand, always=True),
    "fp8 has one byte": partial(by_hand, sizes=BYTES | {"fp8": 2}),
    "The one copy is the parameters, which are whole up to stage 2, and not the shard": lambda *args: by_hand(
        *args, main="always", skip=("params",) if args[3]["params"] == args[3]["main_params"] else ()
    ),
    "Adam has two moments": partial(by_hand, skip=("exp_avg_sq",)),
    "The gradients are missing": partial(by_hand, skip=("main_grads",)),
    "That counts every state in fp32": in_fp32,
    "That is what all ranks keep together; one rank is asked for": lambda *args: args[1] * by_hand(*args),
    "That is bits; eight are a byte": lambda *args: 8 * by_hand(*args),
    "That is of one parameter; how many are there?": lambda *args: by_hand(*args) / args[0],
}


# Cases. Each asks for all four stages, because a mistake shows in how they differ.


def mixes(rng: Random) -> list[dict[str, str]]:
    """Drawn recipes, with and without a copy of main parameters, and some that have a name."""
    moments = ("fp32", "bf16", "fp16", "fp8")
    narrow = ["fp16", "bf16"]
    # As wide as the parameters, and a copy of its own all the same.
    odd = [("fp16", "bf16"), ("bf16", "fp16")]
    drawn = []
    for params, main in [(rng.choice(narrow), "fp32"), (rng.choice(narrow),) * 2, *odd]:
        first, second = rng.sample(moments, 2)
        grads = rng.choice((params, "fp32"))
        drawn.append(Precision(params, main, grads, main_grads=grads, exp_avg=first, exp_avg_sq=second))
    named = [PRECISIONS[name] for name in ("bf16", "bf16_fp32_grads", "pure_bf16", "fp32", "bf16_fp8_moments")]
    return [{state: getattr(recipe, state) for state in STATES} for recipe in drawn + named]


def cases(rng: Random) -> list[Case]:
    found = []
    for recipe in mixes(rng):
        ranks = rng.choice((3, 5, 7, 48, 64))
        # N does not divide it.
        found.append(one_case(ranks * rng.randint(50, 5000) + rng.randint(1, ranks - 1), ranks, recipe))
    found.append(one_case(rng.randint(500, 999), 1, mixes(rng)[0]))
    found.append(one_case(rng.randint(3, 7), 8, mixes(rng)[0]))
    return found


def one_case(numel: int, ranks: int, recipe: dict[str, str]) -> Case:
    listed = ", ".join(f"{state} {dtype}" for state, dtype in recipe.items())
    return Case([(numel, ranks, recipe)], about=f"{numel} parameters, {plural(ranks, 'rank')}, {listed}")


def run_stages(fn: Callable[..., Any], comm: Any, numel: int, ranks: int, recipe: dict[str, str]) -> Any:
    """Its answer for each stage. What it does to a recipe comes to light in the one that was given."""
    answers, changed = [], dict(recipe)
    for stage in STAGES:
        mine = dict(recipe)
        answers.append(fn(numel, ranks, stage, mine))
        changed = mine if mine != recipe else changed
    recipe.clear()
    recipe.update(changed)
    return answers


def right(case: Case, seen: Observation) -> str | None:
    numel, ranks, recipe = case.args[0]
    want = [right_bytes(numel, ranks, stage, recipe) for stage in STAGES]
    got = seen.records[0].value
    wrong = next((stage for stage in STAGES if not alike(got[stage], want[stage])), None)
    if wrong is None:
        return None

    def mistakes() -> dict[str, bool]:
        known = {
            says: got == [mistake(numel, ranks, stage, recipe) for stage in STAGES]
            for says, mistake in MISTAKES.items()
        }
        near = abs(got[wrong] - want[wrong]) < sum(BYTES.values()) * ranks
        otherwise = "Write down one line a state: its bytes, and whether it is sharded at this stage"
        return known | {"That is near: where does the padding go?": near, otherwise: True}

    return f"at stage {wrong} {amount(got[wrong], want[wrong], mistakes, counts='and it is')}"


EXERCISE = Exercise(
    "state_bytes",
    cases,
    (
        Claim("it is what the library predicts, for any mix of dtypes, stage and number of ranks", right),
        Claim("the recipe stays as it was", untouched(2)),
    ),
    run=run_stages,
    hints=(
        "A shard has ceil(numel / ranks) elements, a whole state N times as many.",
        "From which stage on is each of the five sharded? Main parameters and both moments belong to the optimizer.",
        "If main_params has the dtype of params, leave it out.",
    ),
    text=TEXT,
    answer=(state_bytes,),
    points=2,
)
