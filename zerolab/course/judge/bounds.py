"""What an answer may not reach for: files, other processes, the network, the check itself, and finished parts.

It is judged by what the code does, not by what things are called: a method may be called `save`. `offence` reads the
source before it runs. An audit hook of Python (`watch_process`) sees what is opened, started, connected, sent a signal,
or looked at from inside Python, and refuses it if an answer's code is on the road there. `guarded` gives an answer a
`comm` whose transport and meter answer to the library alone.

Who wants to get around all this can (`docs/instructors.md`); nobody gets into it by accident.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import threading
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Trouble
from zerolab.errors import ZerolabError

ANSWER_FILE = re.compile(r"<answer |<ipython-input|ipykernel_\d+")
"""What the file names of learners' code hold: cells that were loaded for a grade, and a kernel's cells."""


class OffLimits(ZerolabError):  # noqa: N818 (it reads as a sentence)
    """An answer reached for something that no answer needs; the message says what, and why not."""


# Before it runs.

_FINISHED = re.compile(r"(zerolab|torch\.distributed)(\.\w+)*$")
_INSIDE = {"__builtins__", "__closure__", "__code__", "__globals__", "__loader__", "__spec__", "__subclasses__"}
"""Names and attributes that no audit hook sees, and that no program needs by accident."""


NOT_WRITTEN = Trouble("NotImplementedError", "not written yet: put your code where it says YOUR CODE HERE")


def offence(source: str, name: str = "") -> Trouble | None:
    """Why a source need not run: the line that is not Python, the first thing that goes around the exercise, or that
    the function or class `name` is not written yet."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return Trouble("SyntaxError", not_python(source, error))
    except (ValueError, RecursionError, MemoryError) as error:
        return Trouble("SyntaxError", f"it cannot be read as Python ({type(error).__name__}: {error})")
    for node in ast.walk(tree):
        for module in modules_named(node):
            if _FINISHED.match(module):
                return Trouble("OffLimits", f"it imports {module}, where the finished thing is: build it yourself")
        if (inside := getattr(node, "attr", getattr(node, "id", ""))) in _INSIDE:
            return Trouble("OffLimits", f"it uses {inside}: work with what you are given, not from inside Python")
    # What follows a stub takes its place.
    *_, last = [None, *(node for node in tree.body if getattr(node, "name", None) == name)]
    # A written class may have a method that its own subclasses are to write.
    left = [one for one in getattr(last, "body", []) if "YOUR CODE HERE" in str(ast.get_source_segment(source, one))]
    return NOT_WRITTEN if any(map(is_blank, [last, *left])) else None


def is_blank(node: ast.stmt | None) -> bool:
    """Whether nothing stands in a function, a class or a method before the stub."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return False
    body = node.body[ast.get_docstring(node) is not None :]
    return bool(body) and ast.unparse(body[0]).startswith("raise NotImplementedError")


def modules_named(node: ast.AST) -> list[str]:
    """The modules that an import brings in, or that a text in the code names in full."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "zerolab":
        return [node.value]
    return []


def not_python(source: str, error: SyntaxError) -> str:
    """What is wrong with a line; a notebook lets some lines pass that are no Python."""
    line = "".join(source.splitlines()[(error.lineno or 0) - 1 : error.lineno]).strip()
    if re.match(r"[%!?]|\w+ *= *[%!]", line) or line.endswith("?"):
        shown = line if len(line) <= 40 else line[:37] + "..."
        return f"line {error.lineno} is a command to IPython ({shown}): an answer runs as plain Python, so delete it"
    return f"line {error.lineno} is not Python: {error.msg}"


# While it runs.

_WHY = {
    "files": "an answer has no need of files",
    "processes": "an answer starts no process and sends no signal",
    "network": "an answer has no need of a network",
    "inside": "work with what you are given, not from inside Python",
}
_KINDS = {
    "": "os.putenv os.unsetenv socket.gethostname",
    "processes": "subprocess.Popen signal.pthread_kill pty.spawn os.exec os.fork os.forkpty os.kill os.killpg "
    "os.posix_spawn os.spawn os.system",
    "files": "open mmap.__new__ glob.glob pathlib.Path.glob pathlib.Path.rglob os shutil fcntl tempfile",
    "network": "socket urllib http ftplib smtplib",
    "inside": "gc.get_objects gc.get_referrers gc.get_referents sys._getframe sys._current_frames sys.setprofile "
    "sys._current_exceptions sys.addaudithook sys.settrace object.__getattr__ object.__setattr__ ctypes",
}
"""Events by the reason, or families of them: what stands before the first dot."""
_EVENTS = {event: kind for kind, events in _KINDS.items() for event in events.split()}
_LIBRARY = str(Path(__file__).resolve().parents[2]) + os.sep
_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random", "/proc/meminfo", "/proc/cpuinfo", "/sys/")

