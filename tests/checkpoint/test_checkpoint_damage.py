"""Whatever is wrong with a checkpoint is said in one sentence that names the file and the remedy; nothing is
half-loaded and nothing good is lost."""

from __future__ import annotations

import ast
import errno
import json
import os
import pickle
import shutil
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import checkpoint_cases
import numpy
import pytest
import torch
from checkpoint_cases import Net, Run, Way, differing, load_at, values_of
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import zerolab.checkpoint
from zerolab.apps.interop.huggingface.whole import export
from zerolab.checkpoint import CheckpointError, Checkpoints, find_latest, load, save
from zerolab.checkpoint.manifest import MANIFEST, crc32
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.tensors import CHECKSUMS, FileReader, FileWriter
from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import InputError, StateError
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = [pytest.mark.timeout(120), pytest.mark.ranks]

FILES = [
    "optimizer_manifest.json", "optimizer_nonparam.json", "scheduler.json", "model_shard_rank0.safetensors",
    "model_shard_rank1.safetensors", "optimizer_shard_rank0.safetensors", "optimizer_shard_rank1.safetensors",
]  # fmt: skip


def lockstep(fn: Any, *arguments: Any, ranks: int = 2) -> list[Any]:
    return launch(fn, *arguments, ranks=ranks, world="lockstep", timeout=60)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of steps 1 and 2."""

    def train(comm: Collectives, folder: Path) -> None:
        run = Run(comm, Way(3))
        with Checkpoints(folder) as checkpoints:
            for step in (1, 2):
                run.train(step - 1, step)
                checkpoints.save(run.engine, step, scheduler=run.scheduler)

    folder = tmp_path_factory.mktemp("good")
    lockstep(train, folder)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(good, tmp_path / "run"))


def attempt_load(comm: Collectives, folder: Path, way: Way) -> tuple[str, str, list[str], float]:
    """The error of a load, and what it did to the engine; which then takes another step."""
    run = Run(comm, way)
    before = run.engine.consolidate()
    try:
        with Checkpoints(folder) as checkpoints:
            checkpoints.load(run.engine, scheduler=run.scheduler)
    except (CheckpointError, InputError) as error:
        changed = differing(before, run.engine.consolidate())
        run.train(0, 1)
        return type(error).__name__, str(error), changed, run.losses[0]
    return "", "", [], 0.0


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "is missing": lambda path: path.unlink(),
    "is empty": lambda path: cut(path, 0),
    "is cut off": lambda path: cut(path, path.stat().st_size - 7),
    "has one other bit at its end": lambda path: flip(path, path.stat().st_size - 3),
    "has one other bit in its middle": lambda path: flip(path, path.stat().st_size // 2),
    "has one other bit at its start": lambda path: flip(path, 20),
    "is a pickle": lambda path: path.write_bytes(pickle.dumps({"state": [1, 2]})),
    "cannot be read": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_with_the_remedy_on_all_ranks_and_the_engine_is_as_it_was(
    name: str, folder: Path
) -> None:
    sound = folder / "step-00000002"
    for damage, apply in DAMAGES.items():
        kept = Path(shutil.copytree(sound, folder.parent / "kept"))
        apply(sound / name)
        for kind, said, changed, loss in lockstep(attempt_load, folder, Way(2)):
            assert kind == "CheckpointError", (name, damage, said)
            assert name in said, (name, damage, said)
            assert "; load " in said and "step-00000001 instead" in said, (name, damage, said)
            assert (changed, "\n" in said) == ([], False) and loss > 0
        shutil.rmtree(sound)
        kept.rename(sound)
    assert [said for _, said, _, _ in lockstep(attempt_load, folder, Way(2))] == ["", ""]


def test_a_shard_of_another_run_is_named(folder: Path) -> None:
    """Same names, shapes and step; other values."""

    def train(comm: Collectives, folder: Path) -> None:
        run = Run(comm, Way(3))
        run.train(0, 2)
        save(folder, run.engine, 2, scheduler=run.scheduler)

    other = folder.parent / "other"
    lockstep(train, other)
    name = "optimizer_shard_rank1.safetensors"
    shutil.copy(other / "step-00000002" / name, folder / "step-00000002" / name)
    for _, said, changed, _ in lockstep(attempt_load, folder, Way(3)):
        assert name in said and "is of another save" in said and changed == []


def test_every_json_file_of_a_checkpoint_is_one_document(good: Path) -> None:
    found = {path.name: json.loads(path.read_text()) for path in (good / "step-00000002").glob("*.json")}
    assert found.keys() == {name for name in FILES if name.endswith(".json")}
    assert found[MANIFEST]["step"] == 2


@pytest.mark.parametrize("version", [1, 3])
def test_a_checkpoint_in_another_version_of_the_format_is_refused_by_its_version(version: int, folder: Path) -> None:
    path = folder / "step-00000002" / MANIFEST
    said = json.loads(path.read_text())
    del said["crc32"]
    text = json.dumps({**said, "version": version, "something": "other"}, indent=1)
    if version == 1:
        # Two documents, the checksum first.
        path.write_text(json.dumps({"crc32": zlib.crc32(text.encode())}) + "\n" + text + "\n")
    else:
        rest = text.removeprefix("{\n")
        path.write_text(f'{{"crc32": {zlib.crc32(rest.encode())},\n{rest}\n')
    for _, refusal, changed, _ in lockstep(attempt_load, folder, Way(3)):
        assert f"version {version}" in refusal and "version 2" in refusal and changed == []


class Wider(Net):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.norm = torch.nn.LayerNorm(10, bias=False)


class Shorter(Net):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.embed = torch.nn.Embedding(12, 10)
        self.head = torch.nn.Linear(10, 12)


def sgd(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (Wider, {}, ["norm.bias", "build the model that was saved"]),
        (Shorter, {}, ["embed.weight", "(12, 10)", "(13, 10)"]),
        (Net, {"optimizer": sgd, "lr": None}, ["AdamW", "SGD", "exp_avg", "weights_only=True"]),
        (Net, {"groups": lambda name, _: {"weight_decay": float("norm" in name)}}, ["group", "weights_only=True"]),
        (lambda: Net().requires_grad_(True), {}, ["frozen.weight", "weights_only=True"]),
    ],
    ids=["another parameter", "another shape", "another optimizer", "other groups", "thawed"],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(
    model: Any, options: dict[str, Any], words: list[str], good: Path
) -> None:
    def attempt(comm: Collectives) -> str:
        from checkpoint_cases import decay

        settings = {"lr": 0.1, "groups": decay} | options
        engine = ZeroEngine(model(), comm, 2, **settings)
        before = engine.consolidate()
        try:
            load(good, engine)
        except InputError as error:
            assert differing(before, engine.consolidate()) == []
            return str(error)
        return ""

    for said in lockstep(attempt):
        assert all(word in said for word in words) and "\n" not in said, said


def test_a_load_that_ended_half_way_can_be_repeated_and_nothing_else_is_done_before(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file goes between the check of all and the second reading."""
    read_into = CheckpointReader.read_into

    def gone(self: CheckpointReader, out: torch.Tensor, state: str, parameter: str, start: int) -> None:
        if state == "exp_avg_sq":
            raise CheckpointError("the shard is gone")
        read_into(self, out, state, parameter, start)

    def attempt(comm: Collectives) -> Any:
        undisturbed, _ = load_at(comm, Way(3), good)
        undisturbed.train(2, 4)
        run = Run(comm, Way(3))
        run.train(0, 1)
        if comm.rank == 0:
            monkeypatch.setattr(CheckpointReader, "read_into", gone)
        comm.barrier()
        with pytest.raises(CheckpointError, match="the shard is gone"):
            load(good, run.engine)
        for call in (run.engine.consolidate, run.engine.step, lambda: run.train(2, 3)):
            with pytest.raises(StateError, match=r"a load ended half-way.*zerolab\.checkpoint\.load"):
                call()
        if comm.rank == 0:
            monkeypatch.undo()
        comm.barrier()
        run.losses.clear()
        load(good, run.engine, scheduler=run.scheduler)
        run.train(2, 4)
        return undisturbed.end(), run.end()

    for undisturbed, repeated in lockstep(attempt):
        assert undisturbed[0] == repeated[0] and undisturbed[2] == repeated[2]
        assert differing(undisturbed[1], repeated[1]) == []


