"""A class in which somebody means harm: everybody else's marks are unchanged, and nothing is left behind."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pace
import psutil
import pytest
from cover import NIGHTLY
from hostile_answers import BY_DAY, HOSTILE, Hostile
from zoo.answers import SOLUTIONS, solution

from zerolab.course.grade import cage, cli, runner
from zerolab.course.grade.cells import grade_id, is_answer, is_check, role, text_of

LESSON = "00_start_here"
NAMES = [grade_id(cell) for cell in solution(LESSON).cells if is_answer(cell)]
BLANK = "def {}(*given, **named):\n    raise NotImplementedError"
POINTS = sum(role(cell)["points"] for cell in solution(LESSON).cells if is_check(cell))


def hand_in(folder: Path, student: str, answers: dict[str, str]) -> None:
    """A student's notebook: the model answers, but for these."""
    notebook = copy.deepcopy(solution(LESSON))
    for cell in notebook.cells:
        cell.source = answers.get(grade_id(cell), cell.source) if is_answer(cell) else cell.source
    text = json.dumps(json.loads(text_of(notebook).encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")))
    (folder / f"{student}.ipynb").write_text(text)


def written(hostile: Hostile, name: str, folder: Path) -> str:
    source = hostile.source.replace("{name}", name).replace("{solutions!r}", repr(str(SOLUTIONS)))
    return source.replace("{folder!r}", repr(str(folder))).replace("{{", "{").replace("}}", "}")


@pytest.mark.ranks
@pytest.mark.timeout(500)
@pytest.mark.skipif(sys.platform != "linux", reason="what the system keeps answers from is Linux's")
def test_in_a_class_with_hostile_answers_everybody_else_keeps_their_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nightly all of them are there, and an honest one after each; by day one of each way, and after every second."""
    folder = tmp_path / "handed in"
    folder.mkdir()
    hostiles = HOSTILE if NIGHTLY else [hostile for hostile in HOSTILE if hostile.about in BY_DAY]
    told: dict[tuple[str, str], Hostile] = {}
    honest: dict[str, list[str]] = {}
    for number, start in enumerate(range(0, len(hostiles), len(NAMES))):
        pairs = list(zip(NAMES, hostiles[start : start + len(NAMES)], strict=False))
        told |= {(f"hostile_{number}", name): hostile for name, hostile in pairs}
        hand_in(folder, f"hostile_{number}", {name: written(hostile, name, folder) for name, hostile in pairs})
        if number % 2 and not NIGHTLY:
            continue
        # Exercises use those before them. By day an honest one has answered some, nightly all.
        answered = NAMES if NIGHTLY else NAMES[: 1 + number % len(NAMES)]
        honest[f"hostile_{number}_and_an_honest_one"] = answered
        blanks = {name: BLANK.format(name) for name in NAMES if name not in answered}
        hand_in(folder, f"hostile_{number}_and_an_honest_one", blanks)
    (folder / "torn.ipynb").write_text('{"cells": [')
    begun = set(psutil.pids())
    # Five times what an honest exercise takes on a quiet machine; few answers take all of it.
    seconds = str(pace.seconds(3 if NIGHTLY else 2))
    status = cli.main([str(folder), "--seconds", seconds, "--json", str(tmp_path / "out.json"), "--seed", "7"])
    shown, said = capsys.readouterr()
    assert status == 2 and "torn.ipynb is not a notebook" in said and "Traceback" not in said + shown
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (tmp_path / "out.json").stat().st_size < 300_000
    results = [report["tests"][at : at + len(NAMES)] for at in range(0, len(report["tests"]), len(NAMES))]
    assert said.count("could not be graded") == 1, said
    by_student = dict(zip(sorted(path.stem for path in folder.glob("hostile*")), results, strict=True))
    for student, tests in by_student.items():
        for name, test in zip(NAMES, tests, strict=True):
            hostile = told.get((student, name))
            if student in honest:
                right = "passed" if name in honest[student] else "failed"
                assert test["status"] == right, f"{student}, {name}: {test['output']}"
            elif hostile is not None:
                assert test["status"] == "failed" and hostile.says in test["output"], f"{hostile.about}: {test}"
    assert report["score"] == sum(test["max_score"] for test in report["tests"] if test["status"] == "passed")
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".ipynb") == []
    # Others on this machine may sleep, too, but not for as long to the millisecond.
    left = [words for words in map(words_of, set(psutil.pids()) - begun) if "60.125" in words]
    assert left == []


def words_of(pid: int) -> list[str]:
    """The command of a process, word by word."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def test_there_are_forty_of_them() -> None:
    about = {hostile.about for hostile in HOSTILE}
    assert len(HOSTILE) >= 40 and len(about) == len(HOSTILE) and about >= BY_DAY


class Gone:
    """A process that ends between two questions."""

    pid = 7

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cwd(self) -> str:
        return str(self.folder)

    def is_running(self) -> bool:
        return True

    def status(self) -> str:
        raise psutil.NoSuchProcess(self.pid)


def test_a_process_that_ends_while_it_is_looked_at_is_none_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cage.psutil, "process_iter", lambda: [Gone(tmp_path)])
    assert cage._started_by(None, str(tmp_path)) == []


def test_the_number_of_a_process_that_has_ended_is_nobody_to_be_signalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cage.os, "kill", lambda *given: pytest.fail("a stranger was stopped"))
    monkeypatch.setattr(cage.os, "killpg", lambda *given: pytest.fail("a stranger's group was ended"))
    reads, writes = os.pipe()
    os.close(writes)
    ended = SimpleNamespace(pid=os.getpid(), exitcode=0, sentinel=reads, kill=int, join=int, close=int)
    assert runner.end(ended, str(tmp_path)) == 0  # type: ignore[arg-type]
    os.close(reads)


