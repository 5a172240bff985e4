"""A mistake is a program: the model answer with places changed, or another of its name. What is right is what the model
answer does on a case, and what a mistake gives is what its program does there. Mistakes run only where an answer is
wrong, so that no right answer is held to them."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zerolab.course.judge.case import Case, Observation, once
from zerolab.course.judge.exercise import Exercise, Run, Test, with_comm
from zerolab.course.judge.mistakes import Wanted, compared
from zerolab.course.judge.observe import observe_once
from zerolab.course.judge.same import Tolerance

Change = str | tuple[str, ...]
"""A program, or (old, new, old, new, ...) in the model answer."""
SECONDS = 1.0
"""How long a mistake may run: one that hangs is known by that."""


def program(model: Any, change: Change) -> Any:
    """The model answer, a function or a class, with these places changed, or another program of its name, among the
    names of its file."""
    source = change if isinstance(change, str) else textwrap.dedent(inspect.getsource(model))
    pairs = zip(change[::2], change[1::2], strict=True) if isinstance(change, tuple) else ()
    for old, new in pairs:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {model.__name__}"
        source = source.replace(old, new)
    names = dict(vars(inspect.getmodule(model)))
    exec(compile(source, f"<mistake in {model.__name__}>", "exec"), names)
    return names[model.__name__]


class Model:
    """A model answer and its mistakes, by what to say of each, as `run` calls them. `hang` are those that do not come
    to their end: they run only where an answer did not, either."""

    def __init__(
        self,
        answer: Any,
        mistakes: Mapping[str, Change],
        run: Run = with_comm,
        memory: bool = False,
        hang: Mapping[str, Change] | None = None,
    ) -> None:
        self.answer, self.mistakes, self.hang = answer, mistakes, hang or {}
        self.exercise = Exercise(answer.__name__, lambda rng: [], (), run=run, memory=memory)
        self.does = once(self._does)

    def _does(self, case: Case) -> Observation:
        """What the model answer does on a case."""
        return self.ran(self.answer, case)

    def ran(self, fn: Any, case: Case) -> Observation:
        """What a program of ours does on a case, on ranks in lockstep and after no other call."""
        return observe_once(self.exercise, fn, replace(case, world="lockstep", before=None), SECONDS)

    def mistaken(self, case: Case, hang: bool = False) -> Iterator[tuple[str, Observation]]:
        """What to say of each mistake, and what it does on a case."""
        for says, change in (self.hang if hang else self.mistakes).items():
            yield says, self.ran(program(self.answer, change), case)

    def gives(
        self, of: Callable[[Any], Any] = lambda value: value, tolerance: Tolerance = 1e-5, look: str = "", did: str = ""
    ) -> Test:
        """What `of` makes of each rank's value is what it makes of the model answer's; of a mistake that gives what all
        wrong ranks gave, the words."""

        def parts(case: Case, seen: Observation) -> Sequence[Any]:
            return [of(record.value) for record in seen.records] or [seen.trouble] * case.ranks

        @once
        def wanted(case: Case) -> Wanted:
            words = {name: text for name, text in (("look", look), ("did", did)) if text}
            mistakes = lambda: {says: parts(case, seen) for says, seen in self.mistaken(case)}  # noqa: E731
            return Wanted(parts(case, self.does(case)), mistakes, **words)

        def test(case: Case, seen: Observation) -> str | None:
            records = [replace(record, value=of(record.value)) for record in seen.records]
            return compared(wanted(case), replace(seen, records=records), tolerance)

        return test
