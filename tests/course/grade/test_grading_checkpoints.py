"""The exercises of lesson 08 ask for what the library does: what it writes, and what it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from zerolab import checkpoint
from zerolab.checkpoint.manifest import ShardRange
from zerolab.checkpoint.planner import plan
from zerolab.checkpoint.tensors import CHECKSUMS, FileReader
from zerolab.collectives import Collectives
from zerolab.course.exercises.checkpoints import checkpoint_bytes, plan_reads, resumable_data
from zerolab.course.exercises.checkpoints.disk import Disk, moments
from zerolab.course.judge.case import Record
from zerolab.errors import CheckpointError
from zerolab.precision import PRECISIONS
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine


def saved(comm: Collectives, folder: Path, numels: list[int], recipe: dict[str, str], steps: int) -> dict[str, Any]:
    """Bytes of the tensors in this rank's two files, by file; and the elements at which slots are aligned."""
    parameters = [torch.nn.Parameter(torch.ones(numel), requires_grad=at % 2 == 0) for at, numel in enumerate(numels)]
    model = torch.nn.ParameterList(parameters)
    half = recipe["params"] if recipe["params"] != "fp32" else "fp32"
    precision = replace(PRECISIONS["fp32"], grads=half, main_grads=half, reduce="", **recipe)  # type: ignore[arg-type]
    engine = ZeroEngine(model, comm, 1, lr=1e-3, precision=precision, units=[model])
    for _ in range(steps):
        engine.backward(sum((parameter.float() ** 2).sum() for parameter in model) * 1e-4)
        engine.step()
    path = checkpoint.save(folder, engine, steps)
    found: dict[str, Any] = {"align": engine.buckets[0].layout.align}
    for kind in ("model", "optimizer"):
        file = FileReader(path / f"{kind}_shard_rank{comm.rank}.safetensors")
        sizes = {name: entry.nbytes for name, entry in file.entries.items()}
        found[kind] = sum(n for name, n in sizes.items() if name != CHECKSUMS and not name.startswith("rng/"))
    return found


@pytest.mark.parametrize(("ranks", "steps"), [(1, 1), (2, 0), (3, 1)])
@pytest.mark.parametrize(
    "dtypes",
    [
        ("fp32", "fp32", "fp32", "fp32"), ("bf16", "fp32", "fp32", "bf16"), ("bf16", "fp32", "fp8", "fp8"),
        ("bf16", "fp16", "fp16", "bf16"), ("bf16", "bf16", "bf16", "bf16"),
    ],
)  # fmt: skip
def test_the_exercise_asks_for_the_bytes_that_are_in_a_checkpoints_files(
    tmp_path: Path, dtypes: tuple[str, str, str, str], steps: int, ranks: int
) -> None:
    numels, recipe = [600, 300, 900, 7, 1], dict(zip(checkpoint_bytes.STATES, dtypes, strict=True))
    found = list(launch(saved, tmp_path, numels, recipe, steps, ranks=ranks, world="lockstep", device="cpu"))
    trains = [at % 2 == 0 for at in range(len(numels))]
    asked = checkpoint_bytes.checkpoint_bytes(numels, trains, ranks, found[0]["align"], recipe, steps)
    assert [(one["model"], one["optimizer"]) for one in found] == asked


@pytest.mark.parametrize("seed", range(5))
def test_the_exercise_asks_for_as_many_reads_as_the_librarys_planner_makes(seed: int) -> None:
    for case in plan_reads.EXERCISE.cases(Random(seed)):
        for stretches, start, stop, itemsize in case.args:
            theirs = [ShardRange(first, last, rank) for first, last, rank, _ in stretches]
            try:
                ours = plan_reads.plan_reads(stretches, start, stop, itemsize)
            except ValueError:
                with pytest.raises(CheckpointError, match="no file has element"):
                    plan(theirs, start, stop)
                continue
            made = plan(theirs, start, stop)
            assert [last - first for _, first, last in ours] == [itemsize * (one.stop - one.start) for one in made]
            assert plan_reads.bring_all(ours, stretches, start, stop, itemsize)


@pytest.mark.parametrize(
    ("read", "why"), [((0, 8, 17), "past its end"), ((1, 8, 16), "another rank's"), ((0, 8, 8), "")]
)
def test_a_read_that_leaves_its_stretch_brings_nothing(read: tuple[int, int, int], why: str) -> None:
    assert plan_reads.bring_all([(0, 8, 16)], [(2, 4, 0, 8)], 2, 4, 4)
    assert not plan_reads.bring_all([read], [(2, 4, 0, 8)], 2, 4, 4), why


