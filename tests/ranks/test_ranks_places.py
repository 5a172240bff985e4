"""Where ranks are launched from: scripts without a guard, notebooks, torchrun; and how Ctrl-C and a kill end them."""

import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import born
import forked_kernels
import nbformat
import pace
import psutil
import pytest
import rank_functions
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from zerolab.ranks import launch

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(100)]

TESTS = str(Path(__file__).parent)


def run_script(folder, source):
    """A script in a new Python."""
    script = folder / "script.py"
    script.write_text(source)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=80, cwd=folder)


def run_forked(folder, source, *launcher):
    """A script in a fork that has torch already: what it shows does not depend on how it starts."""
    script = folder / "script.py"
    script.write_text(source)
    return born.ran(*launcher, script, capture_output=True, text=True, timeout=80, cwd=folder)


def start_script(folder, source):
    """A script in a session of its own, so that a signal to its group does not reach the tests; by day in a fork, since
    it is for what comes once there are ranks."""
    script = folder / "script.py"
    script.write_text(source)
    searched = os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": searched, "TMPDIR": str(folder)}
    return born.python(script, cwd=folder, env=environment, start_new_session=True, stderr=subprocess.PIPE)


def wait_for_ranks(folder, count):
    """The process numbers that `note_and_sleep` wrote."""
    deadline = time.monotonic() + pace.seconds(60)
    while time.monotonic() < deadline:
        files = [folder / f"pid-{rank}" for rank in range(count)]
        if all(file.exists() for file in files):
            return [int(file.read_text()) for file in files]
        time.sleep(0.05)
    pytest.fail("the ranks did not start")


def assert_all_end(pids):
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(alive, timeout=10)[1] == []


@pytest.fixture
def short():
    """A folder with a short name: a socket's path has a hundred characters at most."""
    with tempfile.TemporaryDirectory(prefix="places-") as folder:
        yield Path(folder)


def temporary_folders(folder):
    return list(folder.glob("zerolab-*"))


def test_a_script_without_a_guard_runs_once(tmp_path):
    source = """
import os
import torch
from zerolab.ranks import launch
print("top level")
offset = 1.0

class Shard:
    def __init__(self, values):
        self.values = values

def total(comm):
    return Shard(comm.all_reduce(torch.tensor([comm.rank + offset])).tolist())

results = launch(total, ranks=2, timeout=60)
print([shard.values for shard in results], isinstance(results[0], Shard))
"""
    done = run_script(tmp_path, source)
    assert done.stdout == "top level\n[[3.0], [3.0]] True\n", done.stderr
    assert done.stderr == ""


def test_ctrl_c_ends_all_ranks(short):
    source = f"""
from zerolab.ranks import launch
import rank_functions
launch(rank_functions.note_and_sleep, {str(short)!r}, ranks=2, timeout=80)
"""
    parent = start_script(short, source)
    pids = wait_for_ranks(short, 2)
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=20)
    assert errors.decode().strip().endswith("KeyboardInterrupt")
    assert errors.count(b"Traceback") == 1  # the parent's alone
    assert_all_end(pids)
    assert temporary_folders(short) == []


def test_ranks_do_not_outlive_a_killed_parent(short):
    source = f"""
from zerolab.ranks import launch
import rank_functions
launch(rank_functions.note_and_sleep, {str(short)!r}, ranks=2, timeout=80)
"""
    parent = start_script(short, source)
    pids = wait_for_ranks(short, 2)
    server = psutil.Process(pids[0]).ppid()
    assert server != parent.pid
    parent.kill()
    parent.communicate(timeout=20)
    assert_all_end({*pids, server} - {parent.pid})
    assert temporary_folders(short) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to an ancestor that asks for them")
def test_what_a_rank_started_ends_with_the_server_though_the_rank_has_left_before(tmp_path):
    source = """
import os, subprocess
import psutil
from zerolab.ranks import forkserver
ready, begun = os.pipe(), os.pipe()
if os.fork() == 0:
    # A rank, which leaves by itself as soon as the end has begun.
    helper = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.write(ready[1], str(helper.pid).encode())
    os.read(begun[0], 1)
    os._exit(0)
print(os.read(ready[0], 20).decode(), flush=True)
wait = psutil.wait_procs
psutil.wait_procs = lambda *given: (os.write(begun[1], b"x"), wait(*given))[1]
forkserver.end_children(os.getpid(), lambda: None)
"""
    done = run_forked(tmp_path, source)
    assert_all_end([int(done.stdout)])


def test_a_lockstep_world_can_be_interrupted(tmp_path):
    source = """
import _thread, threading
from zerolab.ranks import launch
def rank_function(comm):
    if comm.rank == 1:
        threading.Timer(0.3, _thread.interrupt_main).start()
        while True:
            pass
    comm.barrier()
try:
    launch(rank_function, ranks=2, world="lockstep", timeout=60)
except KeyboardInterrupt:
    left = [thread for thread in threading.enumerate() if "lockstep" in thread.name]
    print("interrupted, threads left:", len(left))
"""
    done = run_forked(tmp_path, source)
    assert done.stdout == "interrupted, threads left: 0\n", done.stderr


@pytest.fixture
def forked_kernel(monkeypatch):
    """A kernel is a fork that has torch already, as what it shows does not depend on how it starts."""
    monkeypatch.setattr(forked_kernels.launcher, "Popen", forked_kernels.begun)


