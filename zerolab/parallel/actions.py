"""A pipeline's schedule as text: what each rank does, in order, in torch's
words.

    0F0,0F1,0B0,0B1        a row a rank; 1F0 is the forward of stage 1 on
    1F0,1B0,1F1,1B1        micro-batch 0, 1B0 its backward

`I` and `W` are the two halves of a backward: the gradient of the stage's
input, for which the stage before waits, and those of its weights, for which
nobody does. An empty place is a pause. `torch.distributed.pipelining` reads
and writes the same.

GPipe: Huang et al., arXiv 1811.06965. 1F1B: Narayanan et al., arXiv
1806.03377; interleaved: arXiv 2104.04473. Zero bubble (ZB-H1): Qi et al.,
arXiv 2401.10241.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zerolab.errors import InputError
from zerolab.flat.layout import check_count


@dataclass(frozen=True)
class Action:
    """What a rank does next: a stage's forward or backward of one
    micro-batch."""

    stage: int
    kind: str
    micro: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro}"


Row = tuple[Action, ...]
SECONDS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
"""How long each kind takes in units of a forward, where nothing else is
known."""


@dataclass(frozen=True)
class Schedule:
    """Rows of actions, one a rank, checked: each waits for what comes in the
    end."""

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        check_complete(self.rows)
        self.times()

    @property
    def stages(self) -> int:
        return 1 + max(action.stage for row in self.rows for action in row)

    @property
    def micro_batches(self) -> int:
        return 1 + max(action.micro for row in self.rows for action in row)

    def rank_of(self, stage: int) -> int:
        """The rank that has a stage."""
        ranks = (rank for rank, row in enumerate(self.rows) if any(one.stage == stage for one in row))
        return next(ranks)

    def __str__(self) -> str:
        return "\n".join(",".join(map(str, row)) for row in self.rows)

    def waits_for(self, action: Action) -> Iterator[tuple[Action, ...]]:
        """What must be done before an action: of each tuple one."""
        stage, kind, micro = action.stage, action.kind, action.micro
        if kind == "F" and stage:
            yield (Action(stage - 1, "F", micro),)
        if kind in "BI":
            yield (Action(stage, "F", micro),)
            if stage < self.stages - 1:
                yield Action(stage + 1, "B", micro), Action(stage + 1, "I", micro)
        if kind == "W":
            yield (Action(stage, "I", micro),)

    def times(
        self, seconds: Mapping[str, float] = SECONDS, message: float = 0.0
    ) -> list[list[tuple[Action, float, float]]]:
        """When each rank's actions begin and end, if each begins as soon as
        it can. `message` is what the way from one rank to another takes.
        Raises InputError for ranks that wait for each other."""
        rank_of = {stage: self.rank_of(stage) for stage in range(self.stages)}
        done: dict[Action, float] = {}
        found: list[list[tuple[Action, float, float]]] = [[] for _ in self.rows]

        def ready(action: Action) -> float | None:
            begin = 0.0
            for options in self.waits_for(action):
                before = next((one for one in options if one in done), None)
                if before is None:
                    return None
                apart = rank_of[before.stage] != rank_of[action.stage]
                begin = max(begin, done[before] + message * apart)
            return begin

        moved = True
        while moved:
            moved = False
            for row, spans in zip(self.rows, found, strict=True):
                while len(spans) < len(row):
                    action = row[len(spans)]
                    begin = ready(action)
                    if begin is None:
                        break
                    begin = max(begin, spans[-1][2] if spans else 0.0)
                    done[action] = begin + seconds[action.kind]
                    spans.append((action, begin, done[action]))
                    moved = True
        stuck = [
            f"rank {rank} waits at {row[len(spans)]} for {self._missing(row[len(spans)], done)}"
            for rank, (row, spans) in enumerate(zip(self.rows, found, strict=True))
            if len(spans) < len(row)
        ]
        if stuck:
            raise InputError(f"the schedule is a deadlock: {', '.join(stuck)}; change the order")
        return found

    def _missing(self, action: Action, done: Mapping[Action, float]) -> str:
        options = next(options for options in self.waits_for(action) if not any(map(done.get, options)))
        return " or ".join(map(str, options))

    def bubble(self, seconds: Mapping[str, float] = SECONDS, message: float = 0.0) -> float:
        """The share of all ranks' time in which they wait."""
        times = self.times(seconds, message)
        end = max(spans[-1][2] for spans in times)
        busy = sum(stop - start for spans in times for _, start, stop in spans)
        return 1 - busy / (end * len(times))

    def most_in_flight(self) -> list[int]:
        """On each rank the most micro-batches, of all its stages, whose
        activations are kept at a time: from their forward until their
        weights' gradients."""
        found = []
        for row in self.rows:
            kept, most = 0, 0
            for action in row:
                kept += (action.kind == "F") - (action.kind in "BW")
                most = max(most, kept)
            found.append(most)
        return found

    def messages(self) -> list[int]:
        """How many tensors as large as a micro-batch's hidden states each
        rank sends."""
        rank_of = {stage: self.rank_of(stage) for stage in range(self.stages)}
        sent = [0] * len(self.rows)
        for row in self.rows:
            for action in row:
                to = action.stage + 1 if action.kind == "F" else action.stage - 1
                own = rank_of[action.stage]
                sent[own] += action.kind in "FBI" and rank_of.get(to, own) != own
        return sent


