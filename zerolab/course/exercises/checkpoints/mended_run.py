"""Exercise of lesson 08: a checkpoint that forgets. Runs that go on are held to the undisturbed one, to the bit."""

# Its class is made of what the text gives, which mypy does not read.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import torch

from zerolab.course.exercises.checkpoints.shared import Single
from zerolab.course.exercises.given import given
from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import never
from zerolab.course.judge.draw import torch_generator
from zerolab.course.judge.exercise import Claim, Exercise
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

Run: Any = given(TEXT, "Momentum", "Run")["Run"]


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


MISTAKES = r"""
It is made of `params`, which have lost its last bits: keep both, or `main` alone
    update(deepcopy(saved)) => update(deepcopy(saved))\n        self.main = self.params.float()
It has lost its last bits: keep it in fp32
    update(deepcopy(saved)) => update(deepcopy(saved))\n        self.momentum = self.momentum.half().float()
Its tensors are those of a later step: they change in place, so save() has to copy them
    deepcopy(vars(self)) => dict(vars(self))
All is that of a later step: what save() returned has changed as the run went on
    deepcopy(vars(self)) => vars(self)
It has changed since another run loaded the same checkpoint: load() has to copy, too
    deepcopy(saved) => saved
"""
STATE = ("batches", "scale", "clean", "steps", "momentum", "main", "params")
WHO = (
    "a new run that loads the checkpoint",
    "a second run that loads it, and has made steps before,",
    "the run that was saved, and goes back to its checkpoint,",
)


def follow(run: Any, data: torch.Tensor, steps: int) -> dict[str, Any]:
    """Loss and scale of so many steps, and the parameters at the end."""
    course = [[run.step(data), float(run.scale)] for _ in range(steps)]
    return {"course": course, "ends": [run.main.tolist(), run.params.tolist()]}


def run_resumed(fn, comm, main, other, data, window, at, steps):
    """An undisturbed run with a checkpoint on its way, and a later one; then a new run, a run that has begun otherwise,
    and the run itself, each from the first of them."""
    run = fn(main.clone(), window)
    before, saved = follow(run, data, at), run.save()
    noted = {"whole": {"before": before, "after": follow(run, data, steps)}}
    run.save()
    begun = fn(other.clone(), window)
    follow(begun, data, 3)
    for who, one in zip(WHO, (fn(other.clone(), window), begun, run), strict=True):
        returned = one.load(saved)
        noted.setdefault("returned", "" if returned is None else type(returned).__name__)
        state = {name: torch.as_tensor(getattr(one, name), dtype=torch.float64).tolist() for name in STATE}
        noted[who] = {"who": who, "state": state, **follow(one, data, steps)}
    return noted


def leaves(args: tuple[Any, ...], got: Any, want: Any) -> str:
    """How soon a run leaves the way of the undisturbed one, and what of it was not as it was when it was saved."""
    ways = zip(got["course"], want["course"], strict=True)
    steps = next((step for step, (ours, due) in enumerate(ways, 1) if ours != due), len(want["course"]))
    lost = next((name for name in STATE if not alike(got["state"][name], want["state"][name])), None)
    why = "right behind load() all is as it was: what is shared with another run, or comes later?"
    why = f"right behind load() its `{lost}` is not what it was when it was saved" if lost else why
    return f"{got['who']} leaves the way of the undisturbed one within {plural(steps, 'step')}: {why}"


def case_of(rng: Random, about: str, fits: Callable[[Any], bool]) -> Case:
    """A run, and a moment that fits."""
    while True:
        generator = torch_generator(rng)
        dim, rows, window = rng.randint(3, 5), rng.randint(4, 7), rng.randint(3, 5)
        main, other = torch.randn(2, dim, generator=generator)
        data = 2 * torch.randn(rows, dim, generator=generator)
        run = Run(main, window)
        for at in range(30):
            if at % rows and fits(run):
                about = f"{about} (batch {at} is next, {rows} rows, window {window})"
                return Case([(main, other, data, window, at, 8)], about=about)
            run.step(data)


def cases(rng: Random) -> list[Case]:
    def amid(run: Any) -> bool:
        return 0 < run.clean < run.window - 1 and run.steps > 5 and run.scale < 2**14

    found = [case_of(rng, "saved among clean steps", amid) for _ in range(3)]
    found.append(case_of(rng, "saved after an overflow", lambda run: run.clean == 0 and run.steps > 2))
    found.append(case_of(rng, "saved before the scale doubles", lambda run: run.clean % run.window == run.window - 1))
    main, other, data, window, _, steps = found[0].args[0]
    return [*found, Case([(main, other, data, window, 0, steps)], about="saved before the first step")]


def way(args: tuple[Any, ...], got: Any, want: Any) -> str:
    when = "behind save()" if alike(got["before"], want["before"]) else "before anything is saved"
    return f"{when} the run itself goes another way: to save changes nothing in it, and what Run does stays as it is"


EXERCISE = Exercise(
    "MendedRun",
    cases,
    (
        Claim("the run itself goes its way", Single("whole", tolerance=0.0, say=way)),
        Claim("a new run goes on as the undisturbed one does, to the bit", Single(WHO[0], tolerance=0.0, say=leaves)),
        Claim("so does a second one, from the same checkpoint", Single(WHO[1], tolerance=0.0, say=leaves)),
        Claim("and the run itself, when it goes back", Single(WHO[2], tolerance=0.0, say=leaves)),
        Claim("load() returns nothing", never("returned", "load() returns a {it}, and nothing is due")),
    ),
    run=run_resumed,
    hints=(
        "Go through __init__: what of it does step() change? All of that goes on from the checkpoint.",
        "Tensors are changed in place, so a checkpoint that shares them with a run changes as well: copy in both ways.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(MendedRun,),
    points=2,
)
