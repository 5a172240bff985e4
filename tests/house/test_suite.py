"""What makes the suite quick does not make it weak: choices hold what they must, and threads that wait take no core.
And `make quick` begins with the tests nearest to a change."""

import importlib.util
import os
import signal
import subprocess
import sys
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import born
import forked_kernels
import pace
import pytest
from cover import chosen, covering, pairs
from jupyter_client.manager import start_new_kernel

from zerolab.ranks import forkserver, launch
from zerolab.ranks.job import Job

ROOT = Path(__file__).resolve().parents[2]


def test_a_choice_shows_all_that_the_runs_together_show() -> None:
    runs = [(stage, tier, ranks) for stage, tier, ranks in product(range(4), "abcde", (1, 2, 3)) if tier < "c" or stage]
    few = chosen(runs, lambda run: pairs(*run), cost=lambda run: run[2])
    assert set().union(*(pairs(*run) for run in few)) == set().union(*(pairs(*run) for run in runs))
    assert few == [run for run in runs if run in few], "in their order"
    assert len(few) < len(runs) / 2
    assert chosen(runs, lambda run: [run]) == runs, "nothing can be left out where each shows something of its own"


def test_of_two_runs_that_show_the_same_the_cheap_one_is_chosen() -> None:
    assert chosen([3, 1, 2], lambda run: ["x"], cost=float) == [1]


def test_nightly_all_runs_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for nightly, found in ((False, [1]), (True, [1, 2])):
        monkeypatch.setattr("cover.NIGHTLY", nightly)
        assert covering([1, 2], lambda run: ["x"]) == found


@pytest.mark.ranks
def test_threads_that_wait_do_not_spin_where_tests_start_processes() -> None:
    assert launch(lambda comm: os.environ["OMP_WAIT_POLICY"], ranks=2, timeout=60) == ["PASSIVE", "PASSIVE"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
def test_ctrl_c_is_taken_where_the_shell_that_started_the_suite_ignores_it() -> None:
    for begin, ends in (("signal", 0), ("signal, inherited", -signal.SIGINT)):
        command = f"trap '' INT; exec {sys.executable} -c 'import {begin}; signal.raise_signal(signal.SIGINT)'"
        ran = subprocess.run(["sh", "-c", command], cwd=ROOT / "tests", capture_output=True)
        assert ran.returncode == ends, ran.stderr


# Programs that are forks

SCRIPT = """
import atexit, os, signal, sys, threading
print(sys.argv[1:], os.getcwd(), os.environ.get("MINE"), sys.path[0] == os.path.dirname(__file__), sys.stdin.read())
print(__name__, [signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)])
atexit.register(print, "bye")
threading.Timer(0.1, lambda: print("late")).start()
def f():
    ENDS
f()
"""
ENDS = ["pass", "1 / 0", "sys.exit(7)", "sys.exit('no')", "raise KeyboardInterrupt", "os.kill(os.getpid(), 9)"]


@pytest.mark.skipif(not born.FORKS, reason="here each program is a new Python already")
@pytest.mark.parametrize("ends", ENDS)
def test_a_fork_runs_a_script_as_a_new_python_does(ends: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("ENDS", ends))
    options: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "MINE": "here"}, "text": True, "input": "said"}
    words = [str(script), "an argument"]
    new = subprocess.run([sys.executable, *words], capture_output=True, timeout=60, **options)
    fork = born.ran(*words, capture_output=True, timeout=60, **options)
    assert (fork.returncode, fork.stdout, fork.stderr) == (new.returncode, new.stdout, new.stderr)


@pytest.mark.skipif(not born.FORKS, reason="here each program is a new Python already")
def test_a_fork_runs_a_module_and_has_torch_and_pytest_already() -> None:
    ran = born.ran("-m", "json.tool", capture_output=True, timeout=60, text=True, input="[1]")
    assert (ran.returncode, ran.stdout.split()) == (0, ["[", "1", "]"]), ran.stderr
    code = "import sys; print({'torch', 'pytest', 'hypothesis'} <= {*sys.modules}, __name__)"
    ran = born.ran("-c", code, capture_output=True, timeout=60)
    assert ran.stdout.split() == [b"True", b"__main__"]


@pytest.mark.skipif(not born.FORKS, reason="here each program is a new Python already")
def test_a_fork_with_a_session_of_its_own_has_it_from_the_start() -> None:
    """Else a signal to its group would go to the server's."""
    with born.python("-c", "import time; time.sleep(60)", start_new_session=True) as process:
        group = os.getpgid(process.pid)
        process.kill()
    assert group == process.pid


