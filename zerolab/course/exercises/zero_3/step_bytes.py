"""The exercise of lesson 05 on what a step sends."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from zerolab.collectives import wire_bytes
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import amount

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


Units = Sequence[tuple[int, bool]]


def cost_cases(rng: Random) -> list[Case]:
    patterns = [[True, True], [True, False, True], [False, False, True, True], [False, True, False], [False, False]]
    cases = []
    for ranks in (2, 3, 4, 1, 8):
        for pattern in patterns:
            units = [(ranks * rng.randint(1, 500), trains) for trains in pattern]
            cases.append(cost_case(units, ranks, rng.randint(1, 4), rng.random() < 0.5))
    # On 2 ranks a forgotten (N-1)/N doubles the number, as do micro-batches; on 3 it does not.
    trained = [(240, True), (360, True), (600, True)]
    first = [cost_case(trained, 3, 1, checkpointing) for checkpointing in (False, True)]
    # Here all that one can forget or do too often gives a number of its own.
    first.append(cost_case([(120, False), (240, True), (480, False), (960, True)], 3, 2, False))
    # 24 times an odd number near 2**56 is no float.
    many = cost_case([(3 * rng.randrange(2**56 + 1, 2**57, 2), True)], 3, 1, False)
    # Units that are alike, before and behind the first that trains.
    one, other = (3 * number for number in rng.sample(range(100, 500), 2))
    alike = cost_case([(one, False), (other, True), (one, False), (other, True)], 3, 3, False)
    # And the same length, once frozen and once not.
    length = 3 * rng.randint(100, 500)
    mixed = cost_case([(length, False), (length, True), (length, False)], 3, 1, False)
    # A unit that 64 bits hold; the bytes of a step they do not.
    huge = cost_case([(3 * rng.randrange(2**59 + 1, 2**60, 2), True)], 3, 4, False)
    return [*first, *cases, many, alike, mixed, huge]


def cost_case(units: Units, ranks: int, micro_batches: int, checkpointing: bool) -> Case:
    words = ", ".join(f"{numel}{'' if trains else ' frozen'}" for numel, trains in units)
    said = f"units [{words}], {plural(ranks, 'rank')}, micro_batches={micro_batches}, checkpointing={checkpointing}"
    return Case([(list(units), ranks, micro_batches, checkpointing)], about=said)


def stage3_bytes(
    units: Units,
    ranks: int,
    micro_batches: int = 1,
    forward: int = 1,
    skips_frozen_start: bool = True,
    backward: int = 1,
    reduces_frozen: bool = False,
    gathers_frozen: bool = True,
) -> int:
    """Bytes of a step at stage 3. The last arguments make what is right wrong, to know mistakes by their number."""
    first = next((index for index, (_, trains) in enumerate(units) if trains), len(units))
    gathered = [(numel, index) for index, (numel, trains) in enumerate(units) if trains or gathers_frozen]
    forth = sum(numel for numel, _ in gathered)
    back = sum(numel for numel, index in gathered if index >= first or not skips_frozen_start)
    reduced = sum(numel for numel, trains in units if trains or reduces_frozen)
    # Every unit's length divides, so that a half ring of all is the sum of theirs.
    return micro_batches * wire_bytes("all_gather", forward * forth + backward * back + reduced, 4, ranks, 0)


def cost_right(case: Case, seen: Observation) -> str | None:
    got, want = seen.records[0].value, stage3_bytes(*case.args[0][:3])
    return amount(got, want, lambda: mistakes(got, want, *case.args[0]))


def mistakes(
    got: float, want: int, units: Units, ranks: int, micro_batches: int, checkpointing: bool
) -> dict[str, int | bool | None]:
    """What gave these bytes, by what to say of it."""
    trained = sum(numel for numel, trains in units if trains)
    first = next((index for index, (_, trains) in enumerate(units) if trains), len(units))
    last = max((index for index, (_, trains) in enumerate(units) if trains), default=-1)
    forth, back = sum(numel for numel, _ in units), sum(numel for numel, _ in units[first:])
    after = sum(numel for numel, _ in units[last + 1 :]) if trained else 0

    def not_back(numel: int) -> int | None:
        """Bytes if backward does not gather so many elements."""
        return want - micro_batches * wire_bytes("all_gather", numel, 4, ranks, 0) if numel else None

    def without(numel: int) -> int:
        return want - (micro_batches - 1) * wire_bytes("all_gather", numel, 4, ranks, 0)

    return {
        "Nearly: a fraction in between is rounded, so stay with whole numbers, and divide with //": (
            abs(got - want) * 10**12 < want
        ),
        "That is what 64 bits leave of it; Python's own int holds all of it": (
            isinstance(got, int) and want >= 2**63 and not (got - want) % 2**64
        ),
        "Two units may be alike, and list.index() finds the first of them: take enumerate() for the place": (
            not_back(back - sum(unit[0] for unit in units if units.index(unit) >= first))
        ),
        "Two units may be alike, and a set or a dict holds them once": (
            stage3_bytes(list(dict.fromkeys(units)), ranks, micro_batches) if len(set(units)) < len(units) else None
        ),
        "Two units may have one length, and a set or a dict by length holds it once": (
            not_back(trained - sum({numel for numel, trains in units if trains}))
        ),
        "No unit trains: there is no backward, and so nothing to gather for it": (
            0 if trained else stage3_bytes(units, ranks, micro_batches, skips_frozen_start=False)
        ),
        "You reduce once a step; here each micro-batch reduces its gradients": without(trained),
        "You gather once a step for forward; each micro-batch has a forward, and units are released after it": (
            without(forth)
        ),
        "You gather once a step for backward; each micro-batch has a backward, and units are released after it": (
            without(back)
        ),
        "In backward a frozen unit after the last that trains is needed, too: the gradient comes from the loss": (
            not_back(after)
        ),
        "In backward a frozen unit between two that train is needed, too: the gradient passes through it": (
            not_back(back - trained - after)
        ),
        "In backward frozen units from the first that trains on are needed, too: the gradient passes through them": (
            not_back(back - trained)
        ),
        "In backward the first unit that trains is gathered, too": not_back(units[first][0] if trained else 0),
        "In backward the last unit is gathered, too: it was released after forward": not_back(
            units[-1][0] if trained else 0
        ),
        "You gather once; backward needs each unit again": stage3_bytes(units, ranks, micro_batches, backward=0),
        "You gather for recomputing, too; that forward runs inside backward, where the unit is here": (
            stage3_bytes(units, ranks, micro_batches, forward=1 + checkpointing)
        ),
        "In backward you gather units that no gradient passes through: those before the first that trains": (
            stage3_bytes(units, ranks, micro_batches, skips_frozen_start=False)
        ),
        "A frozen unit has no gradient to reduce": stage3_bytes(units, ranks, micro_batches, reduces_frozen=True),
        "A frozen unit has no gradient to reduce, also between two that train": (
            want + micro_batches * wire_bytes("all_gather", back - trained, 4, ranks, 0)
        ),
        "In a frozen unit nothing changes, but its parameters are cut, too, and needed": (
            stage3_bytes(units, ranks, micro_batches, gathers_frozen=False)
        ),
        "That is one micro-batch; each one gathers and reduces anew": stage3_bytes(units, ranks),
        "You counted elements; in fp32 each has 4 bytes": want // 4,
        "You counted 2 bytes each; in fp32 an element has 4": want // 2,
        "A ring of N ranks sends (N-1)/N of a tensor, not all of it": want * ranks // max(ranks - 1, 1),
        "You reduce for everybody: an all_reduce is two half rings, and stage 3 needs the first one only": want
        + micro_batches * wire_bytes("all_gather", trained, 4, ranks, 0),
        **{
            f"So much would {count} micro-batches send": stage3_bytes(units, ranks, count)
            for count in (2, 3, 4)
            if count != micro_batches
        },
    }


EXERCISE = Exercise(
    "step_bytes",
    cost_cases,
    (
        Claim("its list of units stays as it was", untouched(0)),
        Claim("what you predict is what the meter counts", cost_right),
    ),
    run=alone,
    hints=(
        "For each unit: how often is it gathered, how often is its gradient reduced?",
        "A gradient flows back from the loss to the first unit that trains, and through all units between.",
        "All-gather and reduce-scatter cost the same: (N-1)/N of the tensor.",
    ),
    text=TEXT,
    answer=(step_bytes,),
    points=2,
)
