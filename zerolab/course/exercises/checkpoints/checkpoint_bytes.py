"""Exercise of lesson 08: what a checkpoint's files hold, judged by the layout that the library writes by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from zerolab.checkpoint.shards import overlaps
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import Mistakes, answers
from zerolab.course.judge.same import alike, short
from zerolab.flat import chunk_bounds, lay_out
from zerolab.precision.codec import BLOCK, MOMENT_DTYPES, codec_of
from zerolab.precision.recipe import BYTES

TEXT = '''
What each file holds

Each rank writes two files. Into the model's file goes its shard of the parameters, as forward uses them. Into the
optimizer's file goes what the optimizer keeps of the same shard. How many bytes of each?

A model's parameters have `numels` elements and train or are frozen, as `trains` says. Those that train lie in one
row, the frozen ones in another, and each row is padded and cut into `ranks` shards, as in exercises 02. `pieces` says
what the shards of one row hold, padding left out:

```{code-cell}
:name: pieces

def pieces(numels: list[int], ranks: int, align: int) -> list[list[int]]:
    """For each rank, the sizes of the pieces of parameters that its shard of a row holds."""
    starts, end = [], 0
    for numel in numels:
        starts.append(-(-end // align) * align)
        end = starts[-1] + numel
    shard = -(-end // (ranks * align)) * align
    held = []
    for rank in range(ranks):
        spans = [(max(s, rank * shard), min(s + n, (rank + 1) * shard)) for s, n in zip(starts, numels, strict=True)]
        held.append([stop - start for start, stop in spans if start < stop])
    return held


pieces([600, 900], ranks=2, align=256), pieces([300], ranks=2, align=256)
```

`recipe` says the dtype of four states: `params`, `main_params`, `exp_avg` and `exp_avg_sq`, each `"fp32"` (4 bytes),
`"bf16"`, `"fp16"` (2 bytes each) or, for the two moments, `"fp8"` (1 byte).

- Padding is not written.
- Frozen parameters are in the model's file, and nothing of them is in the optimizer's.
- Main parameters are in the optimizer's file. Where they have the dtype of `params`, there is one copy of both, and
  nothing more to write.
- Moments are there after the first step: the checkpoint of `step` 0 has none.
- Moments in fp16 or fp8 are scaled in blocks of 128: each *piece* has a scale in fp32 for every 128 elements, and one
  for the rest if there is one. Main parameters have no scales, in no dtype.

Return `(bytes in the model's file, bytes in the optimizer's file)` for each rank, in a list. Checksums, the header,
buffers and random generators are left out.

Here the library saves such a checkpoint on two ranks, and we count what is in its files: parameters of 600, 300 and
900 elements, the second of them frozen, in bf16 with fp32 main parameters and fp8 moments, after one step, with an
`align` of 256. Your answer has to say the same:

```{code-cell}
:name: shown_files

from zerolab import checkpoint
from zerolab.checkpoint.tensors import FileReader
from zerolab.precision import PRECISIONS
from zerolab.zero import ZeroEngine


def saved(comm, folder):
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(n), requires_grad=n != 300) for n in (600, 300, 900))
    engine = ZeroEngine(model, comm, 2, lr=1e-3, precision=PRECISIONS["bf16_fp8_moments"], units=[model])
    engine.backward(sum((parameter**2).sum() for parameter in model))
    engine.step()
    found = {}
    for path in sorted(checkpoint.save(folder, engine, step=1).glob(f"*rank{comm.rank}.safetensors")):
        sizes = {name: entry.nbytes for name, entry in FileReader(path).entries.items()}
        found[path.name] = sum(n for name, n in sizes.items() if name != "checksums" and not name.startswith("rng/"))
    return found
```

```{code-cell}
:name: shown_bytes

with tempfile.TemporaryDirectory() as folder:
    of_ranks = list(launch(saved, folder, ranks=2, world="lockstep", device="cpu"))
of_ranks
```

The check draws 1 to 64 ranks, up to five parameters or none, all of them frozen or none, any `align`, which with
scaled moments is a multiple of 128, and mixes of these dtypes. About twelve lines.
'''


def checkpoint_bytes(
    numels: list[int], trains: list[bool], ranks: int, align: int, recipe: dict[str, str], step: int
) -> list[tuple[int, int]]:
    """(bytes in the model's file, bytes in the optimizer's file) of each rank."""
    ### BEGIN SOLUTION
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    states = ["main_params"] if recipe["main_params"] != recipe["params"] else []
    states += ["exp_avg", "exp_avg_sq"] if step else []

    def nbytes(state, numel):
        scaled = state != "main_params" and recipe[state] in ("fp16", "fp8")
        return size[recipe[state]] * numel + (4 * -(-numel // 128) if scaled else 0)

    kinds = ([numel for numel, one in zip(numels, trains, strict=True) if one == kind] for kind in (True, False))
    trained, frozen = (pieces(kind, ranks, align) for kind in kinds)
    return [
        (size[recipe["params"]] * sum(mine + still), sum(nbytes(state, numel) for state in states for numel in mine))
        for mine, still in zip(trained, frozen, strict=True)
    ]
    ### END SOLUTION


MOMENTS = ("exp_avg", "exp_avg_sq")
SCALED = ("fp16", "fp8")
Recipe = dict[str, str]
Files = list[tuple[int, int]]
Pieces = list[list[int]]


def pieces(numels: Sequence[int], ranks: int, align: int) -> Pieces:
    """For each rank the sizes of the pieces of parameters that its shard of a row holds, by the library's layout."""
    layout = lay_out({str(at): (numel,) for at, numel in enumerate(numels)}, ranks, align)
    return [[lap.stop - lap.start for lap in overlaps(layout, *layout.shard(rank))] for rank in range(ranks)]


