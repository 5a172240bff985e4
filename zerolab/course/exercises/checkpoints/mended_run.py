"""Exercise of lesson 08: a checkpoint that forgets. Runs that go on are held to the undisturbed one, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import torch

from zerolab.course.judge.case import Case, Observation, once
from zerolab.course.judge.draw import torch_generator
from zerolab.course.judge.exercise import Claim, Exercise, Test
from zerolab.course.judge.same import alike

TEXT = """
Find what is lost

A small run in fp16, whose model has a few parameters and is to give 1 for every row of its data. Its loss is scaled:
an overflow skips the step and halves the scale, and every `window` clean steps in a row double it. The rate falls
from step to step.

```{code-cell}
:name: Momentum

from copy import deepcopy


class Momentum:
    def __init__(self, main):
        self.main, self.params = deepcopy(main), main.half()
        self.momentum, self.steps = torch.zeros_like(main), 0

    def update(self, gradient):
        self.steps += 1
        self.momentum.mul_(0.9).add_(gradient)
        self.main.sub_(0.2 / (self.steps + 9) * self.momentum)
        self.params.copy_(self.main)
```

```{code-cell}
:name: Run

class Run(Momentum):
    def __init__(self, main, window):
        super().__init__(main)
        self.window, self.scale, self.clean, self.batches = window, 2.0**16, 0, 0

    def step(self, data):
        row = data[self.batches % len(data)]
        self.batches += 1
        error = (row * self.params.float()).sum() - 1
        gradient = (self.scale * error * row).half()
        self.clean = self.clean + 1 if gradient.isfinite().all() else 0
        if self.clean:
            self.update(gradient.float() / self.scale)
            self.scale *= 1 + (self.clean % self.window == 0)
        else:
            self.scale /= 2
        return float(error**2)
```

Somebody has given it a checkpoint, in a hurry:

```{code-cell}
:name: shown_hasty

class HastyRun(Run):
    def save(self):
        return {"params": self.params, "momentum": self.momentum, "steps": self.steps}

    def load(self, saved):
        self.params, self.momentum, self.steps = saved["params"], saved["momentum"], saved["steps"]
        self.main = self.params.float()
```

```{code-cell}
:name: shown_lost

def follow(run, data, steps):
    return [f"{run.step(data):.4f} at {run.scale:g}" for _ in range(steps)]


data = torch.tensor([[1.0, 2, -1], [3, -1, 2], [-2, 1, 1], [1, 1, 4], [2, 2, -3]])
run = HastyRun(torch.tensor([0.3, -0.7, 1.1]), window=3)
follow(run, data, 8)
saved = run.save()
undisturbed = follow(run, data, 4)
new = HastyRun(torch.zeros(3), window=3)
new.load(saved)
{"undisturbed": undisturbed, "from its checkpoint": follow(new, data, 4)}
```

Loss and scale should be the same. The loss begins with other data, and the scale with its first value, so that steps
are skipped until it has come down again. There is more that is lost, or comes too late. Write `save` and `load` so
that a run goes on from a checkpoint as if nothing had happened, to the last bit.

- What `save()` returns is up to you. To save changes nothing in the run, which goes on; what was saved stays as it
  was.
- `load(saved)` makes a run of the same shape and window that which was saved: one that is new, one that has made
  other steps, or the same one later. Several runs may load the same checkpoint, one after the other. It returns
  nothing.
- Leave `step`, `update` and the names of what a run has as they are.