def read_schedule(text: str) -> Schedule:
    """A schedule from its text, a line a rank. Raises InputError for what is
    none."""
    rows = []
    for line in text.strip().splitlines():
        row = []
        for word in filter(None, map(str.strip, line.split(","))):
            found = re.fullmatch(r"(\d+)([FBIW])(\d+)", word)
            if not found:
                raise InputError(
                    f"{word!r} is no action; write a stage, F, B, I or W, and a micro-batch, as 2F0 "
                    "(messages and gathers follow from the order)"
                )
            row.append(Action(int(found[1]), found[2], int(found[3])))
        rows.append(tuple(row))
    return Schedule(tuple(rows))


def check_complete(rows: tuple[Row, ...]) -> None:
    """Raise an InputError unless each stage is on one rank, and does each
    micro-batch once, forward and backward."""
    every = [(rank, action) for rank, row in enumerate(rows) for action in row]
    if not every:
        raise InputError("the schedule is empty; write a row of actions for each rank")
    stages = {action.stage for _, action in every}
    micros = {action.micro for _, action in every}
    for what, found in (("stage", stages), ("micro-batch", micros)):
        if missing := {*range(max(found) + 1)} - found:
            raise InputError(f"{what} {min(missing)} is not in the schedule; number them from 0")
    for stage in sorted(stages):
        ranks = sorted({rank for rank, action in every if action.stage == stage})
        if len(ranks) > 1:
            raise InputError(f"stage {stage} is on ranks {ranks[0]} and {ranks[1]}; give it to one")
        for micro in sorted(micros):
            kinds = sorted(a.kind for _, a in every if (a.stage, a.micro) == (stage, micro))
            if kinds not in (["B", "F"], ["F", "I", "W"]):
                raise InputError(
                    f"stage {stage} does {', '.join(kinds) or 'nothing'} of micro-batch {micro}; it "
                    "should do F and B, or F, I and W, once each"
                )


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards."""
    check_sizes(ranks, micro_batches)
    micros = range(micro_batches)
    return Schedule(tuple(tuple(Action(rank, kind, m) for kind in "FB" for m in micros) for rank in range(ranks)))


def one_forward_one_backward(ranks: int, micro_batches: int) -> Schedule:
    """As few forwards ahead as keep all ranks busy, then one backward for
    each forward, so that rank r keeps at most `ranks - r` micro-batches."""
    return interleaved(ranks, micro_batches, 1)


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B with `chunks` stages on each rank, every `ranks`-th of the model,
    so that the bubble is so many times shorter and as many more messages are
    sent."""
    check_sizes(ranks, micro_batches, chunks)
    if chunks > 1 and micro_batches % ranks:
        raise InputError(
            f"{micro_batches} micro-batches are no multiple of {ranks} ranks, in whose groups "
            "an interleaved schedule runs; change one of them"
        )
    rows = []
    for rank in range(ranks):
        total, run = micro_batches * chunks, ranks if chunks > 1 else micro_batches

        def at(place: int, kind: str, rank: int = rank, run: int = run) -> Action:
            chunk = place // run % chunks
            micro = place % run + run * (place // (run * chunks))
            chunk = chunk if kind == "F" else chunks - 1 - chunk
            return Action(rank + ranks * chunk, kind, micro)

        ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
        ahead = min(ahead, total)
        row = [at(place, "F") for place in range(ahead)]
        for place in range(ahead, total):
            row += [at(place, "F"), at(place - ahead, "B")]
        rows.append((*row, *(at(place, "B") for place in range(total - ahead, total))))
    return Schedule(tuple(rows))


def zero_bubble(ranks: int, micro_batches: int) -> Schedule:
    """1F1B whose backwards are halved: weights' gradients, on rank r those of
    `r` micro-batches before, fill the pauses (ZB-H1). No rank keeps more
    micro-batches than the first does in 1F1B."""
    check_sizes(ranks, micro_batches)
    rows = []
    for rank in range(ranks):
        ahead = min(ranks - rank - 1, micro_batches)
        row = [Action(rank, "F", micro) for micro in range(ahead)]
        for micro in range(micro_batches):
            if ahead + micro < micro_batches:
                row.append(Action(rank, "F", ahead + micro))
            row.append(Action(rank, "I", micro))
            if micro >= rank:
                row.append(Action(rank, "W", micro - rank))
        late = range(max(micro_batches - rank, 0), micro_batches)
        rows.append((*row, *(Action(rank, "W", micro) for micro in late)))
    return Schedule(tuple(rows))


def check_sizes(ranks: int, micro_batches: int, chunks: int = 1) -> None:
    check_count("ranks", ranks)
    check_count("micro_batches", micro_batches)
    check_count("chunks", chunks)
