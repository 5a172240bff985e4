"""The check in the notebook runs an answer in a process of its own: whatever happens there, the notebook lives on."""

import os
from typing import Any

import pytest

from zerolab.course.grade import CheckFailed, checks
from zerolab.course.grade.runner import observe_apart
from zerolab.course.grade.worker import Cells, load
from zerolab.course.judge.advice import hint_for
from zerolab.course.judge.case import Case, Trouble

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(100)]
LESSON = "00_start_here"
RIGHT = """
    kinds = zip(("parameters", "gradients", "optimizer_states"), recipe, (3, 2, 1))
    return {kind: each * (-(-parameters // ranks) if stage >= first else parameters) for kind, each, first in kinds}
"""


def told(source: str) -> str:
    """What the check of lesson 00's first exercise raises for a cell with `source`; '' if it holds."""
    names: dict[str, Any] = {"__name__": "answers"}
    assert load("state_bytes", source, names) is None
    try:
        checks(LESSON).state_bytes(names["state_bytes"])
    except CheckFailed as failed:
        return str(failed)
    return ""


def body(lines: str, before: str = "") -> str:
    return f"{before}\ndef state_bytes(parameters, ranks, stage, recipe):\n    {lines}{RIGHT}"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (11, "ended by SIGSEGV: it read memory that is not there any more"),
        (40, "ended by SIG40: look for what ends it"),
    ],
)
def test_an_answer_that_crashes_is_told_so_and_the_notebook_lives(number: int, says: str) -> None:
    assert says in told(body(f"import signal; signal.raise_signal({number})"))


def test_of_a_process_that_ran_out_of_time_no_case_is_accused() -> None:
    met = observe_apart(Cells(LESSON, [("state_bytes", "while True: pass", True)], 0, 2048), 0.1)
    assert isinstance(met, Trouble)
    says = "it takes too long, or does not end: the process that ran your code did not finish within 0.1 s. "
    assert hint_for(met, Case([()], about="state_bytes(7)")).startswith(says)


def test_memory_that_was_released_too_early_is_a_report() -> None:
    lines = "row = __import__('torch').ones(2**20); row.untyped_storage().resize_(0); (row + 1).sum().item()"
    said = told(body(lines))
    assert "SIGSEGV" in said or "raised RuntimeError" in said, "the second is torch's own word"


def test_an_answer_that_ends_its_process_is_told_so() -> None:
    assert "ended at once" in told(body("__import__('os')._exit(3)"))
    assert "it calls exit" in told(body("exit()"))


def test_what_an_answer_does_to_its_globals_stays_in_its_process() -> None:
    before = dict(os.environ)
    assert told(body("import os, torch; os.environ['ANSWERED'] = '1'; torch.set_num_threads(7)")) == ""
    assert dict(os.environ) == before


def test_what_an_answer_prints_is_shown_where_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not hold yet" in told(body("print('given', parameters); return {}"))
    shown = capsys.readouterr().out
    assert "what it printed in the case that does not hold\n" in shown and "given" in shown
    assert told(body("print('given', parameters)")) == ""
    assert "given" not in capsys.readouterr().out, "nobody reads the prints of what holds"


def test_what_is_printed_without_end_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(body("print('so much ' * 10**6); raise ValueError('x' * 10**6)"))
    assert len(capsys.readouterr().out) < 5_000


def test_prints_before_an_error_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "raised ZeroDivisionError" in told(body("print('so far'); 1 / 0"))
    assert "so far" in capsys.readouterr().out


def test_what_cannot_travel_is_named() -> None:
    said = told(body("next(numbers)", "numbers = (one for one in range(9))"))
    assert "numbers" in said and "cannot travel" in said