_hook = threading.local()
_state = {"watched": False, "strict": False}


def watch_process(strict: bool = False) -> None:
    """From now on refuse what answers may not do, in all threads of this process; it cannot be undone. `strict`, in a
    process that runs answers only, also refuses it where nobody can be seen on the road, such as a thread's target."""
    _state["strict"] = _state["strict"] or strict
    if not _state["watched"]:
        _state["watched"] = True
        sys.addaudithook(_audit)


@cache
def _kind(event: str) -> str:
    return _EVENTS.get(event, _EVENTS.get(event.partition(".")[0], ""))


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    kind = _kind(event)
    # To look at a frame is an event, too.
    if not kind or getattr(_hook, "busy", False):
        return
    _hook.busy = True
    try:
        frame = sys._getframe(1)
        if kind == "inside" and not event.startswith("ctypes."):
            # The standard library looks inside for honest reasons: for whoever makes a dataclass, for one.
            refused = is_answer(frame)
        else:
            refused = not _is_reading_python(event, arguments) and _leads_here(frame)
    finally:
        _hook.busy = False
    if refused:
        raise OffLimits(f"it calls for {_said(event, arguments)}: {_WHY[kind]}")


def is_answer(frame: FrameType) -> bool:
    return bool(ANSWER_FILE.search(frame.f_code.co_filename))


def _leads_here(frame: FrameType | None) -> bool:
    """Whether an answer is what leads to an event: on the way out from it, its code comes before the library's own,
    and before an import, which may read what it likes."""
    while frame is not None:
        if is_answer(frame):
            return True
        if frame.f_code.co_filename.startswith((_LIBRARY, "<frozen importlib")):
            return False
        frame = frame.f_back
    return _state["strict"]


def _is_reading_python(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a file is opened for reading that belongs to Python or its packages, such as a line for a traceback."""
    if event != "open" or isinstance(arguments[0], int):
        return False
    path, mode, flags = arguments
    writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR)
    # Links are followed: /proc/self/root is the whole disk.
    place = os.path.realpath(os.fsdecode(path))
    harmless = (*_python_places(), _LIBRARY, *_HARMLESS, f"/proc/{os.getpid()}/")
    return place == "/dev/null" or (not writes and place.startswith(harmless))


@cache
def _python_places() -> tuple[str, ...]:
    places = {*sysconfig.get_paths().values(), f"{sys.prefix}/lib", f"{sys.base_prefix}/lib", "/usr/lib"}
    return tuple(sorted({f"{place}{os.sep}" for path in places for place in (path, os.path.realpath(path))}))


def _said(event: str, arguments: tuple[Any, ...]) -> str:
    """An event as words: what is called, and for what, in few characters."""
    what = next((os.fsdecode(part) for part in arguments if isinstance(part, str | bytes | os.PathLike)), "")
    shown = what if len(what) <= 60 else what[:57] + "..."
    if event.startswith("object."):
        return shown
    return f"{event} ({shown})" if shown else event


# What is handed to it.

_kept: WeakKeyDictionary[Collectives, dict[str, Any]] = WeakKeyDictionary()
_PRIVATE = {
    "transport": "comm.transport is below the contract; send, recv, isend and irecv are all you need",
    "meter": "comm.meter is what the check reads",
}


def guarded(comm: Collectives) -> Collectives:
    """`comm`, whose transport and meter from now on answer to the library alone."""
    if comm in _kept:  # A group of a guarded one, and of its class.
        return comm
    _kept[comm] = {name: comm.__dict__.pop(name) for name in _PRIVATE}
    kind = type(comm)
    # A class for this one alone: what an answer may put into it, no other case and no other rank sees.
    comm.__class__ = type(kind.__name__, (kind,), {name: _private(name) for name in _PRIVATE})
    return comm


def _private(name: str) -> property:
    def kept(comm: Collectives) -> dict[str, Any]:
        if is_answer(sys._getframe(2)):
            raise OffLimits(_PRIVATE[name])
        return _kept.setdefault(comm, {})

    def put(comm: Collectives, value: Any) -> None:
        kept(comm)[name] = value

    def get(comm: Collectives) -> Any:
        return kept(comm)[name]

    return property(get, put)