@pytest.mark.skipif(not born.FORKS, reason="here each kernel is a new Python already")
def test_a_kernel_is_a_fork_with_a_server_of_its_own_and_leaves_ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_kernels.launcher, "Popen", forked_kernels.begun)
    born.ran("-c", "pass", timeout=60)
    server = forkserver._server._forkserver_pid
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=int(pace.seconds(60)))
    try:
        shown: list[Any] = []
        cell = "import sys; print('torch' in sys.modules)\nfrom zerolab.ranks import launch"
        client.execute_interactive(cell, timeout=pace.seconds(60), output_hook=shown.append)
        cell = "print(launch(lambda comm: comm.rank, ranks=2, timeout=60))"
        client.execute_interactive(cell, timeout=pace.seconds(60), output_hook=shown.append)
        assert [one["content"]["text"] for one in shown if one["msg_type"] == "stream"] == ["True\n", "[0, 1]\n"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    born.ran("-c", "pass", timeout=60)
    assert forkserver._server._forkserver_pid == server


# Time-outs


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> float:
    """A machine on whose cores seven processes each wait."""
    monkeypatch.setattr(pace, "speed_at_start", lambda: 1.5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (14.0, 0.0, 0.0))
    return 7.0


def test_limits_grow_with_the_load_and_with_a_slow_machine(busy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pace.seconds(40) == 40 * busy
    for load, slow, factor in ((0.1, 1.5, 1.5), (0.1, 0.4, 1.0), (1000.0, 1.5, pace.MOST)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        monkeypatch.setattr(pace, "speed_at_start", lambda slow=slow: slow)
        assert pace.seconds(40) == 40 * factor


@pytest.mark.timeout(77)
def test_a_tests_own_limit_is_stretched_when_it_begins(request: pytest.FixtureRequest) -> None:
    outer, own = [mark.args[0] for mark in request.node.iter_markers("timeout")]
    assert own == 77 and 77 <= outer <= 77 * pace.MOST


def test_a_net_under_a_launch_is_stretched_and_a_launch_that_shall_hang_is_not(busy: float) -> None:
    waits: list[float] = []
    module = import_module("zerolab.ranks.launch")
    for quiet in (60.0, 1.5):
        made = module.Job(ranks=1, timeout=quiet, collectives="ring", devices=("cpu",), backend="gloo", threads=1)
        assert isinstance(made, Job)
        waits.append(made.timeout)
    assert waits == [60.0 * busy, 1.5]


def test_a_command_may_take_longer_on_a_busy_machine(busy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(pace, "_communicate", lambda process, input, limit: waits.append(limit) or ("", ""))
    for quiet in (30.0, 2.0, None):
        subprocess.run([sys.executable, "-c", ""], timeout=quiet, check=False)
    assert waits == [30.0 * busy, 2.0, None]


# make quick

SPEC = importlib.util.spec_from_file_location("quick", ROOT / "tools" / "quick.py")
assert SPEC is not None and SPEC.loader is not None
quick: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(quick)


@pytest.fixture(scope="module")
def house() -> dict[str, set[str]]:
    return quick.graph()


def test_imports_lead_to_the_file_that_defines_a_name_and_not_through_a_package(house: dict[str, set[str]]) -> None:
    assert {"zerolab/ranks/launch.py", "zerolab/ranks/job.py", "tests/cover.py"} <= house["tests/house/test_suite.py"]
    assert "zerolab/ranks/join.py" not in house["tests/house/test_suite.py"]
    far = quick.distances(["zerolab/flat/layout.py"], house)
    assert far["zerolab/flat/layout.py"] == 0 and far["tests/flat/test_flat.py"] == 1


def test_the_nearest_tests_of_a_change_come_first(house: dict[str, set[str]]) -> None:
    assert quick.tests_for(set(), house) == ["tests/house/test_house.py"], "an empty change"
    changed = {"zerolab/ranks/pickling.py"}
    first, second, *others = quick.tests_for(changed, house)
    assert (first, second) == ("tests/house/test_house.py", "tests/ranks/test_ranks_pickling.py")
    far = quick.distances(changed, house)
    short = [far[path] for path in others if Path(path).name not in quick.longest()]
    assert short == sorted(short) and {Path(path).name for path in others[len(short) :]} <= set(quick.longest())
    itself = "tests/zero/test_zero_equal.py"
    assert quick.tests_for({itself}, house)[1] == itself
    assert "tests/course/notebooks/test_notebooks.py" in quick.tests_for({"notebooks/00_start_here.ipynb"}, house)


def test_a_changed_exercise_has_its_answers_judged_and_no_others(house: dict[str, set[str]]) -> None:
    for changed in ("zerolab/course/exercises/zero_1/mended_optimizer.py", "tests/zoo/zero_1/mended_optimizer.py"):
        assert set(quick.ZOO) < set(quick.tests_for({changed}, house))
        plugin = quick.Quick(9.0, quick.exercises_in({changed}))
        items: list[Any] = [
            SimpleNamespace(callspec=SimpleNamespace(params={"wrong": SimpleNamespace(exercise=name)}))
            for name in ("MendedOptimizer", "step_bytes")
        ]
        assert [plugin.concerns(item) for item in [*items, SimpleNamespace()]] == [True, False, True]


def test_when_the_time_is_over_tests_are_left_out_and_counted() -> None:
    plugin = quick.Quick(1000.0, set())
    assert plugin.pytest_runtest_protocol() is None
    plugin.until = 0.0
    assert plugin.pytest_runtest_protocol() is True and plugin.left_out == 1
    lines: list[str] = []
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert lines == ["quick: the time is over; 1 tests are left for `make test`."]
