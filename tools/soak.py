"""What is left when a command is interrupted, killed or starved: nothing, and no traceback is printed.

    python tools/soak.py --moments 200 --seed 0

runs `zerolab train` and `zerolab grade`, each time until a moment drawn at random, lets something go wrong there, and
looks at what remains: processes (found by a variable in their environment), temporary files, and what was printed.
Moments count from where the command answers to signals, which is when its first lines run. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
MARK = "ZEROLAB_SOAK"
GONE_SECONDS = 5.0
"""How long after the command's end its processes may take."""
TRAIN = ["train", "--model-size", "nano", "--seq-len", "32", "--max-steps", "12", "--batch-size", "4"]
COMMANDS = {
    "train": TRAIN,
    "train on disk": [*TRAIN, "--zero-stage", "3", "--offload-optimizer", "disk", "--offload-path", "."],
    "train and profile": [*TRAIN, "--profile-json", "profile.json"],
    "grade": ["grade", str(ROOT / "solutions" / "02_flat_buffers.ipynb"), "--json", "grade.json"],
}


@dataclass(frozen=True)
class Moment:
    """A command and what goes wrong: `seconds` after it has begun, or `once` there is a "server", or "ranks"; limits
    and streams are so from its start."""

    command: str
    trouble: str
    seconds: float = 0.0
    amount: int = 0
    once: str = ""

    def __str__(self) -> str:
        when = f" {self.amount}" if self.trouble in LIMITS else f" after {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.command}: {self.trouble}{when}"


@dataclass
class Remains:
    """What was found afterwards. `faults` says what should not be."""

    status: int
    printed: str
    said: str
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C, as a terminal sends it."""
    os.killpg(process.pid, signal.SIGINT)


def interrupt_twice(process: subprocess.Popen[str]) -> None:
    interrupt(process)
    time.sleep(0.05)
    with suppress(ProcessLookupError):
        interrupt(process)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()


def terminate(process: subprocess.Popen[str]) -> None:
    process.terminate()


def stop_all_ranks_and_kill(process: subprocess.Popen[str]) -> None:
    """What a server has forked stands still, as it would in a long loop in C; then the parent is killed."""
    for server in psutil.Process(process.pid).children():
        for rank in server.children():
            with suppress(psutil.Error):
                rank.suspend()
    process.kill()


def kill_the_server(process: subprocess.Popen[str]) -> None:
    """Then the parent goes on by itself."""
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):
            if child.children():
                child.kill()


SIGNALS: dict[str, tuple[Callable[[subprocess.Popen[str]], None], set[int]]] = {
    "Ctrl-C": (interrupt, {130}),
    "Ctrl-C twice": (interrupt_twice, {130}),
    "SIGTERM": (terminate, {143}),
    "SIGKILL": (kill, {-9}),
    "ranks stopped, SIGKILL": (stop_all_ranks_and_kill, {-9}),
    "server killed": (kill_the_server, {0, 1, 2}),
}
LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "size of files": resource.RLIMIT_FSIZE,
    "address space": resource.RLIMIT_AS,
}
STREAMS = {"output to a full device": ">/dev/full", "errors to nowhere": "2>&-", "output to nowhere": ">&-"}


def run(moment: Moment, folder: Path, python: Callable[..., subprocess.Popen[str]] | None = None) -> Remains:
    """Let it happen in an empty folder. `python(*words, **options)` begins what `subprocess.Popen([sys.executable,
    *words], **options)` would, for a moment without limits and redirected streams."""
    temporary, here = folder / "temporary", folder / "here"
    for made in (temporary, here):
        made.mkdir(parents=True)
    mark = f"{os.getpid()}-{random.getrandbits(64)}"
    environment = {**os.environ, "TMPDIR": str(temporary), MARK: mark, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    redirect = STREAMS.get(moment.trouble, "")
    command = ["sh", "-c", f'exec "$0" -m zerolab "$@" {redirect}', sys.executable, *COMMANDS[moment.command]]
    with (folder / "printed").open("w+") as printed, (folder / "said").open("w+") as said:
        begun = time.monotonic()
        options = {"cwd": here, "env": environment, "stdin": subprocess.DEVNULL, "stdout": printed, "stderr": said}
        options |= {"text": True, "start_new_session": True}
        if python:
            assert moment.trouble not in {*LIMITS, *STREAMS}
            process = python("-m", "zerolab", *COMMANDS[moment.command], **options)
        else:
            process = subprocess.Popen(command, preexec_fn=_prepared(moment), **options)  # type: ignore[call-overload]
        if moment.trouble in SIGNALS:
            happen, statuses = SIGNALS[moment.trouble]
            if _answers(process):
                _wait_for(moment.once, process)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(moment.seconds)
            if process.poll() is None:
                with suppress(ProcessLookupError, psutil.NoSuchProcess):
                    happen(process)
            else:
                statuses = {0}
        else:
            statuses = {0, 1, 2}
        try:
            status = process.wait(120)
        except subprocess.TimeoutExpired:
            status = -1
        left = _wait_for_the_end(mark, folder)
        printed.seek(0)
        said.seek(0)
        remains = Remains(status, printed.read(), said.read(), time.monotonic() - begun)
    faults = remains.faults
    # One that ended in time is no fault, even where the signal came a moment later.
    if status not in statuses | ({0} if moment.trouble in SIGNALS else set()):
        faults.append(f"status {status}")
    faults += [f"process {' '.join(process)[:100]}" for process in left]
    faults += [f"{sign} printed" for sign in ("Traceback", "Exception ignored", "Error in") if sign in remains.said]
    if moment.command == "grade" and status == 1:
        faults.append("points lost")
    # Where no file takes a byte, neither do those that a command speaks into here.
    mute = moment.trouble == "size of files" and moment.amount == 0
    if status > 0 and not mute and not (remains.said + remains.printed).strip():
        faults.append("not a word")
    if status == 130 and [line for line in remains.said.splitlines() if "running" not in line][1:]:
        faults.append("more than one line")
    # What is killed before its server has begun leaves its folder.
    files = sorted(path.name for path in temporary.iterdir()) if status != -9 else []
    # What was asked for may be there, whole, also where the end came right after it; and so may what could not be
    # written where it was asked for.
    files += sorted(path.name for path in here.iterdir() if not _is_asked_for(path) and path.name not in remains.said)
    faults += [f"file {name}" for name in files]
    return remains


def _is_asked_for(path: Path) -> bool:
    """Whether it is what a command was asked to write, all of it."""
    if path.name not in ("profile.json", "grade.json"):
        return False
    with suppress(ValueError, OSError):
        return isinstance(json.loads(path.read_bytes()), dict | list)
    return False


def _prepared(moment: Moment) -> Callable[[], None]:
    """What the process of the command does first."""

    def prepare() -> None:
        # A shell that runs this in its background has it ignore Ctrl-C, and the command with it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if moment.trouble in LIMITS:
            resource.setrlimit(LIMITS[moment.trouble], (moment.amount, moment.amount))

    return prepare


def _answers(process: subprocess.Popen[str]) -> bool:
    """Wait until the command answers to SIGTERM in a way of its own, which is the first thing that it does."""
    bit = 1 << (signal.SIGTERM - 1)
    while process.poll() is None:
        with suppress(OSError, StopIteration):
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            caught = next(line for line in status if line.startswith("SigCgt:"))
            if int(caught.split()[1], 16) & bit:
                return True
        time.sleep(0.002)
    return False


def _wait_for(what: str, process: subprocess.Popen[str]) -> None:
    """Wait until there is a "server", or until it has forked "ranks". A look goes through all processes of the machine,
    so there are few."""
    servers: list[psutil.Process] = []
    while what and process.poll() is None:
        with suppress(psutil.Error):
            children = psutil.Process(process.pid).children() if not servers else []
            servers += [child for child in children if "forkserver" in str(child.cmdline())]
            if servers and (what == "server" or servers[0].children()):
                return
        time.sleep(0.02)


def _wait_for_the_end(mark: str, folder: Path) -> list[list[str]]:
    """Processes that are still there; they are killed, so that they are found once only."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := list(marked(mark, folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = []
    for process in left:
        with suppress(psutil.Error):
            lines.append(process.cmdline())
            process.kill()
    return lines