The check draws data, and checkpoints before the first step, right after an overflow, among clean steps, and just
before the scale doubles. About four lines.
"""


Tensor = torch.Tensor
COUNTS = ("batches", "scale", "clean", "steps")
TENSORS = ("main", "momentum", "params")


class Run:
    """The run that the exercise shows, in our own words."""

    def __init__(self, main: Tensor, window: int) -> None:
        self.main, self.window = main.clone(), window
        self.params, self.momentum = main.half(), torch.zeros_like(main)
        self.scale, self.clean, self.steps, self.batches = 2.0**16, 0, 0, 0

    def step(self, data: Tensor) -> float:
        row = data[self.batches % len(data)]
        self.batches += 1
        error = (row * self.params.float()).sum() - 1
        gradient = (self.scale * error * row).half()
        if not gradient.isfinite().all():
            self.scale, self.clean = self.scale / 2, 0
            return float(error**2)
        self.steps, self.clean = self.steps + 1, self.clean + 1
        self.momentum.mul_(0.9).add_(gradient.float() / self.scale)
        self.main.sub_(0.2 / (self.steps + 9) * self.momentum)
        self.params.copy_(self.main)
        if self.clean % self.window == 0:
            self.scale *= 2
        return float(error**2)


class MendedRun(Run):
    """A run that goes on from a checkpoint as if nothing had happened."""

    def save(self):
        """What the run goes on from, as it is now."""
        ### BEGIN SOLUTION
        return deepcopy(vars(self))
        ### END SOLUTION

    def load(self, saved) -> None:
        """Go on from what was saved, which stays as it is."""
        ### BEGIN SOLUTION
        vars(self).update(deepcopy(saved))
        ### END SOLUTION


def follow(run: Any, data: Tensor, steps: int) -> dict[str, Any]:
    """Loss and scale of so many steps, and the parameters at the end."""
    course = [[run.step(data), float(run.scale)] for _ in range(steps)]
    return {"course": course, "ends": [run.main.tolist(), run.params.tolist()]}


def state_of(run: Any) -> dict[str, Any]:
    """What a run is made of."""
    found = {name: getattr(run, name, None) for name in (*COUNTS, *TENSORS)}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in found.items()}


def run_resumed(
    fn: Callable[..., Any], comm: Any, main: Tensor, other: Tensor, data: Tensor, window: int, at: int, steps: int
) -> dict[str, Any]:
    """An undisturbed run with a checkpoint on its way, and a later one; then a new run, a run that has begun otherwise,
    and the run itself, each from the first of them."""
    run = fn(main.clone(), window)
    before = follow(run, data, at)
    saved = run.save()
    noted: dict[str, Any] = {"whole": {"before": before, "after": follow(run, data, steps)}, "late": state_of(run)}
    run.save()
    begun = fn(other.clone(), window)
    follow(begun, data, 3)
    for name, one in (("new", fn(other.clone(), window)), ("begun", begun), ("back", run)):
        returned = one.load(saved)
        noted.setdefault("returned", "" if returned is None else type(returned).__name__)
        noted[name] = {"state": state_of(one)} | follow(one, data, steps)
    return noted


# What is right.


@once
def undisturbed(case: Case) -> dict[str, Any]:
    main, _, data, window, at, steps = case.args[0]
    run = Run(main, window)
    before = follow(run, data, at)
    state = state_of(run)
    return {"before": before, "state": state, "after": follow(run, data, steps)}


def whole_right(case: Case, seen: Observation) -> str | None:
    want, got = undisturbed(case), seen.records[0].value["whole"]
    if not alike(got["before"], want["before"]):
        return "a run that is neither saved nor loaded goes another way: leave what Run does as it is"
    if not alike(got["after"], want["after"]):
        return "behind save() the run itself goes another way: to save changes nothing in it"
    return None


def resumed_right(name: str) -> Test:
    def test(case: Case, seen: Observation) -> str | None:
        noted, want = seen.records[0].value, undisturbed(case)
        got = noted[name]
        if alike({part: got[part] for part in want["after"]}, want["after"]):
            return None
        course, due = got["course"], want["after"]["course"]
        at = next((at for at in range(len(due)) if not alike(course[at], due[at])), None)
        said = f"{WHO[name]} leaves the way of the undisturbed one"
        if at is None:
            said = f"{said} in the last bits of its parameters"
        else:
            said = (
                f"{said} in step {at + 1} behind the checkpoint, loss {course[at][0]:.6g} in place of {due[at][0]:.6g}"
            )
        return f"{said}: {why(name, got['state'], want['state'], noted)}"

    return test


def returns_nothing(case: Case, seen: Observation) -> str | None:
    kind = seen.records[0].value["returned"]
    return f"load() returns a {kind}: it changes the run that it is called on, and returns nothing" if kind else None


WHO = {
    "new": "a new run that loads the checkpoint",
    "begun": "a second run that loads it, and has made steps before,",
    "back": "the run that was saved, and goes back to its checkpoint,",
}
LOST = {
    "batches": "batch {got} comes next, and {want} is due: which data has the run had?",
    "scale": "the loss scale is {got:g} where it was {want:g}: what has the run found out?",
    "clean": "{got} clean steps are counted where there were {want}: when does the scale double?",
    "steps": "{got} steps are counted where there were {want}: what falls with them?",
    "momentum": "the momentum is not that of the checkpoint",
    "params": "`params` are not those of the checkpoint: they are made of `main`",
}


def why(name: str, got: dict[str, Any], want: dict[str, Any], noted: dict[str, Any]) -> str:
    """What of a run is not as it was when it was saved."""
    for each in TENSORS:
        if alike(got[each], want[each]):
            continue
        if alike(got[each], noted["late"][each]) and name == "new":
            return f"`{each}` is that of a later step: what save() returned has changed as the run went on"
        if name != "new" and alike(noted["new"]["state"][each], want[each]):
            return f"`{each}` has changed since another run loaded the same checkpoint: load() has to copy, too"
    for each in COUNTS:
        if not alike(got[each], want[each]):
            shown = {"got": got[each], "want": want[each]}
            plain = isinstance(got[each], int | float)
            return LOST[each].format(**shown) if plain else f"`{each}` is no number any more"
    if not alike(got["main"], want["main"]):
        if alike(got["main"], want["params"]):
            return "`main` is made of `params`, which have lost its last bits: keep both, or `main` alone"
        return "`main` is not that of the checkpoint, to the last bit"
    if alike(as_half(got["momentum"]), as_half(want["momentum"])) and got["momentum"] != want["momentum"]:
        return "`momentum` has lost its last bits: keep it in fp32"
    lost = next((each for each in ("momentum", "params") if not alike(got[each], want[each])), "")
    return LOST.get(lost, "right behind load() all is as it was: what is shared with another run, or comes later?")


def as_half(values: Any) -> Any:
    return torch.tensor(values).half() if isinstance(values, list) else values


# Cases.


def told_apart(main: Tensor, data: Tensor, window: int, at: int, steps: int) -> int:
    """How many parts of a run it takes to go on to the bit."""
    run = Run(main, window)
    follow(run, data, at)
    whole = follow(deepcopy(run), data, steps)
    count = 0
    for name in (*COUNTS, "momentum", "main"):
        lacking, fresh = deepcopy(run), Run(main, window)
        setattr(lacking, name, run.params.float() if name == "main" else getattr(fresh, name))
        count += not alike(follow(lacking, data, steps), whole)
    return count


def case_of(rng: Random, about: str, fits: Callable[[Run], bool]) -> Case:
    """A run and a moment that fits; of some, the one at which most parts of a run are needed."""
    found: list[tuple[int, tuple[Any, ...]]] = []
    while len(found) < 6:
        generator = torch_generator(rng)
        dim, rows, window = rng.randint(3, 5), rng.randint(4, 7), rng.randint(3, 5)
        main, other = torch.randn(2, dim, generator=generator)
        data = 2 * torch.randn(rows, dim, generator=generator)
        run, steps = Run(main, window), 8
        for at in range(30):
            if at % rows and fits(run):
                found.append((told_apart(main, data, window, at, steps), (main, other, data, window, at, steps)))
                break
            run.step(data)
    _, args = max(found, key=lambda one: one[0])
    return Case([args], about=f"{about} (batch {args[4]} is next, {len(args[2])} rows, window {args[3]})")


def cases(rng: Random) -> list[Case]:
    def amid(run: Run) -> bool:
        return 0 < run.clean < run.window - 1 and run.steps > 5 and run.scale < 2**14

    found = [case_of(rng, "saved among clean steps", amid) for _ in range(3)]
    found.append(case_of(rng, "saved after an overflow", lambda run: run.clean == 0 and run.steps > 2))
    found.append(case_of(rng, "saved before the scale doubles", lambda run: run.clean % run.window == run.window - 1))
    main, other, data, window, _, steps = found[0].args[0]
    return [*found, Case([(main, other, data, window, 0, steps)], about="saved before the first step")]


EXERCISE = Exercise(
    "MendedRun",
    cases,
    (
        Claim("the run itself goes its way", whole_right),
        Claim("a new run goes on as the undisturbed one does, to the bit", resumed_right("new")),
        Claim("so does a second one, from the same checkpoint", resumed_right("begun")),
        Claim("and the run itself, when it goes back", resumed_right("back")),
        Claim("load() returns nothing", returns_nothing),
    ),
    run=run_resumed,
    hints=(
        "Go through __init__: what of it does step() change? All of that goes on from the checkpoint.",
        "Tensors are changed in place, so a checkpoint that shares them with a run changes as well: copy in both ways.",
    ),
    text=TEXT,
    answer=(MendedRun,),
    points=2,
)