@pytest.mark.timeout(60)
@pytest.mark.skipif(sys.platform != "linux", reason="processes leave their session on Linux")
def test_what_got_away_from_its_session_and_its_parent_is_ended(tmp_path: Path) -> None:
    code = f"""
import os, signal, time
os.setsid()
from zerolab.ranks.forkserver import gather_descendants
gather_descendants()
os.chdir({str(tmp_path)!r})
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.chdir("/") if _ else None
            open({str(tmp_path)!r} + f"/pid-{{os.getpid()}}", "w").close()
            time.sleep(60)
        os._exit(0)
os.wait(), os.wait()
print("ready", flush=True)
time.sleep(60)
"""
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None and leader.stdout.readline() == "ready\n"
    until = time.monotonic() + pace.seconds(20)
    while len(list(tmp_path.glob("pid-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    away = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert len(away) == 2 and all(psutil.pid_exists(pid) for pid in away)
    cage.end_all(leader.pid, str(tmp_path))
    assert leader.wait(timeout=20) == -signal.SIGKILL
    leader.stdout.close()
    assert [pid for pid in away if psutil.pid_exists(pid) and not ended(pid)] == []


@pytest.mark.timeout(60)
@pytest.mark.skipif(sys.platform != "linux", reason="what is left of a process is there until its parent asks on Linux")
def test_nobody_waits_for_what_is_left_of_the_child_of_one_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '60'], stdout=-3).wait()"
    leader = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until = time.monotonic() + pace.seconds(20)
    while not (children := psutil.Process(leader.pid).children()) and time.monotonic() < until:
        time.sleep(0.01)
    leader.send_signal(signal.SIGSTOP)
    children[0].kill()
    while not ended(children[0].pid) and time.monotonic() < until:
        time.sleep(0.01)
    with monkeypatch.context() as patched:
        patched.setattr(cage.time, "sleep", lambda seconds: pytest.fail("it waits"))
        cage.end_all(leader.pid, str(tmp_path))
    assert leader.wait(timeout=20) == -signal.SIGKILL


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(cage.version() < 1, reason="this system has no Landlock")
@pytest.mark.timeout(60)
def test_behind_the_fence_python_runs_and_the_course_is_out_of_reach(tmp_path: Path) -> None:
    code = f"""
import os, tempfile
from pathlib import Path
from zerolab.course.grade import cage
assert cage.fence(Path({str(tmp_path)!r}))
import decimal, torch
def refused(act):
    try: act()
    except OSError as error: return type(error) is PermissionError
assert refused(lambda: open({str(SOLUTIONS / "00_start_here.ipynb")!r}))
assert refused(lambda: open({str(Path(__file__))!r}))
assert refused(lambda: open({str(tmp_path.parent / "beside")!r}, "w"))
assert refused(lambda: open("/dev/shm/beside", "w")) or not os.path.exists("/dev/shm")
open("/dev/null", "w").write("nothing")
assert len(open("/dev/urandom", "rb").read(3)) == 3
assert refused(lambda: os.kill(os.getppid(), 0)) or cage.version() < 6
open({str(tmp_path / "own")!r}, "w").write("mine")
print("done")
"""
    # Where tests are looked for Python may read.
    alone = {"PYTHONPATH": str(SOLUTIONS.parent)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | alone)
    assert ran.stdout == "done\n", ran.stderr