def marked(mark: str, folder: Path) -> Iterator[psutil.Process]:
    """Processes that were started with the mark or are in the folder: of a fork the system knows the environment of
    what it is forked from."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            here = process.environ().get(MARK) == mark or Path(process.cwd()).is_relative_to(folder)
            if here and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def drawn(moments: int, seed: int) -> Iterator[Moment]:
    """Moments: half of them signals while the command starts, when most is in the making."""
    random_ = random.Random(seed)
    for _ in range(moments):
        command = random_.choice(list(COMMANDS))
        trouble = random_.choice([*SIGNALS, *SIGNALS, *LIMITS, *STREAMS])
        seconds = random_.choice([random_.uniform(0, 4), random_.uniform(0, 10)])
        amount = random_.choice([8, 12, 16, 24, 32, 48, 64])
        if trouble == "size of files":
            amount = random_.choice([0, 1, 512, 4096, 65536, 10**6])
        if trouble == "address space":
            amount = random_.choice([5, 8, 10, 12, 16, 24]) * 10**8
        yield Moment(command, trouble, seconds if trouble in SIGNALS else 0.0, amount if trouble in LIMITS else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    counted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for number, moment in enumerate(drawn(options.moments, options.seed)):
        if time.monotonic() > until:
            break
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            remains = run(moment, Path(folder))
        counted[moment.trouble] += 1
        found[moment.trouble] += bool(remains.faults)
        print(f"{number:4} {moment} ({remains.seconds:.1f} s, status {remains.status}): ", end="")
        print("; ".join(remains.faults) or "nothing left", flush=True)
        if remains.faults:
            print(f"{remains.printed[-1500:]}\n{remains.said[-3000:]}", flush=True)
    for trouble, times in sorted(counted.items()):
        print(f"{trouble:<28}{times:4} moments, {found[trouble]} with something left")
    print(f"{'together':<28}{counted.total():4} moments, {found.total()} with something left")
    return 1 if found.total() else 0


if __name__ == "__main__":
    sys.exit(main())