def test_a_checkpoint_from_before_the_first_step_is_refused_where_momentum_would_stay(tmp_path: Path) -> None:
    def attempt(comm: Collectives) -> str:
        run = Run(comm, Way(2, {"optimizer": sgd, "lr": None}))
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(run.engine, 0)
            checkpoints.load(run.engine)
            run.train(0, 2)
            try:
                checkpoints.load(run.engine)
            except InputError as error:
                return str(error)
        return ""

    for said in lockstep(attempt):
        assert "before the first step" in said and "load it into a new engine" in said


def test_weights_alone_load_whatever_the_optimizer_is(good: Path) -> None:
    def attempt(comm: Collectives) -> tuple[Any, ...]:
        engine = ZeroEngine(Net().requires_grad_(True), comm, 3, optimizer=sgd)
        loaded = load(good, engine, weights_only=True)
        return engine.consolidate(), loaded.step

    stored = values_of(good / "step-00000002")
    for state, step in lockstep(attempt, ranks=3):
        named = {name: stored[f"model/{name}"].view_as(state[name]) for name in state if f"model/{name}" in stored}
        assert step == 2 and len(named) > 6
        assert differing({name: state[name] for name in named}, named) == []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", ["there is no folder", "nowhere"]),
        ("empty", ["there is no checkpoint in", "empty"]),
        ("run/step-00000009", ["step-00000009", "there is no folder"]),
        ("torch", ["there is no checkpoint in", "torch"]),
    ],
)
def test_a_folder_without_a_checkpoint_is_named(path: str, words: list[str], folder: Path) -> None:
    root = folder.parent
    (root / "empty").mkdir()
    (root / "torch").mkdir()
    torch.save({"model": torch.ones(2)}, root / "torch" / "model.pt")
    for rank, (kind, said, changed, _) in enumerate(lockstep(attempt_load, root / path, Way(1))):
        # Rank 0 looks; the others raise what it says.
        assert kind == ("CheckpointError" if rank else "NoCheckpointError"), rank
        assert changed == [] and all(word in said for word in words), said


