"""What is right is what the model answer does on a case. A mistake is a program: the model answer with places changed,
or another of its name. Mistakes run only where an answer is wrong, so that no right answer is held to them."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Any

from zerolab.course.judge.case import Case, Observation, Record, decode, encode
from zerolab.course.judge.exercise import Exercise, alone
from zerolab.course.judge.observe import observe
from zerolab.course.judge.same import NEARLY, Tolerance, alike, difference, short
from zerolab.errors import RankError

Change = str | tuple[str, ...]
"""A program, or (old, new, old, new, ...) in the model answer."""
Say = Callable[[tuple[Any, ...], Any, Any], str]
"""How a value differs: `say(args, got, want)`."""
LOOK = "print it on each rank, and compare with what you expect by hand"


def program(model: Any, change: Change) -> Any:
    """The model answer with these places changed, or another program of its name, among the names of its file."""
    source = change if isinstance(change, str) else textwrap.dedent(inspect.getsource(model))
    places = () if isinstance(change, str) else zip(change[::2], change[1::2], strict=True)
    for old, new in places:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {model.__name__}"
        source = source.replace(old, new)
    names = dict(vars(inspect.getmodule(model)))
    exec(compile(source, f"<mistake in {model.__name__}>", "exec"), names)
    return names[model.__name__]


@cache
def read_mistakes(text: str) -> dict[str, Change]:
    r"""Mistakes by what to say of them, from a text such as

        what the sum of the gradients gives: take their mean
            , average=True =>
        the row as it began
            def train_sharded(comm, row, gradient, steps):
                return row

    with `\n` for a line break in a place that is changed; what it becomes may stand in a line of its own."""
    found: dict[str, Change] = {}
    for part in re.findall(r"(?:^\S.*\n)+(?:^(?: .*)?\n)+", textwrap.dedent(f"{text}\n"), re.MULTILINE):
        words, body = re.split(r"\n(?=\s)", part, maxsplit=1)
        source = re.sub(r"\n\s*=> ", " => ", textwrap.dedent(body))
        places = [line.replace(r"\n", "\n").split(" =>") for line in source.split("\n") if line]
        whole = source.startswith(("def ", "class ", "import ", "from "))
        found[" ".join(words.split())] = source if whole else tuple(one.strip(" ") for place in places for one in place)
    return found


def does(exercise: Exercise, case: Case, change: Change = ()) -> Observation:
    """What the model answer does on a case, or a mistake; in lockstep, and after no other call."""
    case = case.itself or case
    key = ("does", exercise.name, change)
    if (seen := case._known.get(key)) is None:
        fn = program(exercise.answer[0], change) if change else exercise.answer[0]
        if exercise.run is alone:
            seen = Observation([Record(called(fn, args), [], []) for args in case.args])
        else:
            seen = observe(exercise, fn, replace(case, world="lockstep"), ours=True)
            if seen.trouble and not change:
                said = f"the model answer to {exercise.name} does not come to its end here ({seen.trouble.message})"
                raise RankError(f"{said}; check again when less runs on this machine")
        case._known[key] = seen
    return seen


def called(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a plain function of ours gives, as it comes back from another process, or the error that it raises."""
    try:
        return decode(encode(fn(*deepcopy(args))))
    except Exception as error:
        return error


def both(args: tuple[Any, ...], got: Any, want: Any) -> str:
    returned, due = ("None" if value is None else short(value) for value in (got, want))
    return f"you return {returned}, and {due} is due"


def you_say(args: tuple[Any, ...], got: Any, want: Any) -> str:
    return f"you say {short(got)}, and it is {short(want)}"


