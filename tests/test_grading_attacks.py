"""Answers that try to get their points without the work, or to bring the grader down."""

import sys
from pathlib import Path
from random import Random

import pytest
from zoo.trial import hint_for

from zerolab.grading.cells import grade_id, is_answer, read_notebook
from zerolab.grading.exercise import shortcut, with_comm
from zerolab.grading.lessons import exercises_of
from zerolab.grading.referee import Limits, Verdict, grade, understood
from zerolab.grading.submission import compare

LESSON = "01_ring_collectives"
SOLUTION = Path(__file__).resolve().parent.parent / "solutions" / f"{LESSON}.ipynb"
EXERCISES = exercises_of(LESSON)
BLANK = "raise NotImplementedError()"


MEAN = """
def ring_all_reduce(comm, tensor, average=False):
    whole = ring_all_gather(comm, ring_reduce_scatter(comm, {first}), tensor.numel())
    return {last} if average else whole
"""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("last", ["whole.div_(comm.size)", "whole.mul_(1 / comm.size)"])
def test_every_right_way_to_a_mean_passes(last: str, seed: int) -> None:
    assert hint_for(LESSON, "ring_all_reduce", MEAN.format(first="tensor", last=last), seed) == ""


@pytest.mark.parametrize(
    ("first", "last"), [("tensor", "whole / comm.size"), ("tensor / comm.size if average else tensor", "whole")]
)
def test_a_right_mean_that_takes_a_second_tensor_is_told_so_by_the_scoreboard(first: str, last: str) -> None:
    hint = hint_for(LESSON, "ring_all_reduce", MEAN.format(first=first, last=last))
    assert "average=True: bytes held at the worst moment" in hint


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("last", ["whole // comm.size", "whole / comm.size / comm.size"])
def test_a_wrong_mean_is_told_apart_from_a_wrong_sum(last: str, seed: int) -> None:
    hint = hint_for(LESSON, "ring_all_reduce", MEAN.format(first="tensor", last=last), seed)
    assert "the sums are right" in hint or "returned the mean where" in hint or "only rank 0" in hint


def test_fewer_elements_than_ranks_are_tried() -> None:
    source = """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_zeros(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    return whole if numel >= comm.size else whole.zero_()
"""
    assert "on 4 ranks, 3 elements" in hint_for(LESSON, "ring_all_gather", source)
    for name, exercise in EXERCISES.items():
        if exercise.run is with_comm and name != "ring_all_gather":
            numels = [(case.args[0][0].numel(), case.ranks) for case in exercise.cases(Random(0))]
            assert any(numel < ranks for numel, ranks in numels), name


def test_bytes_are_whole_numbers() -> None:
    source = """
def ring_bytes(numel, itemsize, ranks, rank):
    edges = [chunk_bounds(numel, ranks, one % ranks) for one in (rank, rank + 1)]
    return 1.0 * (2 * numel - sum(stop - start for start, stop in edges)) * itemsize * (ranks > 1)
"""
    assert "divide with //" in hint_for(LESSON, "ring_bytes", source)


@pytest.mark.parametrize(
    "source",
    [
        "torch.sys._getframe(1).f_locals['args']",
        "getattr(comm, 'trans' + 'port').sent.clear()",
        "vars(comm)['transport']",
        "comm.__dict__['transport']",
        "__builtins__['__import__']('zerolab')",
        "__import__('os')",
        "next(frame.gi_frame.f_back for frame in [])",
        "torch.save(tensor, 'shared.pt')",
        "torch.load('shared.pt')",
        "torch.from_file('shared', shared=True)",
        "globals()['check']",
        "fn.__code__",
        "(rank for rank in []).gi_frame.f_builtins['__import__']('zerolab')",
        "import dataclasses\ndataclasses.builtins.eval('1')",
        "from torch import sys as inside",
        "from dataclasses import builtins as inside",
        "from operator import attrgetter as inside",
        "from operator import methodcaller",
        "torch.importlib.import_module('zerolab')",
        "match comm:\n    case object(transport=wire):\n        pass",
        "fn.__call__.__self__",
        "().__class__.__subclasses__()",
        "comm.__getattribute__('meter')",
        "comm.__reduce__()",
        "exec('numbers = 1')",
        "eval('1')",
        "run = eval",
    ],
)
def test_ways_around_messages_are_refused_by_name(source: str) -> None:
    trouble = shortcut(source)
    assert trouble is not None and trouble.kind == "Shortcut"


