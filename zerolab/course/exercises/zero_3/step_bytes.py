"""The exercise of lesson 05 on what a step sends."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import short

TEXT = """
The cost

How many bytes does a rank send in one step of stage 3? `units` is a list of `(numel, trains)` in forward order: the
elements of a unit, which the ranks divide, in fp32, and whether it trains or is frozen. There are `micro_batches`,
each with a forward, a backward, and reduced gradients. With `checkpointing`, a unit's backward begins with its
forward, run again. Does that send anything? Leave the list as it is.

Frozen units are cut, too. The input needs no gradient, so backward goes no further than the first unit that trains;
if none does, there is only forward.

This is what the library's meter counts in one case, for four units of 64 by 64 of which the first is frozen, with two
micro-batches. Predict it by hand before you write the formula.

```{code-cell}
:name: shown_measured

def measured(comm):
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(4)])
    model[0].requires_grad_(False)
    engine = ZeroEngine(model, comm, 3, lr=1e-3)
    comm.meter.reset()
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 64)).square().mean())
    engine.step()
    return sum(comm.meter.bytes_by_collective().values())


list(launch(measured, ranks=2, device="cpu"))
```

The check draws frozen units in any place, 1 to 8 ranks, and numbers so large that a fraction in between would be
rounded and 64 bits are too few. About six lines.
"""


def step_bytes(units: list[tuple], ranks: int, micro_batches: int, checkpointing: bool) -> int:
    """Bytes that each rank puts on the wire in one step."""
    ### BEGIN SOLUTION
    first = next((index for index, (_, trains) in enumerate(units) if trains), len(units))
    forth = sum(numel for numel, _ in units)
    back = sum(numel for numel, _ in units[first:])
    reduced = sum(numel for numel, trains in units if trains)
    return micro_batches * 4 * (forth + back + reduced) // ranks * (ranks - 1)
    ### END SOLUTION


MISTAKES = r"""
Two units may be alike, and list.index() finds the first of them: take enumerate() for the place
    for numel, _ in units[first:] => for numel, trains in units if units.index((numel, trains)) >= first
You reduce once a step; here each micro-batch reduces its gradients
    micro_batches * 4 * (forth + back => 4 * (micro_batches * (forth + back)
In backward frozen units from the first that trains on are needed, too: the gradient passes through them
    _ in units[first:] => trains in units if trains
You gather once; backward needs each unit again
    forth + back + reduced => forth + reduced
You gather for recomputing, too; that forward runs inside backward, where the unit is here
    forth + back => forth * (1 + checkpointing) + back
In backward you gather units that no gradient passes through: those before the first that trains
    units[first:] => units
A frozen unit has no gradient to reduce
    in units if trains) => in units)
In a frozen unit nothing changes, but its parameters are cut, too, and needed
    first = => units = [unit for unit in units if unit[1]]\n    first =
That is one micro-batch; each one gathers and reduces anew
    micro_batches * 4 => 4
A ring of N ranks sends (N-1)/N of a tensor, not all of it
    // ranks * (ranks - 1) =>
You reduce for everybody: an all_reduce is two half rings, and stage 3 needs the first one only
    + reduced => + 2 * reduced
"""


def cost_cases(rng: Random) -> list[Case]:
    drawn = []
    for ranks in (2, 3, 4, 1, 8):
        for pattern in ("TT", "T-T", "--TT", "-T-", "--"):
            units = [(ranks * rng.randint(1, 500), letter == "T") for letter in pattern]
            drawn.append((units, ranks, rng.randint(1, 4), rng.random() < 0.5))
    trained = [(240, True), (360, True), (600, True)]
    one, other = (3 * number for number in rng.sample(range(100, 500), 2))
    length = 3 * rng.randint(100, 500)
    cases = [
        # On 2 ranks a forgotten (N-1)/N doubles the number, as do micro-batches; on 3 it does not.
        (trained, 3, 1, False),
        (trained, 3, 1, True),
        # Here all that one can forget or do too often gives a number of its own.
        ([(120, False), (240, True), (480, False), (960, True)], 3, 2, False),
        *drawn,
        # 24 times an odd number near 2**56 is no float.
        ([(3 * rng.randrange(2**56 + 1, 2**57, 2), True)], 3, 1, False),
        # Units that are alike, before and behind the first that trains.
        ([(one, False), (other, True), (one, False), (other, True)], 3, 3, False),
        # And the same length, once frozen and once not.
        ([(length, False), (length, True), (length, False)], 3, 1, False),
        # A unit that 64 bits hold; the bytes of a step they do not.
        ([(3 * rng.randrange(2**59 + 1, 2**60, 2), True)], 3, 4, False),
    ]
    return [Case([case]) for case in cases]


def said(args, got, want):
    return f"you say {short(got)} bytes, and the meter counts {want}"


EXERCISE = Exercise(
    "step_bytes",
    cost_cases,
    (Claim("what you predict is what the meter counts", Gives(say=said)),),
    run=alone,
    hints=(
        "For each unit: how often is it gathered, how often is its gradient reduced?",
        "A gradient flows back from the loss to the first unit that trains, and through all units between.",
        "All-gather and reduce-scatter cost the same: (N-1)/N of the tensor.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(step_bytes,),
    points=2,
)