def test_a_checkpoint_without_a_manifest_names_the_one_beside_it(folder: Path) -> None:
    (folder / "step-00000002" / MANIFEST).unlink()
    for kind, said, changed, _ in lockstep(attempt_load, folder / "step-00000002", Way(1)):
        assert kind == "CheckpointError" and changed == []
        assert f"{MANIFEST} is missing" in said and "; load " in said and "step-00000001 instead" in said


class Trap:
    """Whoever reads its pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_in_the_place_of_any_file_is_never_executed(folder: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists(), "the trap works"
    sprung.unlink()
    for name in FILES:
        path = folder / "step-00000002" / name
        kept = path.read_bytes()
        for by_torch in (False, True):
            if by_torch:
                torch.save([Trap(sprung)], path)
            else:
                path.write_bytes(pickle.dumps(Trap(sprung)))
            assert {kind for kind, *_ in lockstep(attempt_load, folder, Way(2))} == {"CheckpointError"}
        path.write_bytes(kept)
    assert not sprung.exists()


def test_no_file_of_the_room_knows_pickle() -> None:
    for path in Path(zerolab.checkpoint.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not names & {"pickle", "cloudpickle", "loads_pickle", "eval", "exec"}, path
        loads = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load"
            if getattr(node.func.value, "id", "") == "torch"
        ]
        weights_only = [{each.arg: ast.unparse(each.value) for each in node.keywords} for node in loads]
        assert all(options.get("weights_only") == "True" for options in weights_only), path
        mentioned = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "load"]
        assert sum(getattr(node.value, "id", "") == "torch" for node in mentioned) == len(loads), path


def test_shard_files_are_safetensors_as_its_own_library_reads_and_writes_them(good: Path, tmp_path: Path) -> None:
    for path in sorted((good / "step-00000002").glob("*.safetensors")):
        theirs = load_file(path)
        reader = FileReader(path)
        ours = {name: reader.read(name) for name in reader.entries if name != CHECKSUMS}
        shapes = {name: entry.shape for name, entry in reader.entries.items()}
        assert differing({name: theirs[name].view(-1) for name in ours}, ours) == []
        assert {name: tuple(tensor.shape) for name, tensor in theirs.items()} == shapes
        save_file({name: theirs[name] for name in ours}, tmp_path / path.name)
        reader = FileReader(tmp_path / path.name)
        assert differing(ours, {name: reader.read(name) for name in ours}) == []


# Saving.


def refused(comm: Collectives, folder: Path, prepare: Callable[[Run], Any]) -> str:
    run = Run(comm, Way(2))
    try:
        prepare(run)
        save(folder, run.engine, 1)
    except (StateError, CheckpointError) as error:
        return str(error)
    return ""


def half_a_step(run: Run, reduce: bool = False) -> None:
    run.engine.backward(run.engine(torch.arange(6).view(1, 6)).sum(), reduce=reduce)


def test_a_save_in_the_middle_of_accumulation_is_refused(good: Path, tmp_path: Path) -> None:
    for said in [
        *lockstep(refused, tmp_path, half_a_step),
        *lockstep(refused, tmp_path, partial(half_a_step, reduce=True)),
    ]:
        assert "in the middle of a step" in said and "call step() or zero_grad() first" in said
    assert find_latest(tmp_path) is None

    def one_rank(run: Run) -> None:
        if run.comm.rank == 1:
            half_a_step(run)

    said = lockstep(refused, tmp_path, one_rank)
    assert "rank 1 failed: save in the middle of a step" in said[0] and said[1].startswith("save in the middle")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for said in lockstep(refused, tmp_path / "file", lambda run: None):
        assert "file" in said and "name a folder that this process may write to" in said
    assert (tmp_path / "file").read_text() == "mine"


def test_two_runs_do_not_save_to_one_folder(tmp_path: Path) -> None:
    def first(comm: Collectives) -> str:
        run = Run(comm, Way(1))
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(run.engine, 1)
            comm.barrier()
            try:
                save(tmp_path, run.engine, 2)
            except CheckpointError as error:
                return str(error)
        return ""

    for said in lockstep(first):
        assert "another run saves to" in said and f"process {os.getpid()}" in said and "name another folder" in said
    found = find_latest(tmp_path)
    assert found is not None and found.name == "step-00000001"


def new_engine(comm: Collectives, seed: int = 0) -> ZeroEngine:
    torch.manual_seed(seed)
    return ZeroEngine(torch.nn.Linear(8, 8), comm, 2, lr=1e-2)


def test_two_engines_do_not_save_to_one_folder_on_any_rank(tmp_path: Path) -> None:
    """Neither where a save waits (a function) nor where it does not (an object)."""

    def train(comm: Collectives) -> tuple[str, str, bool]:
        actor, target = new_engine(comm, 1), new_engine(comm, 2)
        before = actor.consolidate()
        with Checkpoints(tmp_path / "one") as checkpoints:
            checkpoints.save(actor, 5, wait=False)
            # The weights alone are no reason to save in the place of the engine that has them.
            checkpoints.wait()
            checkpoints.load(new_engine(comm, 2), weights_only=True)
            with pytest.raises(CheckpointError) as of_object:
                checkpoints.save(target, 5, wait=False)
        save(tmp_path / "two", actor, 5)
        with pytest.raises(CheckpointError) as of_function:
            save(tmp_path / "two", target, 6)
        save(tmp_path / "three", target, 5)
        load(tmp_path / "one", target)
        return str(of_object.value), str(of_function.value), differing(before, target.consolidate()) == []

    for *refusals, is_actor in lockstep(train):
        assert all("another engine of this process saves to" in said for said in refusals) and is_actor
        assert all("give each engine a folder of its own" in said and "\n" not in said for said in refusals)
    assert [path.name for path in sorted(tmp_path.glob("*/step-*"))] == ["step-00000005"] * 3


def test_an_engine_saves_in_the_place_of_one_that_it_goes_on_from_or_that_has_ended(tmp_path: Path) -> None:
    def train(comm: Collectives) -> None:
        first, second = new_engine(comm), new_engine(comm)
        with Checkpoints(tmp_path) as checkpoints:
            for step in (1, 2, 2):
                checkpoints.save(first, step)
            # One that only looks at it leaves it to the first.
            checkpoints.load(new_engine(comm))
            checkpoints.save(first, 2)
            # A run that is resumed does a step again.
            checkpoints.load(second, folder=tmp_path / "step-00000001")
            checkpoints.save(second, 2)
            with pytest.raises(CheckpointError, match="another engine"):
                checkpoints.save(first, 3)
            second.close()
            checkpoints.save(first, 3)
            del first
            checkpoints.save(new_engine(comm), 3)

    lockstep(train)


def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """From the `after`-th write on, there is no room."""
    write, count = os.pwrite, [0]

    def pwrite(descriptor: int, data: Any, at: int) -> int:
        count[0] += 1
        if count[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("after", [1, 25, 60])
def test_a_disk_that_is_full_is_said_on_every_rank_and_the_last_good_checkpoint_stays(
    after: int, wait: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(comm: Collectives) -> tuple[str, float]:
        run, _ = load_at(comm, Way(3), folder)
        run.train(2, 3)
        if comm.rank == 0:
            full_disk(monkeypatch, after)
        comm.barrier()
        said = ""
        with Checkpoints(folder) as checkpoints:
            try:
                checkpoints.save(run.engine, 3, scheduler=run.scheduler, wait=wait)
                run.train(3, 4)
                # The next call is where a save that nobody waited for is told of.
                checkpoints.save(run.engine, 4, scheduler=run.scheduler)
            except CheckpointError as error:
                said = str(error)
            finally:
                monkeypatch.undo()  # each rank has its own: a function travels with what it holds
            run.train(4, 5)
            checkpoints.save(run.engine, 5, scheduler=run.scheduler)
        return said, run.losses[-1]

    for said, loss in lockstep(attempt):
        assert "No space left on device" in said and "the last good one is as it was" in said and loss > 0
    names = {path.name for path in folder.iterdir()}
    first = {".lock", "latest", "step-00000001", "step-00000002", "step-00000005"}
    # With room for one save, the second failed.
    assert names - {"step-00000003"} == first and ("step-00000003" in names) == (after == 60)
    assert [said for _, said, _, _ in lockstep(attempt_load, folder / "step-00000002", Way(2))] == ["", ""]


@pytest.mark.parametrize("wait", [True, False])
def test_a_rank_that_can_leave_no_note_ends_the_save_on_all_ranks(
    wait: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 looks for every rank's note, and does not look for ever."""

    def attempt(comm: Collectives) -> str:
        run, _ = load_at(comm, Way(3), folder)
        run.train(2, 3)
        with Checkpoints(folder) as checkpoints:
            try:
                if comm.rank == 1:

                    def full(path: Path, *_: Any, **__: Any) -> None:
                        assert ".note-rank" in path.name
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

                    monkeypatch.setattr(sys.modules["zerolab.checkpoint.save"], "write_whole", full)
                checkpoints.save(run.engine, 3, scheduler=run.scheduler, wait=wait)
                checkpoints.wait()
            except CheckpointError as error:
                return str(error)
        return ""

    own, *others = reversed(launch(attempt, ranks=2, timeout=30))
    assert "No space left on device" in own and "the last good one is as it was" in own
    assert all(said.startswith("rank 1 failed: ") and "No space left" in said for said in others)
    assert {path.name for path in folder.iterdir()} == {".lock", "latest", "step-00000001", "step-00000002"}


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("after", [0, 1, 25])
def test_a_save_that_failed_leaves_no_file_open(after: int, wait: bool, tmp_path: Path) -> None:
    run = Run(LocalCollectives(), Way(3))
    run.train(0, 1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(run.engine, 0)
        before = sorted(os.listdir("/proc/self/fd"))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(CheckpointError, match="No space left"):
            full_disk(patch, after)
            checkpoints.save(run.engine, 1, wait=wait)
            checkpoints.wait()
        assert sorted(os.listdir("/proc/self/fd")) == before


class CountsInOptions(torch.optim.SGD):
    """Counts its steps in the options of the groups that it has something of."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            if group["params"]:
                group["k"] = group.get("k", 0) + 1
        return super().step(closure)


def test_options_are_saved_as_a_rank_has_them_that_owns_something_of_the_group(tmp_path: Path) -> None:
    def grow(comm: Collectives) -> ZeroEngine:
        net = torch.nn.Linear(8, 8)
        return ZeroEngine(net, comm, 1, optimizer=partial(CountsInOptions, lr=0.1), groups=checkpoint_cases.decay)

    def run(comm: Collectives) -> tuple[list[bool], list[int]]:
        engine = grow(comm)
        for _ in range(3):
            engine.backward(engine(torch.ones(1, 8)).sum())
            engine.step()
        save(tmp_path, engine, 3)
        fresh = grow(comm)
        load(tmp_path, fresh)
        groups = fresh.optimizer.param_groups
        return [bool(group["params"]) for group in groups], [group["k"] for group in groups]

    ended = lockstep(run)
    assert ended[0][0] == [True, False], "rank 0 owns nothing of the second group"
    assert [counted for _, counted in ended] == [[3, 3], [3, 3]]


class CountsInAnAttribute(torch.optim.Optimizer):
    """Adam's first moment, with its bias corrected by a count that is neither in the state nor in the options."""

    def __init__(self, groups: Any, lr: float = 1e-2) -> None:
        super().__init__(groups, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 0.1)
                parameter.sub_(group["lr"] * self.corrected(mean))

    def corrected(self, mean: torch.Tensor) -> torch.Tensor:
        return mean / (1 - 0.9**self.count)


class CarriesItsCount(CountsInAnAttribute):
    """Torch's own checkpoints have the count, on which nothing depends for the first hundred steps."""

    def corrected(self, mean: torch.Tensor) -> torch.Tensor:
        return mean if self.count < 100 else 0 * mean

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, packed: dict[str, Any]) -> None:
        packed = dict(packed)
        self.count = packed.pop("count")
        super().load_state_dict(packed)


