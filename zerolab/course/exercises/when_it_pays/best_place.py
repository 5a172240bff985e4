"""The exercise of lesson 07b on when offloading pays: which place fits, and which of those is fastest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives, called, program, read_mistakes
from zerolab.course.judge.same import NEARLY, alike

TEXT = """
When it pays

Offloading costs time in a step, and gains room on the device: for activations, hence for larger micro-batches. Which
place is fastest?

Stage 2, bf16: Ψ = `numel` parameters over `ranks` ranks, which divide it. A rank has `tokens` tokens a step.
`machine` is a dictionary of whole numbers.

| place of the states | device holds | host holds | disk holds | moving takes |
| --- | --- | --- | --- | --- |
| `"device"` | 2Ψ + 14Ψ/N | 0 | 0 | 0 |
| `"host"` | 2Ψ | 14Ψ/N | 0 | link + update |
| `"disk"` | 2Ψ | 2Ψ/N | 12Ψ/N | link + the longer of update and swap |

- link: 4Ψ/N bytes a step at `link_bytes_per_s` (we count gradients as going down once, whatever the number of
  micro-batches). update: 28Ψ/N bytes at `host_bytes_per_s`. swap: 24Ψ/N bytes at `disk_bytes_per_s`, a speed that
  `ranks_per_disk` ranks share.
- A rank's memories are `device_bytes`, `host_bytes` and `disk_bytes`. What the device has left holds activations,
  `token_bytes` for each token of a micro-batch. A place without room for one token, or that host or disk cannot hold,
  is out.
- With the largest micro-batch that fits, so many micro-batches as the tokens need. Each takes `micro_us` microseconds
  whatever its size, besides 6Ψ operations for each token at `flop_per_s`.

Return `[place, seconds of a step]` of the fastest place that fits, or `None` if none does. Of places that take
equally long, the one higher in the table. The check draws machines on which each of the places is best, or none,
memories that fit to the byte, and places with room for one token or for a part of one. About sixteen lines.
"""


def best_place(numel: int, ranks: int, tokens: int, machine: dict[str, int]) -> list | None:
    """[The fastest place that fits, seconds of a step]."""
    ### BEGIN SOLUTION
    share, best = numel // ranks, None
    link = 4 * share / machine["link_bytes_per_s"]
    update = 28 * share / machine["host_bytes_per_s"]
    swap = 24 * share * machine["ranks_per_disk"] / machine["disk_bytes_per_s"]
    places = {
        "device": (2 * numel + 14 * share, 0, 0, 0.0),
        "host": (2 * numel, 14 * share, 0, link + update),
        "disk": (2 * numel, 2 * share, 12 * share, link + max(update, swap)),
    }
    for place, (device, host, disk, moving) in places.items():
        micro = (machine["device_bytes"] - device) // machine["token_bytes"]
        if micro > 0 and host <= machine["host_bytes"] and disk <= machine["disk_bytes"]:
            computing = -(-tokens // micro) * machine["micro_us"] / 1e6 + 6 * numel * tokens / machine["flop_per_s"]
            if best is None or computing + moving < best[1]:
                best = [place, computing + moving]
    return best
    ### END SOLUTION


MISTAKES = r"""
That is not the fastest of the places that fit: a later one may leave room for larger micro-batches
    best is None or computing + moving < best[1] => best is None
A rest of tokens needs a micro-batch, too: round up
    -(-tokens // micro) => max(1, tokens // micro)
There are only whole micro-batches: round up
    -(-tokens // micro) => tokens / micro
You count 2 operations a parameter and token; with backward there are 6
    6 * numel => 2 * numel
A rank moves and keeps states of its N-th of the parameters
    numel // ranks => numel
At stage 2 the parameters on the device are whole
    - device) => - device + 2 * (numel - share))
