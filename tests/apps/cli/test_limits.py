"""Where the system gives too little, a command says so in one sentence, or in the place of a grade."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from zerolab.apps import cli
from zerolab.course.grade import doubt, referee
from zerolab.course.grade.submission import read_submission
from zerolab.course.judge.case import Observation, Trouble
from zerolab.course.judge.verdict import Finding
from zerolab.errors import RankError
from zerolab.ranks import failure
from zerolab.train.progress import Bar

ROOT = Path(__file__).resolve().parents[3]
SOLUTION = ROOT / "solutions" / "02_flat_buffers.ipynb"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits are set and sockets are named as on Linux")
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")


def limited(monkeypatch: pytest.MonkeyPatch, **given: int) -> None:
    monkeypatch.setattr(doubt, "given", given.get)


# In the place of a grade


class Short:
    """A worker on a machine that is short of something: each answer meets it, or all but the model's."""

    trouble = Trouble("OSError", "[Errno 24] Too many open files")

    def __init__(self, job: Mapping[str, Any], limits: object) -> None:
        self.job = job

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for step in self.job["steps"]:
            if step["graded"]:
                yield {"began": step["name"]}
                yield {"ended": step["name"], "seen": [Observation(trouble=self.trouble)]}


def test_a_right_answer_that_the_machine_does_not_let_run_costs_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    short = Short.__iter__
    monkeypatch.setattr(Short, "__iter__", lambda self: (ran.append(1) or line for line in short(self)))
    monkeypatch.setattr(referee, "Runner", Short)
    says = r"the model answer to lay_out fails here, too .*Too many open files.*nobody's points.*ulimit -a"
    with pytest.raises(RankError, match=says):
        referee.grade(read_submission(SOLUTION), 0)
    # Two lines for each of six answers, and for one model answer.
    assert len(ran) == 14


def test_a_trouble_that_the_model_answer_does_not_meet_is_the_answers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(referee, "Runner", Short)
    monkeypatch.setattr(referee, "hold_model", lambda name, findings, seen: asked.append(name))
    verdicts = referee.grade(read_submission(SOLUTION), 0)
    assert asked == [verdict.name for verdict in verdicts] and not any(verdict.score for verdict in verdicts)


def test_a_mistake_that_no_machine_makes_starts_no_model_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referee, "Runner", Short)
    monkeypatch.setattr(Short, "trouble", Trouble("TypeError", "it takes 2 arguments"))
    monkeypatch.setattr(referee, "hold_model", lambda *args: pytest.fail("it was run"))
    assert not any(verdict.score for verdict in referee.grade(read_submission(SOLUTION), 0))


@pytest.mark.parametrize(
    ("kind", "message", "doubtful"),
    [
        ("OSError", "[Errno 28] No space left on device", True),
        ("died", "the process ended", True),
        ("SIGKILL", "the process that ran your code was ended by SIGKILL", True),
        ("RuntimeError", "can't start new thread", True),
        ("RuntimeError", "The size of tensor a (3) must match the size of tensor b (4)", False),
        ("NotImplementedError", "", False),
        ("DeadlockError", "rank 0 waits to send to rank 1", False),
    ],
)
def test_doubt_is_where_a_machine_may_have_made_the_trouble(kind: str, message: str, doubtful: bool) -> None:
    assert doubt.in_doubt([Observation(), Observation(trouble=Trouble(kind, message))]) is doubtful


def test_a_model_answer_that_is_right_raises_nothing_and_one_that_is_wrong_does() -> None:
    doubt.hold_model("owned", [Finding("it runs", True)], [Observation()])
    with pytest.raises(RankError, match=r"model answer to owned fails here, too \(what it returns is wrong\)"):
        doubt.hold_model("owned", [Finding("it runs", True), Finding("it is right", False)], [Observation()])


def test_less_memory_than_an_answer_may_have_takes_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [Observation(trouble=Trouble("MemoryError", "it raises MemoryError"))]
    limited(monkeypatch, RLIMIT_AS=2**30)
    doubt.hold_limits("owned", [Observation(trouble=Trouble("TimeOut", "the ranks did not finish"))], 1024, 1)
    doubt.hold_limits("owned", seen, 1023, 2**20)
    with pytest.raises(RankError, match=r"owned met a limit .* 1073741824 bytes \(ulimit -v\).*--memory-mb 1024 needs"):
        doubt.hold_limits("owned", seen, 1024, 1)


# While it runs


def test_a_rank_that_cannot_begin_says_why() -> None:
    noise = "Traceback (most recent call last):\n  File ...\nRuntimeError: can't start new thread"
    said = str(failure.describe_death(2, 1, noise))
    assert "(RuntimeError: can't start new thread)" in said and "limit on memory, open files or processes" in said
    assert "(" not in str(failure.describe_death(2, 1, "what it printed\nlast words"))


def test_a_bar_starts_no_thread() -> None:
    with Bar(total=1, disable=True):
        assert Bar.monitor is None or not Bar.monitor_interval


# What is shown


@FULL
@pytest.mark.parametrize("asked", [["--help"], ["--version"], ["train", "--help"], ["grade", "--help"]], ids=" ".join)
@pytest.mark.parametrize("stream", ["full", "closed"])
def test_a_help_that_nobody_reads_is_a_sentence_and_a_status(
    asked: list[str], stream: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full if stream == "full" else None)
        status = cli.main(asked)
    said = capsys.readouterr().err
    assert status == 2 and said.count("\n") == 1
    assert "cannot be written to standard output" in said


def test_the_command_that_grades_does_not_wait_for_the_compiler_that_only_its_workers_need() -> None:
    code = "import sys, zerolab.course.grade.run; print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ran.stdout == "True False\n", ran.stderr