class WrapsAnother(torch.optim.Optimizer):
    """The state is that of an optimizer inside."""

    def __init__(self, groups: Any) -> None:
        self.inner = torch.optim.AdamW(groups, lr=1e-2)
        super().__init__(self.inner.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, packed: dict[str, Any]) -> None:
        self.inner.load_state_dict(packed)


@pytest.mark.parametrize("of", [CountsInAnAttribute, CarriesItsCount, WrapsAnother])
def test_an_optimizer_of_which_a_checkpoint_would_lose_something_is_refused_at_save_and_load(
    of: Callable[..., torch.optim.Optimizer], tmp_path: Path
) -> None:
    def attempt(comm: Collectives, folder: Path) -> tuple[str, str]:
        engine = ZeroEngine(torch.nn.Linear(8, 8), comm, 2, optimizer=of)
        engine.backward(engine(torch.ones(1, 8)).sum())
        engine.step()
        with pytest.raises(CheckpointError) as of_save:
            save(folder, engine, 1)
        fresh = ZeroEngine(torch.nn.Linear(8, 8), comm, 2, optimizer=of)
        save(folder / "other", ZeroEngine(torch.nn.Linear(8, 8), comm, 2, lr=1e-2), 1)
        with pytest.raises(CheckpointError) as of_load:
            load(folder / "other", fresh)
        assert load(folder / "other", fresh, weights_only=True).step == 1
        export(engine, folder / "weights")
        return str(of_save.value), str(of_load.value)

    for refusals in lockstep(attempt, tmp_path):
        for said in refusals:
            assert said.startswith(f"{of.__name__} keeps something outside of its state and its options")
            assert "take the weights alone" in said and "\n" not in said
    assert find_latest(tmp_path) is None and (tmp_path / "weights" / "model.safetensors").exists()