def test_a_small_class_is_no_way_around() -> None:
    assert shortcut("class Ring:\n    def __init__(self):\n        super().__init__()") is None


@pytest.mark.parametrize(
    "source",
    [
        "module.eval()",
        "max(range(3), key=totals.__getitem__)",
        "list(map(left.__add__, right))",
        "class Held:\n    __slots__ = ('shard',)\n    __repr__ = __str__ = lambda self: 'held'",
        "from bisect import bisect_right\nfrom fractions import Fraction\nimport copy, heapq, statistics",
        "from contextlib import contextmanager\nfrom dataclasses import dataclass, field",
    ],
)
def test_what_honest_answers_use_is_no_shortcut(source: str) -> None:
    assert shortcut(source) is None


def test_nobody_is_told_of_one_rank_who_runs_on_two() -> None:
    source = """
def mended_broadcast(comm, tensor, src):
    comm.recv(tensor, comm.rank)
"""
    hint = hint_for(LESSON, "mended_broadcast", source)
    assert "message with itself" in hint and hint.startswith("on 2 ranks")


def test_sending_the_source_its_own_tensor_is_named() -> None:
    source = """
def mended_broadcast(comm, tensor, src):
    if comm.size == 1:
        return tensor
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    if comm.rank == src:
        comm.recv(tensor.clone(), (comm.rank - 1) % comm.size)
    return tensor
"""
    assert "nobody left to tell" in hint_for(LESSON, "mended_broadcast", source)


# What comes back from the process of the answers


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\n",
        b"[1]\n",
        b"7\n",
        b"{}\n",
        b"[" * 100_000,
        b'{"ended": "chunk_bounds"}\n',
        b'{"ended": "chunk_bounds", "seen": 7}\n',
        b'{"ended": "chunk_bounds", "seen": [{"records": [{"x": 1}], "trouble": null}]}\n',
        b'{"ended": "chunk_bounds", "seen": [{"records": [], "trouble": {"kin": 1}}]}\n',
        b'{"trouble": 7}\n',
        b"\xff\n",
    ],
)
def test_a_line_that_no_worker_writes_is_trouble(raw: bytes) -> None:
    assert understood(raw)["trouble"]["kind"] == "Tampered"


def graded(answer: str) -> dict[str, Verdict]:
    """Verdicts on `answer` in the first cell and nothing in the others."""
    handed_in = read_notebook(SOLUTION)
    for cell in handed_in.cells:
        if is_answer(cell):
            cell.source = answer if grade_id(cell) == "chunk_bounds" else BLANK
    verdicts = grade(compare(handed_in, read_notebook(SOLUTION), LESSON), seed=3, limits=Limits(seconds=4))
    return {verdict.name: verdict for verdict in verdicts}


WRITE = """
import torch
for descriptor in range(3, 60):
    try:
        torch.os.write(descriptor, b'{line}\\n' * {times})
    except OSError:
        pass
"""


@pytest.mark.ranks
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("line", "times"),
    [('{"done": true}', 1), ('{"began": "chunk_bounds"}', 1000)],
    ids=["says that it is done", "says the same for ever"],
)
def test_forged_reports_bring_no_points_and_an_end(line: str, times: int) -> None:
    verdicts = graded(WRITE.replace("{line}", line).replace("{times}", str(times)))
    assert not any(verdict.passed for verdict in verdicts.values())
    assert verdicts["chunk_bounds"].hint


@pytest.mark.skipif(sys.platform != "linux", reason="asks for fork and setsid")
@pytest.mark.ranks
@pytest.mark.timeout(60)
def test_a_child_that_gets_away_does_not_hold_the_grader() -> None:
    # It keeps the pipe of the reports open for longer than the limit allows.
    answer = """
import torch
if torch.os.fork() == 0:
    torch.os.setsid()
    torch.os.system("sleep 15")
torch.os.kill(torch.os.getpid(), 9)
"""
    assert "does not end" in graded(answer)["chunk_bounds"].hint
