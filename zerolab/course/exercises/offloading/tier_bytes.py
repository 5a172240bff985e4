"""The exercise of lesson 07 on what each tier holds, judged by the prediction that the library itself makes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import Mistakes, answers
from zerolab.flat import BucketPlan
from zerolab.flat.layout import lay_out, round_up
from zerolab.memory import StateSize, predict
from zerolab.offload import TIERS, Offload
from zerolab.offload.groups import PAGE
from zerolab.precision.recipe import PRECISIONS, Precision

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


Recipe = dict[str, int]
Book = dict[str, int]
NAMES = ("fp32", "bf16", "bf16_fp32_grads", "pure_bf16")


def widths(precision: Precision) -> Recipe:
    """Bytes of an element in each state."""
    moments = precision.itemsize("exp_avg") + precision.itemsize("exp_avg_sq")
    return {
        "params": precision.itemsize("params"),
        "grads": precision.itemsize("main_grads"),
        "main_params": precision.itemsize("main_params"),
        "moments": moments,
    }


def predicted(numel: int, ranks: int, stage: int, recipe: Recipe, optimizer: str, parameters: str) -> Book:
    """What the library says that a rank keeps, added up by tier."""
    precision = next(PRECISIONS[name] for name in NAMES if widths(PRECISIONS[name]) == recipe)
    plan = BucketPlan("unit", lay_out({"w": (numel,)}, ranks), recipe["params"], True, (None,))
    adam = StateSize(2, 0, ("exp_avg", "exp_avg_sq"))
    places = Offload(optimizer, parameters, path="." if "disk" in (optimizer, parameters) else None)
    book = dict.fromkeys(TIERS, 0)
    for kind, nbytes in predict([plan], stage, adam, precision, places).items():
        book[kind.partition(":")[0] if ":" in kind else "device"] += nbytes[0]
    return book


def counted(
    numel: int,
    ranks: int,
    stage: int,
    recipe: Recipe,
    optimizer: str,
    parameters: str,
    *,
    sharded: tuple[int, int, int] = (3, 2, 1),
    gradients_move: int = 2,
    follow: bool = False,
    copies: str = "",
    page: int = PAGE,
    paged: tuple[str, ...] = ("disk",),
) -> Book:
    """The formula, open to slips: from which stages parameters, gradients and states are shards, from which stage
    gradients go to the host, or, with `follow`, wherever the optimizer is, when two copies are one, and what is
    rounded to pages."""
    held = [numel // ranks if stage >= first else numel for first in sharded]
    alike = recipe["params"] == recipe["main_params"]
    one = alike and optimizer == parameters != "disk"
    one = {"": one, "always two": False, "always one": alike, "one on the disk": alike and optimizer == parameters}[
        copies
    ]
    moved = stage >= gradients_move and optimizer != "device"
    book = dict.fromkeys(TIERS, 0)
    for place, nbytes in (
        (parameters, held[0] * recipe["params"]),
        ((optimizer if follow else "host") if moved else "device", held[1] * recipe["grads"]),
        (optimizer, held[2] * (recipe["moments"] + (0 if one else recipe["main_params"]))),
    ):
        book[place] += round_up(nbytes, page) if place in paged else nbytes
    return book


def with_recipe(change: Callable[[Recipe], Recipe], *args: Any) -> Book:
    numel, ranks, stage, recipe, optimizer, parameters = args
    return counted(numel, ranks, stage, change(recipe), optimizer, parameters)


def rounded_once(*args: Any) -> Book:
    book = counted(*args, page=1)
    return book | {"disk": round_up(book["disk"], PAGE)}


def page_more(*args: Any) -> Book:
    """Each record with a page more where it fills its pages. Elsewhere that is no slip."""
    once = counted(*args, page=1)
    return once | {"disk": once["disk"] // PAGE * PAGE + PAGE} if once["disk"] else once


def only_fp32(*args: Any) -> Book:
    return counted(*args, copies="" if args[3]["params"] == 4 else "always two")


def in_elements(*args: Any) -> Book:
    numel, ranks, stage, _, optimizer, parameters = args
    ones = {"params": 1, "grads": 1, "main_params": 1, "moments": 2}
    return counted(numel, ranks, stage, ones, optimizer, parameters, copies="always two", page=1)


def gradients_with_it(*args: Any) -> Book:
    """Gradients go where the optimizer is, with pages for its records alone."""
    numel, ranks, stage, recipe, optimizer, _ = args
    book = counted(numel, ranks, stage, recipe | {"grads": 0}, *args[4:])
    held = numel // ranks if stage >= 2 else numel
    place = optimizer if stage >= 2 else "device"
    return book | {place: book[place] + held * recipe["grads"]}


def two_records(*args: Any) -> Book:
    """Main parameters and moments apart, each in whole pages."""
    numel, ranks, stage, recipe, optimizer, _ = args
    book = counted(*args)
    if optimizer == "disk":
        held = numel // ranks if stage else numel
        main, moments = held * recipe["main_params"], held * recipe["moments"]
        book["disk"] += round_up(main, PAGE) + round_up(moments, PAGE) - round_up(main + moments, PAGE)
    return book


def one_in_pages(states: bool, *args: Any) -> Book:
    """Of the two kinds of records only one in whole pages: the states', or the parameters'."""
    numel, ranks, _, recipe, optimizer, parameters = args
    whole, bare = counted(*args), counted(*args, page=1)
    if {optimizer, parameters} != {"disk"}:
        return whole if (optimizer == "disk") == states else bare
    held = numel // ranks * recipe["params"]
    rest = round_up(held, PAGE) - held
    return whole | {"disk": whole["disk"] - rest if states else bare["disk"] + rest}


def swapped(*args: Any) -> Book:
    numel, ranks, stage, recipe, optimizer, parameters = args
    return counted(numel, ranks, stage, recipe, parameters, optimizer)


SLIPS: Mistakes = {
    # Some come to the same in one case. They part in another that comes earlier, or the rarer one is named first.
    "Nothing is sharded there; which states are shards at this stage?": partial(counted, sharded=(4, 4, 4)),
    "Parameters are whole up to stage 2": partial(counted, sharded=(2, 2, 1)),
    "You shard everything at every stage above 0": partial(counted, sharded=(1, 1, 1)),
    "Gradients are whole up to stage 1": partial(counted, sharded=(3, 1, 1)),
    "Gradients are shards from stage 2 on": partial(counted, sharded=(3, 3, 1)),
    "Optimizer states are shards from stage 1 on": partial(counted, sharded=(3, 2, 2)),
    "Sharded gradients rest where they are used; on which tier is the step computed?": partial(
        counted, gradients_move=4
    ),
    "Only sharded gradients go to the host; whole ones stay on the device": partial(counted, gradients_move=0),
    "Gradients wait on the host, also where the states are on the disk": partial(counted, follow=True),
    "Also with 16-bit main parameters the two are one copy": only_fp32,
    "Parameters that are the main parameters count once where both rest in the same memory": partial(
        counted, copies="always two"
    ),
    "On the disk the two are separate records, even with the same dtype": partial(counted, copies="one on the disk"),
    "One copy cannot be in two places: then there are parameters and main parameters": partial(
        counted, copies="always one"
    ),
    "Main parameters are not in moments; where are they?": partial(
        with_recipe, lambda recipe: recipe | {"main_params": 0}
    ),
    "On the disk a record takes whole pages of 4,096 bytes": partial(counted, page=1),
    "Parameters and states are two records, and each is rounded up to whole pages": rounded_once,
    "A record that fills its pages takes no other": page_more,
    "Parameters on the disk are a record, too, and take whole pages": partial(one_in_pages, True),
    "Main parameters and moments on the disk are a record, too, and take whole pages": partial(one_in_pages, False),
    "Only what is on the disk comes in whole pages": partial(counted, paged=TIERS),
    "You count elements; the recipe has the bytes of each": in_elements,
    "Gradients wait on the host; on the disk there are none": gradients_with_it,
    "Main parameters and moments are one record, and only that comes in whole pages": two_records,
    "recipe['moments'] is for both moments together": partial(
        with_recipe, lambda recipe: recipe | {"moments": 2 * recipe["moments"]}
    ),
    "At stage 0 nothing is shared out, the optimizer's states neither": partial(counted, sharded=(3, 2, 0)),
    "All three tiers are due, with 0 where nothing rests": lambda *args: {
        place: nbytes for place, nbytes in counted(*args).items() if nbytes
    },
    "You mixed up the two places: `optimizer` is that of main parameters and moments": swapped,
}


def drawn(rng: Random, ranks: int, stage: int, name: str, optimizer: str, parameters: str, unit: int = 64) -> Case:
    recipe = widths(PRECISIONS[name])
    for _ in range(20):
        args = (ranks * unit * rng.randint(20, 900), ranks, stage, recipe, optimizer, parameters)
        # Two records in whole pages are often, but not always, more than their sum in whole pages.
        if {optimizer, parameters} != {"disk"} or rounded_once(*args) != counted(*args):
            break
    places = f"optimizer on {optimizer}, parameters on {parameters}"
    return Case([args], about=f"{args[0]:,} parameters, {plural(ranks, 'rank')}, stage {stage}, {name}, {places}")


LOOK = "Write down a line each for parameters, gradients and states: how many elements, how many bytes, and where"


def tier_cases(rng: Random) -> list[Case]:
    shapes: list[tuple[int, int, str, str, str]] = [
        (4, 3, "bf16", "device", "device"),
        (4, 1, "bf16", "device", "device"),
        (4, 2, "bf16", "device", "device"),
        (4, 1, "bf16", "host", "device"),
        (3, 2, "bf16_fp32_grads", "disk", "device"),
        (2, 3, "bf16", "disk", "disk"),
        (3, 3, "fp32", "host", "host"),
        (4, 3, "fp32", "host", "device"),
        (2, 3, "pure_bf16", "host", "host"),
        (2, 3, "pure_bf16", "disk", "disk"),
        (3, 3, "bf16", "device", "host"),
        (4, 3, "bf16_fp32_grads", "host", "disk"),
        (2, 0, "bf16", "host", "device"),
        (3, 2, "fp32", "device", "device"),
        (2, 1, "pure_bf16", "disk", "device"),
        (1, 2, "bf16", "host", "device"),
        (8, 3, "bf16", "disk", "host"),
    ]
    # Those tell slips apart; the rest leaves no corner.
    corners = [
        (rng.randint(1, 5), stage, name, optimizer, parameters)
        for stage, name, optimizer, parameters in product(range(4), ("fp32", "bf16"), TIERS, TIERS)
        if parameters == "device" or stage == 3
    ]
    return [*(drawn(rng, *shape) for shape in [*shapes, *corners]), drawn(rng, 4, 2, "bf16", "disk", "device", PAGE)]


EXERCISE = Exercise(
    "tier_bytes",
    tier_cases,
    (
        Claim("what you predict is what the library predicts", answers(predicted, SLIPS, LOOK)),
        Claim("the recipe stays as it was", untouched(3)),
    ),
    run=alone,
    hints=(
        "First how many elements a rank keeps of parameters, gradients and states, then where each of the three rests.",
        "A dictionary of three zeros; then each of the three adds its bytes to its place.",
        "The two special cases: one copy of parameters that are main parameters, in one memory; whole pages on disk.",
    ),
    text=TEXT,
    answer=(tier_bytes,),
    points=2,
)