def filled() -> Disk:
    disk = Disk()
    for name in ("a", "b"):
        disk.write(f"step-1/{name}", b"1234")
        disk.sync(f"step-1/{name}")
    return disk


def test_a_failure_of_power_takes_what_was_not_synced_also_of_a_file_that_was_there() -> None:
    disk = filled()
    disk.write("step-1/a", b"5678")
    disk.rename("step-1", "step-2")
    after = disk.after_power_failure()
    assert (after.read("step-2/a"), after.read("step-2/b")) == (b"", b"1234") and disk.read("step-2/a") == b"5678"
    assert after.listdir() == ["step-2"] and after.listdir("step-2") == ["a", "b"] and after.listdir("step-1") == []


def test_a_kill_is_tried_after_each_call_and_within_those_that_are_not_done_at_once() -> None:
    disk = filled()
    disk.rename("step-1", "step-2")
    disk.remove("step-2")
    tried = [(moment.calls, moment.within, {path: file.data for path, file in moment.state.items()})
             for moment in moments(disk)]  # fmt: skip
    whole = {"step-1/a": b"1234", "step-1/b": b"1234"}
    assert tried[:4] == [
        (0, False, {}), (0, True, {"step-1/a": b"12"}), (1, False, {"step-1/a": b"1234"}),
        (2, False, {"step-1/a": b"1234"}),
    ]  # fmt: skip
    moved = {path.replace("1/", "2/"): data for path, data in whole.items()}
    assert tried[6:] == [(4, False, whole), (5, False, moved), (5, True, {"step-2/b": b"1234"}), (6, False, {})]


@pytest.mark.parametrize(
    "call",
    [
        lambda disk: disk.rename("step-2", "step-1"), lambda disk: disk.write("step-1", b""),
        lambda disk: disk.rename("step-1", "file"), lambda disk: disk.rename("file", "step-1"),
        lambda disk: disk.sync("step-3"), lambda disk: disk.remove("step-3"), lambda disk: disk.read("step-1"),
    ],
)  # fmt: skip
def test_the_disk_refuses_what_a_file_system_refuses_and_nothing_is_done(call: Callable[[Disk], Any]) -> None:
    disk = filled()
    disk.write("file", b"")
    disk.write("step-2/a", b"")
    before, calls = dict(disk._state), len(disk._calls)
    with pytest.raises(OSError, match=r"is there already|is a folder|there is no"):
        call(disk)
    assert disk._state == before and len(disk._calls) == calls


@pytest.mark.parametrize("seed", range(5))
def test_ranks_together_get_the_batches_of_one_process_whatever_their_number(seed: int) -> None:
    rng = Random(seed)
    samples = rng.randint(1, 30)
    rows = []
    for ranks in (1, 2, 3, 4):
        noted = resumable_data.run_data(resumable_data.ResumableData, None, samples, seed, [(ranks, 12, 3, 1)])
        rows.append([sample for part in noted[resumable_data.NTH[0]].values() for sample in part])
    assert rows[0] == rows[1] == rows[2] == rows[3]


def any_that_has_it(stretches: list[Any], start: int, stop: int, itemsize: int, at: int = 0) -> list[Any]:
    """A plan that takes the first stretch that has the next element, or the last."""
    reads = []
    while start < stop and (holding := [one for one in stretches if one[0] <= start < one[1]]):
        first, last, rank, offset = holding[at]
        end = min(stop, last)
        reads.append([rank, offset + itemsize * (start - first), offset + itemsize * (end - first)])
        start = end
    return reads


@pytest.mark.parametrize(
    "wrong",
    [
        any_that_has_it,
        lambda *args: any_that_has_it(*args, at=-1),
        lambda *args: sorted(map(list, plan_reads.plan_reads(*args))),
    ],
    ids=["the first that has it", "the last that has it", "in the order of the ranks"],
)
def test_no_draw_lets_a_plan_pass_that_is_right_by_luck(wrong: Callable[..., list[Any]]) -> None:
    def right(given: Any) -> bool:
        due = plan_reads.run_planner(plan_reads.plan_reads, None, *given)["reads"]
        if due == plan_reads.RAISED:
            return True
        made = Record({"given": given, "reads": wrong(*given)}, [], [])
        return bool([*map(tuple, plan_reads.plan_of(made))] == due)

    for seed in range(40):
        assert not all(right(args) for case in plan_reads.EXERCISE.cases(Random(seed)) for args in case.args), seed