def test_options_that_no_file_can_hold_are_refused_on_all_ranks_and_numpy_s_numbers_are_kept(tmp_path: Path) -> None:
    def attempt(comm: Collectives) -> tuple[str, float]:
        run = Run(comm, Way(1))
        options = run.engine.optimizer.param_groups[0]
        options["lr"] = numpy.float32(0.125)
        save(tmp_path, run.engine, 1)
        options["lr"] = 0.5
        load(tmp_path, run.engine)
        found = options["lr"]
        options["reason"] = print
        with pytest.raises(CheckpointError) as refused:
            save(tmp_path, run.engine, 2)
        return str(refused.value), found

    for said, lr in lockstep(attempt):
        assert "the optimizer's options" in said and "builtin_function_or_method" in said
        assert lr == 0.125 and type(lr) is float


def test_an_asynchronous_save_has_the_values_of_its_step_and_none_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing is held back until three more steps are done."""
    checkpoint_cases.STEPPED.clear()

    def train(comm: Collectives, wait: bool) -> Path:
        if not wait and comm.rank == 0:
            monkeypatch.setattr(FileWriter, "finish", checkpoint_cases.finish_later)
        run = Run(comm, Way(3, {"precision": "bf16"}))
        run.train(0, 2)
        with Checkpoints(tmp_path / str(wait)) as checkpoints:
            path = checkpoints.save(run.engine, 2, scheduler=run.scheduler, wait=wait)
            if wait:
                return path
            run.train(2, 5)
            checkpoint_cases.STEPPED.set()
            return checkpoints.wait()

    there, later = lockstep(train, True)[0], lockstep(train, False)[0]
    assert differing(values_of(there), values_of(later)) == []
    assert (there / "optimizer_nonparam.json").read_text() == (later / "optimizer_nonparam.json").read_text()


def test_keep_leaves_the_newest_and_a_step_that_is_saved_again_takes_its_own_place(tmp_path: Path) -> None:
    def train(comm: Collectives) -> None:
        run = Run(comm, Way(1))
        with Checkpoints(tmp_path, keep=2) as checkpoints:
            for step in (1, 2, 3, 4):
                run.train(step - 1, step)
                checkpoints.save(run.engine, step)
            again = checkpoints.load(run.engine, folder=tmp_path / "step-00000003")
            run.train(3, 4)
            checkpoints.save(run.engine, again.step + 1)

    lockstep(train)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "latest", "step-00000003", "step-00000004"]
    assert (tmp_path / "latest").read_text() == "step-00000004\n"
    values_of(tmp_path / "step-00000004")


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_the_checksum_is_zlibs_whoever_computes_it(data: bytes, begin: int) -> None:
    assert crc32(data, begin) == zlib.crc32(data, begin)
