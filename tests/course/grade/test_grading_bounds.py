"""What an answer may not reach for is judged when it reaches for it, not by what things are called."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from zoo.trial import hint_for

from zerolab.collectives import LocalTransport, build
from zerolab.course.grade.runner import pack_function
from zerolab.course.judge import bounds
from zerolab.course.judge.bounds import OffLimits, offence
from zerolab.course.judge.observe import on_rank
from zerolab.ranks import launch

LESSON = "01_ring_collectives"
GATHER = """
{before}
def ring_all_gather(comm, shard, numel):
    whole = torch.empty(numel, dtype=shard.dtype)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    {inside}
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    return whole
"""


def hint(inside: str = "pass", before: str = "") -> str:
    return hint_for(LESSON, "ring_all_gather", GATHER.format(before=before, inside=inside.replace("\n", "\n    ")))


def test_the_answer_that_the_others_change_is_right() -> None:
    assert hint() == ""


@pytest.mark.parametrize(
    "inside",
    [
        "load = save = open = sys = exit = meter = transport = distributed = 3\nassert load + meter == 6",
        "for save in range(3): load = save",
        "eval = exec = vars = globals = inspect = compile = 1\nassert eval == vars",
        "assert getattr(comm, 'size') == comm.size",
        "class Box: pass\nbox = Box()\nsetattr(box, 'transport', 4)\nassert box.transport == 4",
        "assert __import__('math').pi > 3",
        "exec('numbers = [1, 2]')\nassert eval('1 + 1') == 2",
        "import sys\nassert sys.maxsize > 2**31 and torch.finfo(torch.float32).max < sys.float_info.max",
        "import builtins\nassert builtins.len([1]) == 1",
        "import io\nfile = io.BytesIO()\ntorch.save(3, file)\nfile.seek(0)\nassert torch.load(file) == 3",
        "import warnings\nwith warnings.catch_warnings(record=True):\n    warnings.warn('once')",
        "import traceback\ntry: int('no')\nexcept ValueError: assert 'no' in traceback.format_exc()",
        "import threading\nthread = threading.Thread(target=len, args=([],))\nthread.start()\nthread.join()",
        "import inspect\nassert list(inspect.signature(len).parameters) == ['obj']",
        "import sys\nif sys.platform == 'linux': open('/proc/self/status').close()",
    ],
)
def test_names_alone_are_no_offence(inside: str) -> None:
    assert hint(inside) == ""


@pytest.mark.parametrize(
    "before",
    [
        "import decimal, gc, logging, sys, os, time, random, re, enum, abc, types, string, struct, textwrap",
        "import collections.abc, concurrent.futures, contextvars, numbers, queue, secrets, threading, warnings, io",
        "from decimal import Decimal\nfrom fractions import Fraction\nfrom logging import getLogger",
        "import gc\ngc.collect()\ngc.disable()\ngc.enable()",
        "import numpy as np\nfrom torch import sys as inside\nfrom operator import attrgetter, methodcaller",
        "from dataclasses import dataclass, field\n@dataclass(slots=True, frozen=True)\nclass Part:\n    size: int = 3",
        "from typing import NamedTuple\nclass Part(NamedTuple):\n    size: int",
        "from collections import namedtuple\nfrom enum import Enum\nPart = namedtuple('Part', 'size')",
        "import functools\n@functools.wraps(len)\ndef length(*args): return len(*args)",
        "class Keeper:\n    def __init__(self): self.__dict__.update(load=1)\n    def save(self): return self.load",
        "class Keeper:\n    def __enter__(self): return self\n    def __exit__(self, *error): return False",
        "class Meta(type):\n    def __new__(kind, name, bases, at): return super().__new__(kind, name, bases, at)",
        "import functools\n@functools.singledispatch\ndef size(x): return 1\nsize.register(list, len)",
        "class Step(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return x.clone()",
    ],
)
def test_an_answer_may_import_and_define_what_no_text_forbids(before: str) -> None:
    assert hint(before=before) == ""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import zerolab", "it imports zerolab"),
        ("from zerolab.collectives.ring import RingCollectives", "it imports zerolab.collectives.ring"),
        ("import torch.distributed as dist", "it imports torch.distributed"),
        ("from torch import distributed", "it imports torch.distributed"),
        ("from torch.distributed import nn", "it imports torch.distributed"),
        ("import importlib\nimportlib.import_module('zerolab.flat')", "it imports zerolab.flat"),
        ("import sys\nsys.modules['torch.distributed']", "it imports torch.distributed"),
        ("__builtins__['__import__']('math')", "it uses __builtins__"),
        ("len.__call__.__func__.__globals__", "it uses __globals__"),
        ("().__class__.__subclasses__()", "it uses __subclasses__"),
        ("!pip install numpy", "is a command to IPython"),
        ("def f(:", "is not Python"),
        ("x = '\ud800'", "cannot be read as Python"),
        ("(" * 500 + ")" * 500, "Python"),
    ],
)
def test_what_the_exercise_is_to_build_may_not_be_imported(source: str, says: str) -> None:
    trouble = offence(source)
    assert trouble is not None and says in trouble.message
    trouble.message.encode()


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("torch.sys._getframe(1).f_locals['args']", "sys._getframe: work with what you are given"),
        ("import sys\nsys._current_frames()", "sys._current_frames: work with"),
        ("import gc\ngc.get_objects()", "gc.get_objects: work with what"),
        ("getattr(comm, 'trans' + 'port').sent.clear()", "below the contract"),
        ("comm.meter.bytes", "what the check reads"),
        ("comm.meter = None", "what the check reads"),
        ("comm.__getattribute__('meter')", "what the check reads"),
        ("match comm:\n    case object(transport=wire):\n        pass", "below the contract"),
        ("vars(comm)['transport']", "KeyError"),
        ("(rank for rank in []).gi_frame", "gi_frame: work with what you are given"),
        ("try: 1 / 0\nexcept ZeroDivisionError as error: error.__traceback__.tb_frame", "tb_frame: work with"),
        ("open('shared.txt', 'w')", "open (shared.txt): an answer has no need of files"),
        ("open('/etc/passwd')", "open (/etc/passwd): an answer has no need of files"),
        ("open('/proc/self/root/etc/passwd')", "open (/proc/self/root/etc/passwd): an answer has no need of files"),
        ("import pathlib\npathlib.Path('x').write_text('y')", "no need of files"),
        ("import os\nos.listdir('/')", "os.listdir (/): an answer has no need of files"),
        ("import tempfile\ntempfile.mkstemp()", "no need of files"),
        ("torch.os.system('true')", "os.system (true): an answer starts no process"),
        ("import subprocess\nsubprocess.run(['true'])", "an answer starts no process"),
        ("import os\nos.kill(os.getppid(), 0)", "sends no signal"),
        ("import os\nos.fork()", "starts no process"),
        ("import multiprocessing\nmultiprocessing.Process(target=len).start()", "starts no process"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))", "no need of a network"),
        ("import ctypes\nctypes.CDLL(None).getpid()", "work with what you are given"),
        ("exec('import os; os.kill(os.getppid(), 0)')", "sends no signal"),
        ("torch.distributed.all_reduce(shard)", "torch.distributed is off limits"),
        ("exit()", "it calls exit"),
        ("import sys\nsys.exit(3)", "it calls exit"),
    ],
)
def test_what_lies_outside_is_refused_when_it_is_reached(inside: str, says: str) -> None:
    found = hint(inside)
    assert says in found
    assert "zerolab." not in found and len(found) < 300


def test_a_refusal_names_the_line() -> None:
    assert "(line 6, in ring_all_gather)" in hint("open('shared.txt')")


def test_a_refusal_that_is_caught_does_no_harm() -> None:
    assert hint("try: open('shared.txt')\nexcept Exception: pass") == ""


def test_the_library_may_open_what_an_answer_may_not() -> None:
    bounds.watch_process()
    assert bounds._leads_here(sys._getframe()) is False
    with open(__file__) as file:
        assert file.readline()


def test_a_thread_whose_target_is_no_answers_is_refused_where_only_answers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds.watch_process()
    said: list[BaseException] = []
    monkeypatch.setitem(bounds._state, "strict", True)
    monkeypatch.setattr(threading, "excepthook", lambda args: said.append(args.exc_value))
    thread = threading.Thread(target=open, args=("/nowhere", "w"))
    thread.start()
    thread.join()
    assert [type(error) for error in said] == [OffLimits]


def test_what_an_answer_puts_into_the_class_of_comm_no_other_case_sees() -> None:
    one, other = (bounds.guarded(build(LocalTransport())) for _ in range(2))
    type(one).isend = None  # type: ignore[assignment]
    assert one.isend is None and callable(other.isend)


def test_a_group_that_an_answer_makes_is_watched_as_the_whole_is() -> None:
    assert "below the contract" in hint("comm.subgroup(list(range(comm.size))).transport")
    names: dict[str, Any] = {}
    exec(compile(IN_A_GROUP, "<answer in_a_group>", "exec"), names)
    args = [(torch.ones(4),) for _ in range(2)]
    records = launch(
        on_rank,
        pack_function(names["in_a_group"], (), {}),
        [args],
        calling,
        False,
        False,
        None,
        ranks=2,
        world="lockstep",
        collectives="ring",
    )
    for (record,) in records:
        assert [name for name, _ in record["calls"]][-2:] == ["all_reduce", "all_gather"]
        assert sum(nbytes for _, nbytes in record["sent"]) >= 16
        assert record["value"]["values"] == [2.0] * 8


IN_A_GROUP = """
def in_a_group(comm, tensor):
    pair = comm.subgroup([1, 0]).split(0)
    return pair.all_gather(pair.all_reduce(tensor))
"""


def calling(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)