@pytest.mark.usefixtures("forked_kernel")
def test_a_notebook_runs_ranks_with_its_own_functions():
    cells = [
        "import torch\nfrom zerolab.ranks import launch\nscale = 2.0",
        "def total(comm):\n    print('I am', comm.rank)\n"
        "    return comm.all_reduce(torch.tensor([scale * comm.rank])).item()\n"
        "def broken(comm):\n    return 1 / comm.rank  # the cell's own line",
        "launch(total, ranks=3, timeout=60)",
        "try:\n    launch(broken, ranks=2, timeout=60)\n"
        "except Exception as error:\n    print(error)\n    print(error.traceback)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=int(pace.seconds(80)), kernel_name="python3", coalesce_streams=True).execute()
    printed, value = notebook.cells[2].outputs
    assert printed.name == "stdout"
    assert printed.text == "rank 0 | I am 0\nrank 1 | I am 1\nrank 2 | I am 2\n"
    assert value.data["text/plain"] == "[6.0, 6.0, 6.0]"
    (failure,) = notebook.cells[3].outputs
    assert failure.text.startswith("rank 0 raised ZeroDivisionError: float division by zero\n") or (
        failure.text.startswith("rank 0 raised ZeroDivisionError: division by zero\n")
    )
    assert "return 1 / comm.rank  # the cell's own line" in failure.text


@pytest.mark.usefixtures("forked_kernel")
def test_a_kernel_interrupt_ends_all_ranks(tmp_path):
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        client.execute(
            f"import sys; sys.path.insert(0, {TESTS!r})\n"
            "import rank_functions\nfrom zerolab.ranks import launch\n"
            f"launch(rank_functions.note_and_sleep, {str(tmp_path)!r}, ranks=2, timeout=80)",
            stop_on_error=False,  # else the kernel may drop what it is sent next
        )
        pids = wait_for_ranks(tmp_path, 2)
        manager.interrupt_kernel()
        assert wait_for_error(client) == "KeyboardInterrupt"
        assert_all_end(pids)
        client.get_shell_msg(timeout=30)  # a kernel drops what it is sent while it still reports an error
        client.execute("print(launch(rank_functions.who_and_how_many, ranks=2, timeout=60))")
        assert wait_for_text(client) == "[(0, 2), (1, 2)]\n"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def messages(client):
    deadline = time.monotonic() + pace.seconds(60)
    while time.monotonic() < deadline:
        try:
            yield client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
    pytest.fail("the kernel did not answer")


def wait_for_error(client):
    return next(m["content"]["ename"] for m in messages(client) if m["msg_type"] == "error")


def wait_for_text(client):
    return next(m["content"]["text"] for m in messages(client) if m["msg_type"] == "stream")


TORCHRUN_SCRIPT = """
import torch
from zerolab.errors import InputError
from zerolab.ranks import launch

def total(comm, plus):
    return comm.all_reduce(torch.tensor([comm.rank + plus])).item()

first = launch(total, 1.0, ranks=None, timeout=60)
second = launch(total, 2.0, ranks=2, timeout=60)
try:
    launch(total, 3.0, ranks=3)
    refusal = "none"
except InputError as error:
    refusal = str(error)
rank = [place for place, value in enumerate(first) if value is not None]
with open(f"rank-{rank[0]}", "w") as file:
    file.write(f"{list(first)} {list(second)} {refusal}")

def fails(comm):
    comm.barrier()
    if comm.rank == 0:
        comm.recv(torch.ones(10), 1)
    comm.all_reduce_async(torch.ones(10))
    raise ValueError("bad shard")

launch(fails, ranks=None, timeout=None, collectives="ring")
"""


def test_under_torchrun_a_launch_joins_the_ranks_that_are_there_and_one_that_fails_leaves_and_is_named(tmp_path):
    """Python would wait for the lane of the one that fails, the lane for rank 0, that for a message; and torchrun for
    all of them."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run_forked(tmp_path, TORCHRUN_SCRIPT, *torchrun)
    assert done.returncode == 1 and "rank 1 raised ValueError: bad shard" in done.stderr
    first = done.stderr.partition("Root Cause (first observed failure)")[2]
    assert "rank      : 1 " in first and "exitcode  : 1 " in first
    refusal = "ranks is 3, but torchrun started 2; pass ranks=2, or ranks=None to take what is there"
    assert (tmp_path / "rank-0").read_text() == f"[3.0, None] [5.0, None] {refusal}"
    assert (tmp_path / "rank-1").read_text() == f"[None, 3.0] [None, 5.0] {refusal}"


@pytest.fixture
def world_of_others(monkeypatch):
    """Sets what a launcher would, at a port where nobody listens; whatever a launch makes of it is undone."""

    def pretend(rank, size):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = str(free.getsockname()[1])
        for name, value in {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, value)
        return port

    return pretend


@pytest.mark.parametrize(("rank", "why"), [("0", "Timed out after . seconds"), ("1", "timed out .* to connect to")])
def test_a_rank_whose_world_does_not_come_says_so_in_the_time_of_its_launch(rank, why, world_of_others):
    start = world_of_others(rank, "2") and time.monotonic()
    with pytest.raises(RuntimeError, match=why):
        launch(rank_functions.who_and_how_many, ranks=None, timeout=1.5)
    assert time.monotonic() - start < pace.seconds(8)


def test_under_torchrun_a_failure_ends_the_job_and_a_hang_is_named(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    source = """
import time, torch
from zerolab.ranks import launch
def hangs(comm):
    if comm.rank == 0:
        comm.recv(torch.ones(10), 1)
    time.sleep(60)
launch(hangs, ranks=2, timeout=2)
"""
    done = run_forked(tmp_path, source, *torchrun)
    assert done.returncode != 0
    # Both are overdue; torchrun may end one before it has said so.
    said = ("rank 0 did not finish within 2 s: it waits to receive from rank 1 (40 bytes)", "rank 1 did not finish")
    assert any(words in done.stderr for words in said)
