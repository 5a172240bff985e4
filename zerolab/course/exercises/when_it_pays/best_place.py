"""The exercise of lesson 07b on when offloading pays: which place fits, and which of those is fastest."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import NEARLY, Mistakes, answers, both
from zerolab.course.judge.same import alike

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


Machine = dict[str, int]
GB = 10**9


def best(
    numel: int,
    ranks: int,
    tokens: int,
    machine: Machine,
    *,
    slip: str = "",
) -> list[Any] | None:
    """[Place, seconds of a step] of the fastest that fits, open to slips."""
    found: list[list[Any]] = []
    for place in ("device", "host", "disk"):
        fits, seconds = priced(place, numel, ranks, tokens, machine, slip)
        if fits:
            found.append([place, seconds])
    if not found:
        return None
    if slip == "first":
        return found[0]
    if slip == "slowest":
        return max(found, key=lambda one: one[1])
    if slip == "last":
        found.reverse()
    return min(found, key=lambda one: one[1])


def priced(place: str, numel: int, ranks: int, tokens: int, machine: Machine, slip: str) -> tuple[bool, float]:
    """Whether a place has room, and the seconds of a step there."""
    share = numel / (1 if slip == "not shared" else ranks)
    held = {"device": 0.0, "host": 0.0, "disk": 0.0}
    held["device"] = 2.0 * (share if slip == "stage 3" else numel)
    held["host" if place != "device" else "device"] += 2 * share
    held[place] += 12 * share
    if slip == "gradients stay" and place != "device":
        held["device"], held["host"] = held["device"] + 2 * share, held["host"] - 2 * share
    room = machine["device_bytes"] - held["device"]
    micro, part = int(room // machine["token_bytes"]), room / machine["token_bytes"]
    if slip in IN_PARTS:
        tokens_each = IN_PARTS[slip](part)
        if tokens_each <= 0:
            return False, 0.0
    else:
        if slip == "a token" or (slip == "part of a token" and room >= 0):
            micro = max(1, micro)
        if micro < 1 and not (slip == "no room" and micro):
            return False, 0.0
        tokens_each = micro
    if slip == "one token" and micro == 1:
        return False, 0.0
    if slip == "gradients nowhere" and place == "disk":
        held["host"] = 0.0
    if not all(roomy(tier, held[tier], machine, slip) for tier in ("host", "disk")):
        return False, 0.0
    times: float = -(-tokens // tokens_each)
    if slip in ("fraction", "parts of both"):
        times = tokens / tokens_each
    if slip == "one more":
        times = tokens // tokens_each + 1
    counted = times * min(tokens_each, tokens) if slip == "padded" else tokens
    times = {"one": 1, "floor": max(1, tokens // tokens_each)}.get(slip, times)
    seconds = times * machine["micro_us"] / 1e6
    seconds += (2 if slip == "forward" else 6) * numel * counted / machine["flop_per_s"]
    return True, seconds + moving(place, share, machine, slip)


IN_PARTS: dict[str, Callable[[float], float]] = {
    "parts": lambda part: part,
    "parts of both": lambda part: part,
    "a part alone": lambda part: part if 0 < part < 1 else math.floor(part),
    "rounded up": math.ceil,
    "rounded": round,
}
"""Mistakes in how many tokens a micro-batch has, made of how many would fit if there were parts of tokens."""


def roomy(tier: str, held: float, machine: Machine, slip: str) -> bool:
    if slip == f"{tier} room":
        return True
    if slip == "shared room" and tier == "disk":
        held *= machine["ranks_per_disk"]
    return 0 <= held < machine[f"{tier}_bytes"] or (held == machine[f"{tier}_bytes"] and slip != "strictly")


def moving(place: str, share: float, machine: Machine, slip: str) -> float:
    if place == "device" or slip == "free":
        return 0.0
    link = (2 if slip == "one way" else 4) * share / machine["link_bytes_per_s"]
    step = 28 * share / machine["host_bytes_per_s"]
    if place == "host":
        return (0.0 if slip == "no link" else link) + (0.0 if slip == "no step" else step)
    sharing = 1 if slip == "own disk" else machine["ranks_per_disk"]
    swap = (12 if slip == "read only" else 24) * share * sharing / machine["disk_bytes_per_s"]
    beside = {"sum": step + swap, "swap only": swap}.get(slip, max(step, swap))
    return (0.0 if slip in ("no link", "past the link") else link) + beside


def with_parts(args: tuple[Any, ...], got: Any, want: list[Any] | None) -> str:
    """Where the place is right and the time is not: what the time is made of."""
    said = both(args, got, want)
    if not want or not isinstance(got, list | tuple) or len(got) != 2 or got[0] != want[0]:
        return said
    numel, ranks, tokens, machine = args
    move, operations = moving(want[0], numel / ranks, machine, ""), 6 * numel * tokens / machine["flop_per_s"]
    times = (
        f"{want[1] - move - operations:.4g} s of micro-batches, {operations:.4g} of operations, {move:.4g} of moving"
    )
    return f"{said} ({times})"


TEXTS = {
    "first": "You take the first place that fits; a later one may leave room for larger micro-batches",
    "slowest": "That is the slowest of the places that fit",
    "last": "Of places that take equally long, the one higher in the table is due",
    "one": "What the device has left may not hold all tokens at once: how many micro-batches are there?",
    "floor": "A rest of tokens needs a micro-batch, too: round up",
    "fraction": "There are only whole micro-batches: round up",
    "forward": "You count 2 operations a parameter and token; with backward there are 6",
    "not shared": "A rank moves and keeps states of its N-th of the parameters",
    "stage 3": "At stage 2 the parameters on the device are whole",
    "one token": "Room for a single token is enough, if nothing else is faster",
    "gradients stay": "Sharded gradients rest where the step is computed, and leave the device with the optimizer",
    "no room": "A place whose device has no room for one token is out",
    "part of a token": "Room for a part of a token is room for none",
    "a token": "You count a micro-batch of one token also where the device has no room for it",
    "host room": "The host has to have room for what it holds",
    "disk room": "The disk has to have room for the states",
    "shared room": "Ranks share the speed of a disk; `disk_bytes` is what each of them has",
    "gradients nowhere": "With states on the disk gradients still wait on the host: is there room?",
    "strictly": "What fits to the byte fits",
    "free": "You count nothing for gradients that go down, for the step, for parameters that come up",
    "one way": "Two bytes go down the link, and two come up",
    "past the link": "Also with states on the disk gradients go down the link, and parameters up",
    "no link": "What crosses the link takes time",
    "no step": "The host's step reads and writes 28 bytes a parameter, at the pace of its memory",
    "own disk": "Ranks that share a disk share its speed",
    "read only": "12 bytes are read, and 12 written",
    "sum": "The step goes on beside the disk: the longer of the two counts",
    "swap only": "Beside the disk the step may take longer",
}
PARTS = {
    "a part alone": "Where a part of a token has room, no token has: that place is out",
    "parts": "A micro-batch has whole tokens: how many fit, rounded down, and then how many micro-batches, rounded up",
    "parts of both": "Tokens are whole, and micro-batches are: round down how many tokens fit, round up how many times",
    "rounded up": "You round up how many tokens fit: the last of them has no room",
    "one more": "Where the micro-batches hold all tokens without a rest, there is no further one",
    "padded": "The operations are those of the tokens that there are, also where the last micro-batch is not full",
    "rounded": "You round how many tokens fit to the nearest, which may be one more than have room: round down",
}
"""Mistakes that show in the cases of the others. The first is alike with the next two where no token has room."""
TWINS = {
    ("first", "slowest"),
    ("past the link", "no link"),
    ("one token", "gradients stay"),
    ("part of a token", "a token"),
}
"""They often look alike. The second of each shows by itself in an earlier case."""
LATE = ("one token", "part of a token")
SLIPS: Mistakes = {text: partial(best, slip=slip) for slip, text in (TEXTS | PARTS).items()} | {
    "The place alone is not enough: [place, seconds]": lambda *args: (best(*args) or [None])[0],
    "The seconds alone are not enough: [place, seconds]": lambda *args: (best(*args) or [None, None])[1],
}


def drawn(rng: Random, kind: str) -> tuple[Any, ...]:
    """A model and a machine; `kind` is a slip or a place that the machine should bring to light."""
    ranks = rng.choice((1, 2, 4, 8))
    numel = ranks * 10**6 * rng.randint(50, 1500)
    share = numel // ranks
    token = rng.randint(100, 900) * 1000
    device = int(rng.choice((0.5, 1.01, 1.1, 1.4, 2.0)) * (2 * numel + 14 * share)) + token // 2
    host = 14 * share * rng.choice((2, 4))
    if kind in ("disk", "own disk", "read only", "sum", "swap only", "host room", "disk room", "shared room"):
        host = rng.randint(3, 12) * share
    if kind in LATE:
        device = 2 * numel + (token if kind == "one token" else 0) + rng.randint(0, token - 1)
    machine = {
        "device_bytes": device,
        "host_bytes": {"strictly": 14 * share, "gradients nowhere": share}.get(kind, host),
        "disk_bytes": 12 * share * rng.choice((2, 4, 8)) // (16 if kind == "disk room" else rng.choice((1, 1, 16))),
        "token_bytes": token,
        "micro_us": rng.randint(5, 300) * 1000,
        "flop_per_s": rng.randint(50, 400) * 10**12,
        "link_bytes_per_s": rng.randint(8, 50) * GB,
        "host_bytes_per_s": rng.randint(5, 60) * GB,
        "disk_bytes_per_s": rng.randint(1, 60) * GB,
        "ranks_per_disk": rng.choice((3, 4, 8)),
    }
    if kind == "last":
        # Times that a Python float has exactly: in whatever order they are added, equal ones are equal.
        machine |= {f"{of}_bytes_per_s": 2 ** rng.randint(33, 35) for of in ("link", "host", "disk")}
        machine |= {"micro_us": 15_625 * rng.randint(1, 19), "flop_per_s": 2 ** rng.randint(46, 48)}
    return numel, ranks, rng.randint(1, 30) * 1000 + rng.randint(1, 999), machine


def pays_cases(rng: Random) -> list[Case]:
    """A case for each slip, in which it shows and no other looks the same; and one for each place, and for none."""
    cases = [found(rng, place) for place in ("device", "host", "disk", "")]
    others = [slip for slip in TEXTS if slip not in ("slowest", "fraction", *LATE)]
    return [*cases, *(found(rng, None, slip) for slip in [*others, *LATE])]


def found(rng: Random, place: str | None, slip: str = "") -> Case:
    for _ in range(5000):
        args = drawn(rng, slip or place or "")
        if suits(args, place, slip):
            break
    numel, ranks, tokens, machine = args
    memories = ", ".join(f"{tier} {machine[f'{tier}_bytes'] / GB:.3g}" for tier in ("device", "host", "disk"))
    about = f"{numel / 1e6:,.0f} million parameters, {plural(ranks, 'rank')}, {tokens:,} tokens a rank, {memories} GB"
    return Case([args], about=about)


def suits(args: tuple[Any, ...], place: str | None, slip: str) -> bool:
    """Whether the place is the best, if one is given; whether the slip shows; and whether a hint can name it."""
    want = best(*args)
    if place is not None and (want[0] if want else "") != place:
        return False
    if slip and alike(best(*args, slip=slip), want, NEARLY):
        return False
    shown = {other: best(*args, slip=other) for other in TEXTS}
    shown = {other: value for other, value in shown.items() if not alike(value, want, NEARLY)}
    if place == "device" and "slowest" not in shown:
        return False
    pairs = [pair for pair in combinations(shown, 2) if alike(shown[pair[0]], shown[pair[1]], NEARLY)]
    return set(pairs) <= TWINS


EXERCISE = Exercise(
    "best_place",
    pays_cases,
    (
        Claim(
            "it finds the fastest place that fits, and the seconds of a step there",
            answers(
                best, SLIPS, "Write down the seconds of each of the three places, and which of them fit", with_parts
            ),
        ),
        Claim("the machine stays as it was", untouched(3)),
    ),
    run=alone,
    hints=(
        "For each place four numbers: bytes on device, host and disk, and the seconds that moving takes.",
        "Room for activations is what the device has left; by it the tokens are divided into micro-batches.",
        "Of the places that fit keep the fastest so far; if none fits, None.",
    ),
    text=TEXT,
    answer=(best_place,),
    points=3,
)
