"""Where the system gives too little, a command says so in one sentence, or in the place of a grade."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from zerolab.apps import cli
from zerolab.course.grade import doubt, referee
from zerolab.course.grade.cage import Limits
from zerolab.course.grade.submission import read_submission
from zerolab.course.grade.worker import Cells
from zerolab.course.judge.case import Observation, Trouble
from zerolab.course.judge.verdict import Finding
from zerolab.errors import RankError
from zerolab.ranks import failure
from zerolab.train.progress import Bar

ROOT = Path(__file__).resolve().parents[3]
SOLUTION = ROOT / "solutions" / "02_flat_buffers.ipynb"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits are set and sockets are named as on Linux")
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")


# In the place of a grade


SHORT = Trouble("OSError", "[Errno 24] Too many open files")


@pytest.mark.parametrize("seen", [SHORT, [Observation(trouble=SHORT)]], ids=["where it runs", "in a case"])
def test_a_right_answer_that_the_machine_does_not_let_run_costs_no_points(
    seen: Trouble | list[Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Cells] = []
    monkeypatch.setattr(referee, "observe_apart", lambda job, seconds: ran.append(job) or seen)
    says = r"the model answer to lay_out fails here, too .*Too many open files.*nobody's points.*ulimit -a"
    with pytest.raises(RankError, match=says):
        referee.grade(read_submission(SOLUTION), 0)
    assert len(ran) == 2, "the answer and the model answer, and nobody after them"


def test_a_trouble_that_the_model_answer_does_not_meet_is_the_answers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(referee, "observe_apart", lambda job, seconds: SHORT)
    monkeypatch.setattr(referee, "hold_model", lambda name, findings, seen: asked.append(name))
    verdicts = referee.grade(read_submission(SOLUTION), 0)
    assert asked == [verdict.name for verdict in verdicts] and not any(verdict.score for verdict in verdicts)


def test_a_mistake_that_no_machine_makes_starts_no_model_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = Trouble("TypeError", "it takes 2 arguments")
    monkeypatch.setattr(referee, "observe_apart", lambda job, seconds: [Observation(trouble=trouble)])
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


@pytest.mark.parametrize(("kind", "flag", "taken"), [(resource.RLIMIT_AS, "v", 1), (resource.RLIMIT_FSIZE, "f", 0)])
def test_where_an_answer_could_not_have_what_it_may_take_none_is_run(
    kind: int, flag: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {kind: (2**30 + taken, -1)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: given.get(kind, (resource.RLIM_INFINITY, -1)))
    monkeypatch.setattr(doubt, "memory_taken", lambda: 1)
    monkeypatch.setattr(referee, "observe_apart", lambda *job: pytest.fail("it was run"))
    doubt.hold_limits(1024)
    with pytest.raises(RankError, match=rf"{2**30 + taken} bytes \(ulimit -{flag}\), and --memory-mb 1025 needs"):
        referee.grade(read_submission(SOLUTION), 0, Limits(memory_mb=1025))


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