def written(numels: list[int], trains: list[bool], ranks: int, align: int, recipe: Recipe, step: int) -> Files:
    """Bytes of each rank's two files, checksums and what is not sharded left out."""
    trained = pieces([numel for numel, one in zip(numels, trains, strict=True) if one], ranks, align)
    frozen = pieces([numel for numel, one in zip(numels, trains, strict=True) if not one], ranks, align)
    codecs = [codec_of(name, recipe[name]) for name in MOMENTS] if step else []
    main = MOMENT_DTYPES[recipe["main_params"]].itemsize if recipe["main_params"] != recipe["params"] else 0
    files = []
    for rank in range(ranks):
        states = sum(main * numel for numel in trained[rank])
        for codec in codecs:
            blocks = sum(-(-numel // BLOCK) for numel in trained[rank])
            states += codec.dtype.itemsize * sum(trained[rank]) + (4 * blocks if codec.scaled else 0)
        files.append((BYTES[recipe["params"]] * sum(trained[rank] + frozen[rank]), states))
    return files


# What goes wrong.

Rows = Callable[[list[int], list[bool], int, int], tuple[Pieces, Pieces]]
"""For each rank the pieces that it holds of what trains, and of what is frozen."""


def two_rows(numels: list[int], trains: list[bool], ranks: int, align: int) -> tuple[Pieces, Pieces]:
    return each_kind(lambda kind: pieces(kind, ranks, align), numels, trains)


def each_kind(row: Callable[[list[int]], Pieces], numels: list[int], trains: list[bool]) -> tuple[Pieces, Pieces]:
    kinds = ([n for n, one in zip(numels, trains, strict=True) if one == which] for which in (True, False))
    trained, frozen = map(row, kinds)
    return trained, frozen


def one_row(numels: list[int], trains: list[bool], ranks: int, align: int) -> tuple[Pieces, Pieces]:
    layout = lay_out({str(at): (numel,) for at, numel in enumerate(numels)}, ranks, align)
    held = [list(overlaps(layout, *layout.shard(rank))) for rank in range(ranks)]

    def of(which: bool) -> Pieces:
        return [[lap.stop - lap.start for lap in laps if trains[int(lap.slot.name)] == which] for laps in held]

    return of(True), of(False)


def with_padding(numels: list[int], trains: list[bool], ranks: int, align: int) -> tuple[Pieces, Pieces]:
    def row(kind: list[int]) -> Pieces:
        return [[lay_out({str(at): (n,) for at, n in enumerate(kind)}, ranks, align).shard_numel]] * ranks

    return each_kind(row, numels, trains)


def evenly(numels: list[int], trains: list[bool], ranks: int, align: int) -> tuple[Pieces, Pieces]:
    return each_kind(lambda kind: [[b - a] for a, b in chunk_bounds(sum(kind), ranks)], numels, trains)


def everything(numels: list[int], trains: list[bool], ranks: int, align: int) -> tuple[Pieces, Pieces]:
    return each_kind(lambda kind: [kind] * ranks, numels, trains)


def per_piece(held: Sequence[int]) -> int:
    return sum(-(-numel // BLOCK) for numel in held)


def counted(
    numels: list[int],
    trains: list[bool],
    ranks: int,
    align: int,
    recipe: Recipe,
    step: int,
    *,
    rows: Rows = two_rows,
    states_of: Callable[[list[int], list[int]], list[int]] = lambda trained, frozen: trained,
    model_of: Callable[[list[int], list[int]], list[int]] = lambda trained, frozen: trained + frozen,
    main: str = "if it differs",
    begun: str = "by the step",
    scaled: tuple[str, ...] = SCALED,
    scales: Callable[[Sequence[int]], float] = per_piece,
    main_scaled: bool = False,
    skip: tuple[str, ...] = (),
) -> list[tuple[float, float]]:
    """The formula, open to slips."""
    files: list[tuple[float, float]] = []
    for trained, frozen in zip(*rows(numels, trains, ranks, align), strict=True):
        owners, states = states_of(trained, frozen), 0.0
        for name in ("main_params", *MOMENTS):
            copied = main == "always" or (main == "if it differs" and recipe["main_params"] != recipe["params"])
            there = copied if name == "main_params" else begun == "always" or step > 0
            if name in skip or (begun == "all by the step" and not step):
                continue
            states += BYTES[recipe[name]] * sum(owners) if there else 0
            if not there and (name not in MOMENTS or begun != "but for scales"):
                continue
            if recipe[name] in scaled and (name in MOMENTS or main_scaled):
                states += 4 * scales(owners)
        files.append((BYTES[recipe["params"]] * sum(model_of(trained, frozen)), states))
    return files


def main_in_model(*args: Any) -> list[tuple[float, float]]:
    """Main parameters in the place of the parameters."""
    whole, bare = counted(*args), counted(*args, main="never")
    width = BYTES[args[4]["main_params"]] / BYTES[args[4]["params"]]
    return [(model * width, states) for (model, _), (_, states) in zip(whole, bare, strict=True)]


MISTAKES: Mistakes = {
    "A checkpoint of step 0 has no moments: the optimizer makes them with its first step": partial(
        counted, begun="always"
    ),
    "Where there are no moments, there are no scales of theirs": partial(counted, begun="but for scales"),
    "Before the first step there are no moments, but main parameters are there": partial(
        counted, begun="all by the step"
    ),
    "Frozen parameters have no main parameters and no moments": partial(
        counted, states_of=lambda trained, frozen: trained + frozen
    ),
    "Frozen parameters are in the model's file, too: nothing else has them": partial(
        counted, model_of=lambda trained, frozen: trained
    ),
    "What trains and what is frozen are two rows, each cut for itself": partial(counted, rows=one_row),
    "Padding is not written; count the pieces, not the shard": partial(counted, rows=with_padding),
    "Blocks do not go on from piece to piece: round up for each": partial(
        counted, scales=lambda held: -(-sum(held) // BLOCK)
    ),
    "Shards are equal with their padding; without it the last rank has less": partial(counted, rows=evenly),
    "Each rank writes its own shard alone": partial(counted, rows=everything),
    "Main parameters of the same dtype as the parameters are no second copy": partial(counted, main="always"),
    "Main parameters of another dtype are a copy of their own": partial(counted, main="never"),
    "The model's file has the parameters as forward uses them; main parameters lie beside the moments": main_in_model,
    "fp16 moments have scales, too": partial(counted, scaled=("fp8",)),
    "fp16 and fp8 moments have a scale for each block": partial(counted, scaled=()),
    "Moments have scales, and main parameters have none": partial(counted, main_scaled=True),
    "Only fp16 and fp8 moments have scales; bf16 and fp32 need none": partial(counted, scaled=(*BYTES,)),
    "A piece that ends within a block has a scale for it: round up": partial(
        counted, scales=lambda held: sum(numel // BLOCK for numel in held)
    ),
    "A block has 128 elements, whatever `align` is": lambda *args: counted(
        *args, scales=lambda held: sum(-(-numel // args[3]) for numel in held)
    ),
    "A piece of whole blocks has no other": partial(counted, scales=lambda held: sum(n // BLOCK + 1 for n in held)),
    "A scale is fp32 and takes 4 bytes": partial(counted, scales=lambda held: per_piece(held) / 4),
    "Adam has two moments": partial(counted, skip=("exp_avg_sq",)),
    "A pair for each rank is due: the bytes of its model file, and of its optimizer file": lambda *args: [
        (states, model) for model, states in counted(*args)
    ],
    "That is bits; eight are a byte": lambda *args: [(8 * a, 8 * b) for a, b in counted(*args)],
    "You count elements; how many bytes has each?": lambda *args: [
        (model / BYTES[args[4]["params"]], sum(pieces_of)) for (model, _), pieces_of in zip(
            counted(*args), two_rows(*args[:4])[0], strict=True
        )
    ],
}  # fmt: skip


def of_rank(args: tuple[Any, ...], got: Any, want: Any) -> str:
    """The first rank for which it is wrong."""
    if not isinstance(got, list) or len(got) != len(want):
        return f"you return {short(got)}, and a pair for each of {plural(len(want), 'rank')} is due"
    rank = next(at for at, pair in enumerate(want) if not alike(got[at], pair))
    return f"for rank {rank} you say {short(got[rank])}, and it is {short(want[rank])}"


LOOK = "Write down a line for each state of a rank: how many elements in which pieces, and how many bytes each"


# Cases.


def drawn(rng: Random, ranks: int, recipe: Recipe, step: int, frozen: bool = True) -> Case:
    scales = any(recipe[name] in SCALED for name in MOMENTS)
    align = BLOCK * rng.choice((1, 2)) if scales else rng.choice((1, 4, 16, 32))
    numels = [rng.choice((rng.randint(1, 60), rng.randint(100, 2000), BLOCK * rng.randint(1, 9))) for _ in range(4)]
    numels.insert(rng.randint(0, 4), rng.randint(2100, 5000))
    trains = [not frozen or at % 2 == 0 for at in range(5)]
    return case_of(numels, trains, ranks, align, recipe, step)


def case_of(numels: list[int], trains: list[bool], ranks: int, align: int, recipe: Recipe, step: int) -> Case:
    kinds = [f"{numel}{'' if one else ' frozen'}" for numel, one in zip(numels, trains, strict=True)]
    said = (
        f"parameters of {', '.join(kinds) or 'no number'} elements, {plural(ranks, 'rank')}, align {align}, step {step}"
    )
    listed = ", ".join(f"{state} {dtype}" for state, dtype in recipe.items())
    return Case([(numels, trains, ranks, align, recipe, step)], about=f"{said}, {listed}")


def recipe_of(params: str, main: str, first: str, second: str) -> Recipe:
    return {"params": params, "main_params": main, "exp_avg": first, "exp_avg_sq": second}


def cases(rng: Random) -> list[Case]:
    narrow = rng.choice(("bf16", "fp16"))
    plain, mixed = recipe_of("fp32", "fp32", "fp32", "fp32"), recipe_of(narrow, "fp32", "fp32", "bf16")
    scaled = recipe_of(narrow, "fp32", "fp8", "fp8")
    halves = recipe_of("bf16", "fp16", "fp16", "bf16")
    found = [
        drawn(rng, rng.randint(2, 4), mixed, 7, frozen=False),
        drawn(rng, rng.randint(2, 4), mixed, 7),
        drawn(rng, rng.randint(2, 4), mixed, 0),
        drawn(rng, rng.randint(3, 8), plain, 5),
        drawn(rng, rng.randint(2, 4), recipe_of("bf16", "bf16", "bf16", "bf16"), 3),
        drawn(rng, rng.randint(2, 4), scaled, 100),
        drawn(rng, rng.randint(2, 4), scaled, 0),
        drawn(rng, rng.randint(3, 8), halves, 1),
        drawn(rng, 3, recipe_of("fp16", "bf16", *rng.sample(("fp32", "bf16", "fp16", "fp8"), 2)), rng.randint(1, 9)),
        drawn(rng, 1, scaled, 2),
        drawn(rng, 64, mixed, 2),
    ]
    whole = [BLOCK * rng.randint(2, 9), 4 * BLOCK]
    found.append(case_of(whole, [True, True], 2, BLOCK, scaled, 1))
    # Two pieces whose ends would fit into one block.
    ends = [BLOCK * rng.randint(1, 9) + rng.randint(1, 60) for _ in range(2)]
    found.append(case_of(ends, [True, True], 1, 2 * BLOCK, scaled, 3))
    found.append(case_of([rng.randint(3, 99), 50], [False, False], 2, 16, mixed, 4))
    found.append(case_of([], [], 3, 16, mixed, 4))
    return found


EXERCISE = Exercise(
    "checkpoint_bytes",
    cases,
    (
        Claim("what you say is what the library writes", answers(written, MISTAKES, LOOK, of_rank)),
        Claim("its arguments stay as they were", untouched()),
    ),
    run=alone,
    hints=(
        "Two calls of `pieces`: for the parameters that train, and for the frozen ones. Only the former have states.",
        "The optimizer's file: main parameters if they differ, and two moments after the first step, scales included.",
    ),
    text=TEXT,
    answer=(checkpoint_bytes,),
    points=2,
)
