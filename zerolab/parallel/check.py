"""Which all-reduce did you forget? A program is run on a mesh in one process,
in lockstep, and the values of all its ranks are compared.

    def train(mesh):                        # the program, on any mesh
        model = mesh.watch(shard_model(build(), mesh))
        ...
        mesh.end_step(loss=loss, norm=norm)     # after each step

    check(train, tp=2, dp=2)                # -> [] or sentences, causes first

Nothing is declared: layers know how their parameters are cut. Replicas must
have equal bits and shards must not; what the optimizer gets must be the sum of
the ranks' own gradients over the axes along which these differ, divided by the
number of data-parallel ranks; if it is not, a fit says what was done instead.
And the same program on a mesh of one rank must have the same loss and
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from zerolab.collectives.contract import Collectives
from zerolab.parallel.mesh import SPARSE, Grid, Mesh
from zerolab.parallel.placement import Cut, joined
from zerolab.parallel.record import ModuleCall, RankRecorder, RankStep
from zerolab.ranks import launch

CLOSE = 1e-4
"""A relative error that rounding explains."""
Train = Callable[[Mesh], Any]
Axes = frozenset[str]


def check(train: Train, *, steps: int = 1, reference: bool = True, **sizes: int) -> list[str]:
    """What is wrong with a program on a mesh of these sizes (those of `Grid`,
    and `dp` for `dp_shard`), in the first of `steps` steps in which something
    is."""
    grid = grid_of(sizes)
    ranks = record(train, grid)
    for step in range(min(steps, len(ranks[0].steps))):
        comparison = Comparison(ranks, grid, step)
        found = comparison.violations()
        if reference and grid.world > 1:
            found += compared_with_one(train, comparison, grid, step)
        if found:
            return list(dict.fromkeys(found))
    return []


def grid_of(sizes: dict[str, int]) -> Grid:
    named = dict(sizes)
    if "dp" in named:
        named["dp_shard"] = named.pop("dp")
    return Grid(**named)


class RankRecords:
    """What is left of one rank's recorder: steps, cuts of parameters, and of
    each module what its input and output are along tp, whether it is a leaf,
    and its parameters."""

    def __init__(self, recorder: RankRecorder) -> None:
        self.steps, self.cuts = recorder.close(), recorder.cuts
        self.modules = {
            name: (
                getattr(module, "along_tp", ("", "")),
                not [*module.children()],
                [f"{name}.{its}".lstrip(".") for its, _ in module.named_parameters()],
            )
            for name, module in recorder.modules.items()
        }


def record(train: Train, grid: Grid, start: dict[str, Tensor] | None = None) -> list[RankRecords]:
    ranks = launch(run_rank, train, grid, start, ranks=grid.world, world="lockstep", collectives="ring", prints="quiet")
    return [*ranks]


def run_rank(comm: Collectives, train: Train, grid: Grid, start: dict[str, Tensor] | None) -> RankRecords:
    mesh, recorder = Mesh(comm, grid), RankRecorder(start)
    mesh.recorder = recorder
    try:
        train(mesh)
    finally:
        found = RankRecords(recorder)
    return found


class Comparison:
    """The records of all ranks of one step."""

    def __init__(self, ranks: Sequence[RankRecords], grid: Grid, step: int) -> None:
        self.steps: list[RankStep] = [rank.steps[step] for rank in ranks]
        self.cuts: dict[str, Cut | None] = {name: cut for rank in ranks for name, cut in rank.cuts.items()}
        self.modules = {name: its for rank in ranks for name, its in rank.modules.items()}
        self.grid, self.sizes = grid, grid.sizes
        self.at = [grid.at(rank) for rank in range(grid.world)]
        self.axes = [axis for axis in SPARSE if self.sizes[axis] > 1]

    def violations(self) -> list[str]:
        """Those of the first kind that there are: what comes later follows."""
        kinds = (self.starts, self.calls, self.norms, self.gradients, self.norm, self.ends)
        return next((found for kind in kinds if (found := [*kind()])), [])

    # Who has the same, and how that is called.

    def place(self, rank: int) -> str:
        shown = [axis for axis in ("pp", "dp", "tp") if self.sizes[axis] > 1]
        return f"({', '.join(f'{axis} {self.at[rank][axis]}' for axis in shown)})"

    def named(self, axes: Axes | Sequence[str]) -> str:
        names = {*axes}
        data = {axis for axis in self.axes if axis in ("dp_replicate", "efsdp", "ep")}
        if data and names >= data:
            names = names - data | {"dp"}
        elif "efsdp" in names:
            names = names - {"efsdp"} | {"edp" if self.grid.ep > 1 else "dp_shard"}
        return " and ".join(sorted(names)) or "no axis"

    def apart(self, one: int, other: int) -> Axes:
        return frozenset(axis for axis in self.axes if self.at[one][axis] != self.at[other][axis])

    def pairs(self, axis: str, having: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Ranks that differ along one axis alone, the first of them at 0
        there."""
        for one, other in product(having, repeat=2):
            if not self.at[one][axis] and self.apart(one, other) == {axis}:
                yield one, other

    def copies(self, name: str) -> list[list[int]]:
        """The ranks that have the same elements of a parameter, group by group
        in the order in which it is cut."""
        cut, groups = self.cuts[name], dict[int, list[int]]()
        for rank, step in enumerate(self.steps):
            if name in step.before:
                groups.setdefault(self.at[rank][cut.axis] if cut else 0, []).append(rank)
        return [groups[part] for part in sorted(groups)]

    def difference(self, values: dict[int, Tensor]) -> str:
        """Along which axes values that should be equal differ, and where; '' if
        they do not."""
        first = next(iter(values))
        for rank, value in values.items():
            if not torch.equal(values[first], value):
                axes = self.named(self.apart(first, rank))
                return f"along {axes} between {self.place(first)} and {self.place(rank)}"
        return ""

    # The kinds, in the order of causes.

    def starts(self) -> Iterator[str]:
        yield from self.replicas("before", "{} starts different")
        for name, cut in self.cuts.items():
            first = [self.steps[ranks[0]].before[name] for ranks in self.copies(name)]
            if cut and any(one.unique().numel() > 1 and torch.equal(first[0], one) for one in first[1:]):
                yield (
                    f"the shards of {name} along {self.named([cut.axis])} start with the same values: they need "
                    "other seeds"
                )
                return

    def ends(self) -> Iterator[str]:
        return self.replicas("after", "{} after the step differs")

    def replicas(self, what: str, words: str) -> Iterator[str]:
        for name in self.cuts:
            for ranks in self.copies(name):
                values = {rank: getattr(self.steps[rank], what).get(name) for rank in ranks}
                if pair := self.difference({r: v for r, v in values.items() if v is not None}):
                    yield f"{words.format(name)} {pair}"

    def norms(self) -> Iterator[str]:
        norms = {r: torch.tensor(step.notes["norm"]) for r, step in enumerate(self.steps) if "norm" in step.notes}
        if norms and (pair := self.difference(norms)):
            yield f"the norm differs {pair}: its sum over {pair.split()[1]} is missing"

    def calls(self) -> list[str]:
        """Inputs and outputs of modules in the order of forward; then gradients
        of outputs in the order of backward."""
        keys = list(dict.fromkeys(key for step in self.steps for key in step.calls))
        backward: list[tuple[int, str]] = []
        for axis, (place, (name, number)) in product(self.axes, enumerate(keys)):
            having = [rank for rank, step in enumerate(self.steps) if (name, number) in step.calls]
            for one, other in self.pairs(axis, having):
                x, y = (self.steps[rank].calls[name, number] for rank in (one, other))
                where = f"along {self.named([axis])} between {self.place(one)} and {self.place(other)}"
                if said := self.forward_of(name, axis, x, y, where):
                    return [said]
                both = x.gradient is not None and y.gradient is not None
                equal = torch.equal(x.made, y.made) if x.made.shape == y.made.shape else False
                if axis == "tp" and equal and both and not torch.equal(x.gradient, y.gradient):  # type: ignore[arg-type]
                    said = (
                        f"gradient of the output of {name} differs {where}, although the output is the same: what "
                        "uses it does not sum over tp in backward"
                    )
                    backward.append((place, said))
        return [said for _, said in sorted(backward, reverse=True)[:1]]

    def forward_of(self, name: str, axis: str, x: ModuleCall, y: ModuleCall, where: str) -> str:
        (enters, leaves), leaf, own = self.modules[name]
        inputs, outputs = equal(x.given, y.given), equal(x.made, y.made)
        whole = not any(cut and cut.axis == axis for cut in map(self.cuts.get, own))
        if not name and axis in ("dp_replicate", "efsdp", "ep") and inputs:
            return f"the batch is the same {where}: data-parallel ranks need different samples"
        if axis == "tp" and enters == "part" and inputs:
            return f"input of {name} is the same {where}, where parts are due: it was gathered over tp"
        if axis == "tp" and leaves == "whole" and not outputs:
            return f"output of {name} differs {where}: its sum over tp is missing"
        if leaf and whole and not leaves and inputs and not outputs:
            return (
                f"output of {name} differs {where}, although its input is the same: it must draw the same random "
                "numbers there"
            )
        if x.kept is not None and not inputs and not x.kept.all() and equal(x.kept, y.kept):
            return (
                f"{name} drops the same elements {where}, although its input differs: it must draw other random "
                "numbers there"
            )
        return ""

    # Gradients.

    @cached_property
    def due(self) -> dict[str, list[tuple[list[int], Axes, dict[int, Tensor]]]]:
        """Of each parameter, for each group of copies: the axes over which
        their own gradients are to be summed, and these."""
        found: dict[str, list[tuple[list[int], Axes, dict[int, Tensor]]]] = {}
        for name in self.cuts:
            for ranks in self.copies(name):
                zero = torch.zeros_like(self.steps[ranks[0]].before[name])
                own = {rank: sum(self.steps[rank].own.get(name, []), zero) for rank in ranks}
                axes = {axis for one in ranks for axis in self.apart(ranks[0], one)}
                if all(torch.equal(own[one], own[other]) for one, other in self.pairs("tp", ranks)):
                    axes.discard("tp")
                found.setdefault(name, []).append((ranks, frozenset(axes), own))
        return found

    def summed(self, axes: Axes, rank: int, own: dict[int, Tensor]) -> Tensor:
        parts = [own[other] for other in own if self.apart(rank, other) <= axes]
        return torch.stack(parts).sum(0)

    def expected(self, axes: Axes, rank: int, own: dict[int, Tensor]) -> Tensor:
        return self.summed(axes, rank, own) / self.sizes["dp"]

    @cached_property
    def scale(self) -> float:
        """By what clipping has multiplied all gradients, if a norm was
        reported."""
        ratios = [
            ratio(given, part(self.expected(axes, rank, own), start, given))
            for name, groups in self.due.items()
            for ranks, axes, own in groups
            for rank in ranks
            for start, given in [self.steps[rank].given.get(name, (0, None))]
            if given is not None and given.numel() and all("norm" in step.notes for step in self.steps)
        ]
        return sorted(ratios)[len(ratios) // 2] if ratios else 1.0

    def gradients(self) -> Iterator[str]:
        """The sum rule."""
        told: dict[str, dict[str, list[int]]] = {}
        for name, groups in self.due.items():
            for ranks, axes, own in groups:
                for rank in (rank for rank in ranks if name in self.steps[rank].given):
                    start, given = self.steps[rank].given[name]
                    want = self.scale * part(self.expected(axes, rank, own), start, given)
                    if error(given, want) > CLOSE and square(given - want) > 1e-16:
                        said = self.explain(name, rank, start, given / self.scale, axes, ranks, own)
                        told.setdefault(said, {}).setdefault(name, ranks)
        for said, names in told.items():
            name, ranks = next(iter(names.items()))
            pieces = {rank: self.steps[rank].given[name] for rank in ranks if name in self.steps[rank].given}
            alike = len({(start, len(given)) for start, given in pieces.values()}) == 1
            pair = self.difference({rank: given for rank, (_, given) in pieces.items()}) if alike else ""
            more = f" (and of {len(names) - 1} more)" if len(names) > 1 else ""
            yield f"gradient of {name}{more} {f'differs {pair}: it ' if pair else ''}{said}"

    def explain(
        self, name: str, rank: int, start: int, given: Tensor, due: Axes, ranks: list[int], own: dict[int, Tensor]
    ) -> str:
        """What was done instead: a sum over other axes, another divisor, or
        some that count more or less than once."""
        dp = self.sizes["dp"]
        spread = [axis for axis in self.axes if any(axis in self.apart(ranks[0], one) for one in ranks)]
        every = [frozenset(some) for count in range(len(spread) + 1) for some in combinations(spread, count)]
        for axes in sorted(every, key=lambda axes: len(axes ^ due)):
            done = part(self.summed(axes, rank, own), start, given)
            factor = ratio(given, done)
            if not square(done) or error(given, factor * done) > CLOSE:
                continue
            if axes == due:
                by = f"{1 / factor:.4g}"
                kinds = [axis for axis in ("edp", "ep", "tp", "pp") if abs(factor * self.sizes[axis] - 1) < CLOSE]
                named = f"{by} ({kinds[0]})" if kinds else by
                return f"is {factor * dp:.4g} times too large: divided by {named} where {dp} (dp) is due"
            lacks = [f"lacks its sum over {self.named(due - axes)}"] if due - axes else []
            extra = [f"is summed over {self.named(axes - due)}, where all have the same"] if axes - due else []
            return " and ".join([*lacks, *extra])
        lists = {one: self.steps[one].own.get(name, []) for one in ranks}
        count = len(lists[ranks[0]]) if len({*map(len, lists.values())}) == 1 else 0
        by_batch = {
            f"micro-batch {k}": self.expected(due, rank, {one: its[k] for one, its in lists.items()})
            for k in range(count)
        }
        by_rank = {f"the gradient at {self.place(one)}": own[one] / dp for one in ranks}
        for parts in (by_batch, by_rank):
            counts = fit([part(its, start, given) for its in parts.values()], given) if len(parts) > 1 else []
            if counts:
                said = ", ".join(f"{what} {count:.3g} times" for what, count in zip(parts, counts, strict=True))
                return f"counts {said}, where once each is due"
        want = part(self.expected(due, rank, own), start, given)
        return f"is not the sum over {self.named(due)} (relative error {error(given, want):.2g})"

    def norm(self) -> Iterator[str]:
        """The norm that the program reports: each element counts once."""
        if not all("norm" in step.notes for step in self.steps):
            return
        kinds: dict[str, float] = {}
        for name, groups in self.due.items():
            cut = self.cuts[name]
            for ranks, axes, own in groups:
                tied = any("pp" in self.apart(ranks[0], one) for one in ranks)
                kind = f"sharded along {self.named([cut.axis])}" if cut else "replicated"
                kind += " and tied along pp" if tied else ""
                kinds[kind] = kinds.get(kind, 0.0) + square(self.expected(axes, ranks[0], own))
        said, true = self.steps[0].notes["norm"], sum(kinds.values()) ** 0.5
        if abs(said / true - 1) < CLOSE:
            return
        text = f"the norm is {said:.6g} and should be {true:.6g}"
        options = sorted({0, 1, *(self.sizes[axis] for axis in self.axes)})
        every = sorted(product(options, repeat=len(kinds)), key=lambda its: sum(one != 1 for one in its))
        for counts in every:
            found = sum(count * its for count, its in zip(counts, kinds.values(), strict=True)) ** 0.5
            if abs(found / said - 1) < CLOSE:
                wrong = [f"those {k} count {c} times" for c, k in zip(counts, kinds, strict=True) if c != 1]
                yield f"{text}: of the parameters {', '.join(wrong)}"
                return
        yield text

    # Whole tensors.

    def whole(self, of: Callable[[str, int], Tensor | None]) -> dict[str, Tensor]:
        """Parameters, or what has their shapes, put together from the first
        copy of each part."""
        found = {}
        for name, cut in self.cuts.items():
            parts = [of(name, ranks[0]) for ranks in self.copies(name)]
            there = [one for one in parts if one is not None]
            if len(there) == len(parts):
                found[name] = joined(there, cut) if cut else there[0]
        return found

    def whole_gradients(self) -> dict[str, Tensor]:
        by_rank = {
            (name, ranks[0]): self.expected(axes, ranks[0], own)
            for name, groups in self.due.items()
            for ranks, axes, own in groups
        }
        return self.whole(lambda name, rank: by_rank.get((name, rank)))


# The reference.


def compared_with_one(train: Train, mesh: Comparison, grid: Grid, step: int, blame: bool = True) -> list[str]:
    """Loss and gradients beside those of the same program on a mesh of one
    rank, which begins with the same parameters."""
    first = mesh if step == 0 else Comparison(record(train, grid), grid, 0)
    start = first.whole(lambda name, rank: first.steps[rank].before.get(name))
    alone = Comparison(record(train, Grid(), start), Grid(), step)
    found = []
    for note, theirs in alone.steps[0].notes.items():
        ours = mesh.steps[0].notes.get(note, theirs)
        if abs(ours - theirs) > CLOSE * abs(theirs):
            found.append(f"{note} is {ours:.6g}, and {theirs:.6g} in one process")
    if not found and all(number == 0 for _, number in alone.steps[0].calls):
        found += first_wrong_backward(mesh, alone)
    theirs_of, ours_of = alone.whole_gradients(), mesh.whole_gradients()
    wrong = [name for name, ours in ours_of.items() if error(ours, theirs_of[name]) > 10 * CLOSE]
    for name in wrong[:1]:
        mine, due = ours_of[name], theirs_of[name]
        found.append(
            f"gradient of {name} (the first of {len(wrong)}) is {ratio(mine, due):.4g} times one process's, with a "
            f"relative error of {error(mine, due):.2g}"
        )
    if found and blame:
        found.append(f"a smaller mesh that shows it: {smaller(train, grid, step)}")
    return found


def smaller(train: Train, grid: Grid, step: int) -> str:
    """The meshes of one axis on which the program differs from one process."""
    alone = [{axis: grid.sizes[axis]} for axis in ("pp", "dp_replicate", "dp_shard", "tp") if grid.sizes[axis] > 1]
    if grid.ep > 1:
        alone.append({"dp_shard": grid.ep, "ep": grid.ep})
    guilty = []
    for sizes in alone:
        small = Grid(**sizes)
        comparison = Comparison(record(train, small), small, step)
        if compared_with_one(train, comparison, small, step, blame=False):
            guilty.append(str(small))
    return " or ".join(guilty) or "none of one axis"


def first_wrong_backward(mesh: Comparison, alone: Comparison) -> list[str]:
    """The module, first in backward, whose output all ranks of tp have, and
    whose gradient there is not one process's."""
    right = "the loss"
    for (name, number), call in reversed(alone.steps[0].calls.items()):
        having = [rank for rank, step in enumerate(mesh.steps) if (name, number) in step.calls]
        ours = [mesh.steps[rank].calls[name, number] for rank in having]
        if call.gradient is None or not call.gradient.dim() or any(one.gradient is None for one in ours):
            continue
        pairs = mesh.pairs("tp", having)
        if not all(
            equal(mesh.steps[a].calls[name, number].made, mesh.steps[b].calls[name, number].made) for a, b in pairs
        ):
            continue
        parts = [
            one.gradient / mesh.sizes["dp"]
            for rank, one in zip(having, ours, strict=True)
            if one.gradient is not None and not mesh.at[rank]["tp"]
        ]
        whole = torch.cat(parts)
        if whole.shape != call.gradient.shape:
            continue
        if error(whole, call.gradient) > 10 * CLOSE:
            return [
                f"gradient of the output of {name} is {ratio(whole, call.gradient):.4g} times one process's, and right "
                f"up to {right}: a collective between them is missing or doubled in backward"
            ]
        right = f"that of {name}"
    return []


# Numbers.


def equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape and torch.equal(one, other)


def part(whole: Tensor, start: int, like: Tensor) -> Tensor:
    return whole.flatten()[start : start + like.numel()].view_as(like) if like.shape != whole.shape else whole


def square(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())


def error(ours: Tensor, due: Tensor) -> float:
    """The relative distance of two tensors."""
    return float((square(ours - due) / max(square(due), 1e-24)) ** 0.5)


def ratio(one: Tensor, other: Tensor) -> float:
    """The factor by which `other` comes nearest to `one`."""
    return float((one.double() * other).sum() / max(square(other), 1e-300))


def fit(parts: Sequence[Tensor], whole: Tensor) -> list[float]:
    """How often each part counts in a sum; [] if it is no such sum."""
    matrix = torch.stack([one.flatten().double() for one in parts], 1)
    column = whole.flatten().double()[:, None]
    counts = torch.linalg.lstsq(matrix, column).solution
    if error(matrix @ counts, column) > CLOSE:
        return []
    return [float(count) + 0.0 for count in counts.flatten().round(decimals=3)]
