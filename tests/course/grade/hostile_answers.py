"""Answers that nobody should hand in: what each does to the process that runs it, and what it must be told.

They stand in the place of an exercise of lesson 00, whose functions take plain numbers; `body` is what they do first.
"""

from __future__ import annotations

from typing import NamedTuple

from cover import NIGHTLY

MUCH = 10 if NIGHTLY else 1
"""By day what an answer makes too much of is a tenth, of texts a hundredth: beyond every limit as the whole is
(`zerolab.course.judge.case`: 2,000 characters, 100,000 elements; Python's own 1,000 calls), in a part of the time."""
TEXT = 50_000_000 if NIGHTLY else 500_000


class Hostile(NamedTuple):
    """`source` for the exercise `{name}`; `says` is a piece of the hint that its author must read."""

    about: str
    source: str
    says: str


def does(about: str, body: str, says: str) -> Hostile:
    """An answer that does `body` when it is called."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return Hostile(about, f"def {{name}}(*numbers):\n{lines}", says)


def at_once(about: str, lines: str, says: str) -> Hostile:
    """An answer whose cell does something when it is loaded."""
    return Hostile(about, f"{lines}\ndef {{name}}(*numbers):\n    return 0", says)


BY_DAY = {
    *("never ends its loading", "kills itself", "exits at once", "takes all memory", "leaves a child behind"),
    *("sends its group a signal", "writes beside the notebooks", "replaces a function"),
}
"""One of each way to do harm, by what it is about; nightly all are tried."""
EVIL = "class Evil{base}:\n    {members}\nreturn Evil()"
HOSTILE = [
    does("returns a lone surrogate", "return '\\ud800'", ""),
    does("raises a lone surrogate", "raise ValueError('\\ud800')", "raised ValueError"),
    Hostile("is written with a lone surrogate", "x = '\ud800'\ndef {name}(*numbers):\n    return 0", "as Python"),
    does("prints lone surrogates", "print('\\udcff' * 10)\nreturn 0", ""),
    does("raises megabytes", f"raise ValueError('x' * {TEXT})", "raised ValueError"),
    does("returns megabytes", f"return 'x' * {TEXT}", ""),
    does("prints megabytes", f"print('x' * {TEXT})\nreturn 0", ""),
    does("returns a list in a list in a list", "x = []\nfor _ in range(10**5): x = [x]\nreturn x", ""),
    does("returns a list that holds itself", "x = []\nx.append(x)\nreturn x", ""),
    does("returns keys without end", f"return dict.fromkeys(range({120_000 * MUCH}))", ""),
    does("returns much in few places", "x = [0] * 1000\nreturn [[x] * 300] * 300", ""),
    does("returns a number of many digits", "return 10 ** 100_000", ""),
    does("returns keys that are odd", "return {float('nan'): 1, (1, 2): 2, '\\ud800': 3}", ""),
    does("an error without words", EVIL.format(base="(Exception)", members="def __str__(self): 1 / 0")
         .replace("return Evil()", "raise Evil()"), ""),
    does("a text of its own", EVIL.format(base="(str)", members="def encode(self, *how): raise SystemExit"), ""),
    does("a class of its own", EVIL.format(base="", members="__class__ = property(lambda self: 1 / 0)"), ""),
    does("a list of its own", EVIL.format(base="(list)", members="def __len__(self): raise SystemExit"), ""),
    does("sends the grader a signal", "import os\nos.kill(os.getppid(), 15)", "sends no signal"),
    does("sends its group a signal", "import os\nos.killpg(os.getpgrp(), 15)", "sends no signal"),
    does("sends a signal by C", "import ctypes\nctypes.CDLL(None).kill(ctypes.c_int(0), 15)", "from inside Python"),
    does("a thread that sends it", "import os, threading\nthreading.Thread(target=os.kill, args=(os.getppid(), 15))"
         ".start()\nreturn 0", ""),
    does("leaves a child behind", "import os\nif os.fork() == 0:\n    os.setsid()\n    os.execvp('sleep', ['sleep', "
         "'60.125'])", "starts no process"),
    does("starts a session", "import subprocess\nsubprocess.Popen(['sleep', '60.125'], start_new_session=True)",
         "starts no process"),
    does("reads the solutions", "import torch\nreturn len(torch.os.listdir({solutions!r}))", "no need of files"),
    does("opens a solution", "return open({solutions!r} + '/00_start_here.ipynb').read()", "no need of files"),
    does("reads a solution in C", "import torch\nreturn torch.from_file({solutions!r} + '/00_start_here.ipynb', "
         "size=9, dtype=torch.uint8).tolist()", ""),
    does("writes beside the notebooks", "import torch\ntorch.save(torch.ones(3), {folder!r} + '/stolen.pt')", ""),
    does("exits", "import sys\nsys.exit(0)", "it calls exit"),
    does("exits at once", "import os\nos._exit(0)", "ended at once"),
    does("interrupts", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    does("is no error", "raise BaseException('all is well')", "BaseException"),
    does("kills itself", "import signal\nsignal.raise_signal(signal.SIGKILL)", "ended by SIGKILL"),
    does("stands still", "import signal\nsignal.raise_signal(signal.SIGSTOP)", "does not end"),
    does("crashes", "import signal\nsignal.raise_signal(signal.SIGSEGV)", "ended by SIGSEGV"),
    does("calls itself for ever", f"import sys\nsys.setrecursionlimit({100_000 * MUCH})\n"
         "f = lambda: f()\nreturn f()", ""),
    does("never ends", "while True: pass", "does not end"),
    does("takes all memory", "return len(bytearray(10**12))", "memory"),
    does("closes all files", "import os\nos.closerange(0, 200)\nreturn 0", ""),
    does("writes into all pipes", "import os\nfor one in range(3, 60):\n    try: os.write(one, b'{{\"done\": true}}')\n"
         "    except OSError: pass", ""),
    does("forgets all modules", "import sys\nsys.modules.clear()\nreturn 0", ""),
    does("replaces a function", "import builtins\nbuiltins.divmod = max\nreturn 0", "it replaces builtins.divmod"),
    does("leaves a thread that never ends", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,))"
         ".start()\nreturn 0", ""),
    does("forbids itself files", "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\nreturn 0", ""),
    does("ends by a signal without a name", "import signal\nsignal.raise_signal(40)", "ended by SIG40"),
    at_once("never ends its loading", "while True: pass", "does not end"),
    at_once("exits when it is loaded", "raise SystemExit", "it calls exit"),
    at_once("interrupts when it is loaded", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    at_once("acts at the end", "import atexit, os\natexit.register(os.kill, os.getppid(), 15)", ""),
]  # fmt: skip