@dataclass(frozen=True)
class Gives:
    """What each rank's call gives is what the model answer's does: all of it, what the run noted under the name `of`,
    or what that function makes of a record. Of a mistake that gives what all wrong ranks gave, its words are said.
    Where there is none, `look` says where to look; `dtype` where the dtype is wrong; `did` is the verb, for what is not
    returned; or `say` says how a value differs: `say(args, got, want)`."""

    of: str | Callable[[Record], Any] = ""
    look: str | Callable[[Case], str] = LOOK
    did: str = "returned"
    tolerance: Tolerance | None = None
    dtype: str = "keep the dtype"
    say: Say | None = None
    exercise: Any = None

    def bound(self, exercise: Exercise) -> Gives:
        return replace(self, exercise=exercise)

    def parts(self, seen: Observation, ranks: int) -> Sequence[Any]:
        def part(record: Record) -> Any:
            if callable(self.of):
                return self.of(record)
            return record.value[self.of] if self.of and isinstance(record.value, dict) else record.value

        return [*map(part, seen.records)] or [seen.trouble] * ranks

    def hint(self, case: Case, seen: Observation, earlier: Sequence[Case] = ()) -> str | None:
        want, got = self.wanted(case), self.parts(seen, case.ranks)
        wrong = [rank for rank, value in enumerate(got) if not alike(value, want[rank], self.near)]
        if not wrong:
            return None
        says, rank = self.explained(case, got, earlier), wrong[0]
        look = self.look(case) if callable(self.look) else self.look
        if self.say or self.plain:
            whose = "" if self.plain and case.ranks == 1 else f"{'for ' * self.plain}rank {rank} "
            said = f"{whose}{(self.say or both)(case.args[rank], got[rank], want[rank])}"
            says = says or ("" if self.look is LOOK else look)
            return f"{said}. {says}" if says else said
        who = "each rank" if len(wrong) == len(got) > 1 else f"rank {rank}"
        if says:
            return f"{who} {self.did} {says}"
        if wrong == [0] and len(got) > 1:
            return "only rank 0 is wrong; does a condition such as `if comm.rank:` skip it?"
        if callable(self.near) and all(alike(got[one], want[one], 1e-5) for one in wrong):
            return f"{who} {self.did} what is right to single precision only: what goes through float32?"
        said = difference(got[rank], want[rank], self.near)
        look = self.dtype if re.search(r"torch\.\w+, not torch\.\w+$", said) else look
        return f"rank {rank} {self.did} {said}: {look}"

    @property
    def near(self) -> Tolerance:
        """The tolerance: of plain data, numbers are nearly the same ones."""
        usual = NEARLY if self.plain or self.say else 1e-5
        return usual if self.tolerance is None else self.tolerance

    @property
    def plain(self) -> bool:
        return bool(self.exercise.run is alone)

    def wanted(self, case: Case) -> Sequence[Any]:
        return self.parts(does(self.exercise, case), case.ranks)

    def same(self, got: Sequence[Any], want: Sequence[Any]) -> bool:
        return all(alike(value, due, self.near) for value, due in zip(got, want, strict=True))

    def holds(self, case: Case, seen: Observation) -> bool:
        return self.same(self.parts(seen, case.ranks), self.wanted(case))

    def explained(self, case: Case, got: Sequence[Any], earlier: Sequence[Case]) -> str:
        """What to say of the first mistake that gives what all ranks gave, and that the claims before this one let
        through, as they did the answer, and this one in earlier cases; '' if there is none."""
        if case.before:
            return ""  # by itself the same call is right
        before = list(takewhile(lambda claim: claim.test is not self, self.exercise.claims))
        for says, change in read_mistakes(self.exercise.mistakes).items():
            made = does(self.exercise, case, change)
            if made.trouble or not self.same(got, self.parts(made, case.ranks)):
                continue
            known = [(case, made), *((one, does(self.exercise, one, change)) for one in earlier)]
            passes = all(
                claim.test.holds(*run) if isinstance(claim.test, Gives) else not claim.hint(*run)
                for claim in before
                for run in known
            )
            if passes and all(self.holds(*run) for run in known[1:]):
                return says
        return ""