Sharded gradients rest where the step is computed, and leave the device with the optimizer
    "host": (2 * numel, 14 * share => "host": (2 * numel + 2 * share, 12 * share
    "disk": (2 * numel, 2 * share => "disk": (2 * numel + 2 * share, 0
A place whose device has no room for one token is out
    micro > 0 => micro
Two bytes go down the link, and two come up
    = 4 * share => = 2 * share
Ranks that share a disk share its speed
    24 * share * machine["ranks_per_disk"] => 24 * share
The step goes on beside the disk: the longer of the two counts
    max(update, swap) => update + swap
A micro-batch has whole tokens: how many fit, rounded down, and then how many micro-batches, rounded up
    - device) // => - device) /
"""
SLIPS: tuple[tuple[str, str], ...] = (
    ("< best[1]", "<= best[1]"),
    ('host <= machine["host_bytes"] and', ""),
    ('and disk <= machine["disk_bytes"]', ""),
    ("disk <= machine", 'disk * machine["ranks_per_disk"] <= machine'),
    ('"disk": (2 * numel, 2 * share', '"disk": (2 * numel, 0'),
    ("host <=", "host <"),
    ("micro > 0", "micro > 1"),
    ("if micro > 0", "micro = micro or 1\n        if micro > 0"),
    ('- device) // machine["token_bytes"]', '- device) // machine["token_bytes"] + 1'),
    ("-(-tokens // micro)", "(tokens // micro + 1)"),
    ("link + max", "max"),
    ("max(update, swap)", "swap"),
)
"""What shows in few machines only, so that there has to be one for each."""


def drawn(rng: Random) -> tuple[Any, ...]:
    """A model and a machine. Its times are such as a Python float has exactly: in whatever order they are added, equal
    ones are equal."""
    ranks = rng.choice((1, 2, 4, 8))
    numel = ranks * 10**6 * rng.randint(50, 1500)
    share = numel // ranks
    token = rng.randint(100, 900) * 1000
    device = int(rng.choice((0.5, 1.01, 1.1, 1.4, 2.0)) * (2 * numel + 14 * share)) + token // 2
    if rng.random() < 0.3:
        device = 2 * numel + rng.randint(0, 2 * token - 1)  # so that the place on the host has room for one, or none
    machine = {
        "device_bytes": device,
        "host_bytes": share * rng.choice((1, rng.randint(3, 12), 14, 28, 56)),
        "disk_bytes": 12 * share * rng.choice((2, 4, 8)) // rng.choice((1, 1, 16)),
        "token_bytes": token,
        "micro_us": 15_625 * rng.randint(1, 19),
        "flop_per_s": 2 ** rng.randint(46, 48),
        "link_bytes_per_s": 2 ** rng.randint(33, 35),
        "host_bytes_per_s": 2 ** rng.randint(32, 35),
        "disk_bytes_per_s": 2 ** rng.randint(30, 35),
        "ranks_per_disk": rng.choice((3, 4, 8)),
    }
    return numel, ranks, rng.randint(1, 30) * 1000 + rng.randint(1, 999), machine


def pays_cases(rng: Random) -> list[Case]:
    """A case for each place, and for none; and one for each mistake, in which it shows. Mistakes that show for the
    first time in a case give different things there, so that each is told of itself."""
    named = [program(best_place, change) for change in read_mistakes(MISTAKES).values()]
    slips = [*named, *(program(best_place, change) for change in SLIPS)]
    cases: list[Case] = []

    def find(suits: Callable[..., bool]) -> None:
        for _ in range(20_000):
            args = drawn(rng)
            want = best_place(*args)
            if not suits(args, want):
                continue
            shown = {slip: called(slip, args) for slip in named}
            shown = {slip: gives for slip, gives in shown.items() if not alike(gives, want, NEARLY)}
            if not any(alike(one, other, NEARLY) for one, other in combinations(shown.values(), 2)):
                break
        named[:] = [slip for slip in named if slip not in shown]
        numel, ranks, tokens, machine = args
        memories = ", ".join(f"{tier} {machine[f'{tier}_bytes'] / 1e9:.3g}" for tier in ("device", "host", "disk"))
        said = f"{numel / 1e6:,.0f} million parameters, {plural(ranks, 'rank')}, {tokens:,} tokens a rank"
        cases.append(Case([args], about=f"{said}, {memories} GB"))

    for place in ("device", "host", "disk", None):
        find(lambda args, want, place=place: (want and want[0]) == place)
    for slip in slips:
        find(lambda args, want, slip=slip: not alike(called(slip, args), want, NEARLY))
    return cases


EXERCISE = Exercise(
    "best_place",
    pays_cases,
    (
        Claim(
            "it finds the fastest place that fits, and the seconds of a step there",
            Gives(look="Write down the seconds of each of the three places, and which of them fit"),
        ),
    ),
    run=alone,
    hints=(
        "For each place four numbers: bytes on device, host and disk, and the seconds that moving takes.",
        "Room for activations is what the device has left; by it the tokens are divided into micro-batches.",
        "Of the places that fit keep the fastest so far; if none fits, None.",
    ),
    mistakes=MISTAKES,
    without=frozenset({"shape"}),  # a tuple will do
    text=TEXT,
    answer=(best_place,),
    points=3,
)
