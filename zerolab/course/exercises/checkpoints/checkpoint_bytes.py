"""Exercise of lesson 08: what a checkpoint's files hold, by the layout that the library writes by."""

from __future__ import annotations

from random import Random
from typing import Any

from zerolab.checkpoint.shards import overlaps
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import alike, short
from zerolab.flat import lay_out

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


MISTAKES = r"""
A checkpoint of step 0 has no moments: the optimizer makes them with its first step
    ["exp_avg", "exp_avg_sq"] if step else [] => ["exp_avg", "exp_avg_sq"]
Frozen parameters have no main parameters and no moments
    for numel in mine) => for numel in mine + still)
Frozen parameters are in the model's file, too: nothing else has them
    sum(mine + still) => sum(mine)
Padding is not written; count the pieces, not the shard
    pieces(kind, ranks, align) => [[lay_out({at: (n,) for at, n in enumerate(kind)}, ranks, align).shard_numel]] * ranks
Each rank writes its own shard alone
    pieces(kind, ranks, align) => [kind] * ranks
Main parameters of the same dtype as the parameters are no second copy
    ["main_params"] if recipe["main_params"] != recipe["params"] else [] => ["main_params"]
fp16 and fp8 moments have a scale for each block
    (4 * -(-numel // 128) if scaled else 0) => 0
fp16 moments have scales, too
    ("fp16", "fp8") => ("fp8",)
Moments have scales, and main parameters have none
    state != "main_params" and =>
A piece that ends within a block has a scale for it: round up
    -(-numel // 128) => (numel // 128)
Blocks do not go on from piece to piece: round up for each
    for numel in mine) => for numel in [sum(mine)])
"""
LOOK = "Write down a line for each state of a rank: how many elements in which pieces, and how many bytes each"
BLOCK = 128
STATES = ("params", "main_params", "exp_avg", "exp_avg_sq")


def pieces(numels: list[int], ranks: int, align: int) -> list[list[int]]:
    layout = lay_out({str(at): (numel,) for at, numel in enumerate(numels)}, ranks, align)
    return [[lap.stop - lap.start for lap in overlaps(layout, *layout.shard(rank))] for rank in range(ranks)]


def of_rank(args: tuple[Any, ...], got: Any, want: Any) -> str:
    """The first rank for which it is wrong."""
    if len(got) != len(want):
        return f"you return {short(got)}, and a pair for each of {plural(len(want), 'rank')} is due"
    rank = next(at for at, pair in enumerate(want) if not alike(got[at], pair))
    return f"for rank {rank} you say {short(got[rank])}, and it is {short(want[rank])}"


def cases(rng: Random) -> list[Case]:
    def five() -> list[int]:
        """One of them is larger than a shard."""
        sizes = [rng.choice((rng.randint(1, 60), rng.randint(100, 2000), BLOCK * rng.randint(1, 9))) for _ in "1234"]
        sizes.insert(rng.randint(0, 4), rng.randint(2100, 5000))
        return sizes

    def case(ranks: int, step: int, dtypes: str, numels: Any = None, align: int = 0, trains: Any = None) -> Case:
        recipe = dict(zip(STATES, dtypes.split(), strict=True))
        scaled = {recipe["exp_avg"], recipe["exp_avg_sq"]} & {"fp16", "fp8"}
        align = align or (BLOCK * rng.choice((1, 2)) if scaled else rng.choice((1, 4, 16, 32)))
        numels = five() if numels is None else list(numels)
        return Case([(numels, trains or [at % 2 == 0 for at in range(len(numels))], ranks, align, recipe, step)])

    narrow = rng.choice(("bf16", "fp16"))
    mixed, scaled = f"{narrow} fp32 fp32 bf16", f"{narrow} fp32 fp8 fp8"
    some = " ".join(rng.sample(("fp32", "bf16", "fp16", "fp8"), 2))
    few, same = rng.randint(2, 4), (five(), rng.choice((1, 4, 16, 32)))
    return [
        # Three that differ in one thing.
        case(few, 7, mixed, *same, [True] * 5),
        case(few, 7, mixed, *same),
        case(few, 0, mixed, *same),
        case(rng.randint(3, 8), 5, "fp32 fp32 fp32 fp32"),
        case(rng.randint(2, 4), 3, "bf16 bf16 bf16 bf16"),
        case(rng.randint(2, 4), 100, scaled),
        case(rng.randint(2, 4), 0, scaled),
        case(rng.randint(3, 8), 1, "bf16 fp16 fp16 bf16"),
        case(3, rng.randint(1, 9), f"fp16 bf16 {some}"),
        case(1, 2, scaled),
        case(64, 2, mixed),
        case(2, 1, scaled, [BLOCK * rng.randint(2, 9), 4 * BLOCK], BLOCK, [True] * 2),
        # Two pieces whose ends would fit into one block.
        case(1, 3, scaled, [BLOCK * rng.randint(1, 9) + rng.randint(1, 60) for _ in "12"], 2 * BLOCK, [True] * 2),
        case(2, 4, mixed, [rng.randint(3, 99), 50], 16, [False, False]),
        case(3, 4, mixed, [], 16),
    ]


EXERCISE = Exercise(
    "checkpoint_bytes",
    cases,
    (Claim("what you say is what the library writes", Gives("", LOOK, say=of_rank)),),
    run=alone,
    hints=(
        "Two calls of `pieces`: for the parameters that train, and for the frozen ones. Only the former have states.",
        "The optimizer's file: main parameters if they differ, and two moments after the first step, scales included.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(checkpoint_bytes,),
    points=2,
)
