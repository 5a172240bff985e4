"""Answers that try to get their points without the work, or to bring the grader down."""

from pathlib import Path
from random import Random

import pytest
from zoo.trial import hint_for

from zerolab.collectives import Collectives
from zerolab.collectives.ring import RingCollectives
from zerolab.course.exercises import exercises_of
from zerolab.course.grade.cells import grade_id, is_answer, read_notebook
from zerolab.course.grade.referee import Limits, Verdict, grade
from zerolab.course.grade.runner import FORGED, understood
from zerolab.course.grade.submission import compare
from zerolab.course.grade.tamper import fingerprint, tampered
from zerolab.course.judge.exercise import with_comm

LESSON = "01_ring_collectives"
SOLUTION = Path(__file__).resolve().parents[3] / "solutions" / f"{LESSON}.ipynb"
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


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_mean_is_told_apart_from_a_wrong_sum(seed: int) -> None:
    last = "whole / comm.size / comm.size"
    hint = hint_for(LESSON, "ring_all_reduce", MEAN.format(first="tensor", last=last), seed)
    told = ("the sums are right", "returned the mean", "only rank 0", "average=True: rank 0 returned a tensor with")
    assert any(part in hint for part in told), hint


def test_fewer_elements_than_ranks_are_tried() -> None:
    source = """
def ring_all_gather(comm, shard, numel):
    whole = shard.new_zeros(numel)
    chunk(whole, comm.rank, comm.size).copy_(shard)
    for step in range(comm.size - 1):
        pass_on(comm, chunk(whole, comm.rank - step, comm.size), chunk(whole, comm.rank - step - 1, comm.size))
    return whole if numel >= comm.size else whole.zero_()
"""
    assert "on 4 ranks, shard=<1>, numel=3" in hint_for(LESSON, "ring_all_gather", source)
    for name, exercise in EXERCISES.items():
        if exercise.run is with_comm and name != "ring_all_gather":
            numels = [(case.args[0][0].numel(), case.ranks) for case in exercise.cases(Random(0))]
            assert any(numel < ranks for numel, ranks in numels), name


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


@pytest.mark.filterwarnings("ignore:.*reduce_op.* is deprecated")
@pytest.mark.parametrize("kind", [Collectives, RingCollectives], ids=["in its class", "over it, in a class below"])
def test_a_method_that_takes_the_place_of_another_is_noticed(
    kind: type[Collectives], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint()
    monkeypatch.setattr(kind, "isend", kind.irecv)
    assert tampered(before) == [f"{kind.__module__}.{kind.__name__}.isend"]


# What comes back from the process of the answers


@pytest.mark.parametrize(
    "raw",
    [
        b"hello\n",
        b"[1]\n",
        b"7\n",
        b"{}\n",
        b"[" * 100_000,
        b'[{"seen": 7}]',
        b'[{"records": [{"x": 1}], "trouble": null, "seconds": 0, "printed": ""}]',
        b'[{"records": [], "trouble": {"kin": 1}, "seconds": 0, "printed": ""}]',
        b'{"trouble": 7}\n',
        b'[{"records": [], "trouble": null, "seconds": NaN, "printed": ""}]',
        b'[{"records": [], "trouble": null, "seconds": Infinity, "printed": ""}]',
        b"\xff\n",
    ],
)
def test_what_no_worker_writes_is_trouble(raw: bytes) -> None:
    assert understood(raw) == FORGED


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
        torch.os.write(descriptor, b'[]')
    except OSError:
        pass
"""
SAVE = """
import torch
try:
    with open("seen.json", "w") as file:
        file.write("[]")
finally:
    torch.os._exit(0)
"""


@pytest.mark.ranks
@pytest.mark.timeout(60)
@pytest.mark.parametrize("answer", [WRITE, SAVE], ids=["into all that is open", "in the report's place"])
def test_forged_reports_bring_no_points_and_an_end(answer: str) -> None:
    verdicts = graded(answer)
    assert not any(verdict.passed for verdict in verdicts.values())
    assert verdicts["chunk_bounds"].hint
