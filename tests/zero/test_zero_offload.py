"""States on the host and on a disk: no tier changes a bit, whatever is trained; and a disk that fails is heard of."""

import ast
import errno
import gc
import logging
import os
import re
import shutil
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cover import NIGHTLY
from torch import nn
from zero_cases import adamw, decay_matrices, digest, sgd
from zero_fuzz import In
from zero_models import Residual, build, loss_of, model, rows

import zerolab
from zerolab.checkpoint import CheckpointError, Checkpoints, load, save
from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import InputError, OffloadError, RankError, StateError
from zerolab.gpu import door
from zerolab.memory import Tracker, predict
from zerolab.offload import Offload
from zerolab.precision import Precision
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, engine_labels
from zerolab.zero.tiers import DiskTier

pytestmark = pytest.mark.timeout(100)

SMALL = {"sub_group_numel": 40}
"""Elements: the small models have several sub-groups on each rank, and parameters that are larger than one."""
PLACES: tuple[tuple[int, dict[str, Any]], ...] = (
    (0, {}),
    (1, {"optimizer": "host", **SMALL}),
    (1, {"optimizer": "disk", **SMALL}),
    (2, {"optimizer": "disk", **SMALL, "buffer_count": 2}),
    (3, {"optimizer": "host", "parameters": "host"}),
    (3, {"optimizer": "disk", "parameters": "disk", **SMALL, "buffer_count": 1}),
    (3, {"parameters": "disk", "max_in_cpu": 50}),
)
"""A stage, and where its states rest."""


def places_of(at: int) -> list[tuple[int, dict[str, Any]]]:
    """Where the case with this number is run: on the device, at stage 3 elsewhere and at another stage elsewhere, so
    that each place has a third of the cases; nightly everywhere."""
    device, *others = PLACES
    return list(PLACES) if NIGHTLY else [device, others[2 * at % 6], others[(2 * at + 3) % 6]]


Build = Callable[[], nn.Module]


def offload(folder: Path, places: dict[str, Any]) -> Offload:
    return Offload(path=folder, **places)


def fit(
    comm: Collectives, of: Build, stage: int, folder: Path, places: dict[str, Any], *, steps: int = 2,
    micro_batches: int = 1, reduce_each: bool = True, **options: Any,
) -> tuple[str, bool]:  # fmt: skip
    """A digest of the trained parameters, and whether the ledgers agree after a step."""
    settings = {"optimizer": sgd(), **options}
    engine = ZeroEngine(of(), comm, stage, offload=offload(folder, places), **settings)
    agree = False
    for step in range(steps):
        for micro in range(micro_batches):
            loss = loss_of(engine(rows(comm.rank, micro_batches * step + micro).repeat(2, 1)))
            engine.backward(loss / micro_batches, reduce=reduce_each or micro + 1 == micro_batches)
        if step == 1:
            with Tracker(engine_labels(engine)) as tracker:
                tracked = tracker.now() | engine.disk_bytes()
            predicted = predict(engine.plans, stage, engine.state_size, engine.precision, engine.offload)
            agree = all(tracked.get(kind, 0) == of_rank[comm.rank] for kind, of_rank in predicted.items())
        engine.step()
    ended = digest(engine.consolidate())
    engine.close()
    return ended, agree


def at_places(comm: Collectives, at: int, of: Build, folder: Path, **options: Any) -> tuple[set[str], bool]:
    found = [fit(comm, of, stage, folder, places, **options) for stage, places in places_of(at)]
    return {ended for ended, _ in found}, all(agree for _, agree in found)


def agree(by_rank: Any, folder: Path) -> bool:
    """Whether all ranks and places ended alike, with ledgers that agree, and left no file."""
    return (
        len(set.union(*(ended for ended, _ in by_rank))) == 1
        and all(ledgers for _, ledgers in by_rank)
        and not list(folder.iterdir())
    )


@pytest.mark.parametrize("places", [PLACES[4][1], PLACES[5][1]])
def test_a_rank_on_the_cpu_of_a_machine_with_gpus_locks_no_memory(
    places: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To lock a page opens a context on a GPU; torch without one refuses it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(door, "locked", lambda *_: pytest.fail("memory was locked"))
    fit(LocalCollectives(), model, 3, tmp_path, places)


# Every tier does what the device does

O = torch.optim  # noqa: E741
OPTIMIZERS: dict[str, Callable[..., O.Optimizer]] = {
    "sgd with momentum": sgd(momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam with a third state": partial(O.Adam, lr=1e-2, amsgrad=True),
    "adamw, fused": adamw(1e-2),
    "adagrad from a sum above 0": partial(O.Adagrad, lr=1e-2, initial_accumulator_value=0.3),
    "nadam": partial(O.NAdam, lr=1e-3),
}


def all_optimizers(comm: Collectives, folder: Path) -> dict[str, tuple[set[str], bool]]:
    return {name: at_places(comm, at, model, folder, optimizer=of) for at, (name, of) in enumerate(OPTIMIZERS.items())}


@pytest.mark.ranks
def test_any_optimizer_ends_with_the_same_bits_on_every_tier(tmp_path: Path) -> None:
    by_rank = launch(all_optimizers, tmp_path, ranks=2, timeout=90)
    for name in OPTIMIZERS:
        assert agree([of_rank[name] for of_rank in by_rank], tmp_path), name
    # Or this would hold for one that is never called.
    assert len(set.union(*(ended for ended, _ in by_rank[0].values()))) == len(OPTIMIZERS)


def test_a_record_holds_dtypes_of_every_width_at_any_alignment(tmp_path: Path) -> None:
    def run(comm: Collectives) -> list[tuple[set[str], bool]]:
        def of() -> nn.Module:
            torch.manual_seed(0)
            return nn.Sequential(Residual(), In(nn.Linear(6, 7), torch.float64), nn.Linear(7, 3))

        everything = {"sub_group_numel": 1 << 20}
        found = [
            fit(comm, of, stage, tmp_path, {**places, **everything}, optimizer=sgd(), align=1)
            for stage, places in PLACES
        ]
        return [({ended for ended, _ in found}, all(right for _, right in found))]

    by_rank = launch(run, ranks=4, world="lockstep", timeout=60)
    assert agree([of_rank[0] for of_rank in by_rank], tmp_path)


ACCUMULATED = [(3, True, None), (3, False, 0.05), (1, True, 0.05)]


def all_accumulations(comm: Collectives, folder: Path) -> list[tuple[set[str], bool]]:
    return [
        at_places(
            comm, at, model, folder, optimizer=adamw(1e-2), micro_batches=m, reduce_each=each, clip_norm=clip,
            groups=decay_matrices,
        )
        for at, (m, each, clip) in enumerate(ACCUMULATED)
    ]  # fmt: skip


def test_accumulation_and_clipping_do_the_same_with_the_optimizer_off_the_device(tmp_path: Path) -> None:
    by_rank = launch(all_accumulations, tmp_path, ranks=2, timeout=60)
    for cases in zip(*by_rank, strict=True):
        assert agree(cases, tmp_path)
    ended = [next(iter(of)) for of, _ in by_rank[0]]
    assert len(set(ended)) == len(ACCUMULATED)


MODELS = [
    "fewer elements than ranks", "tied within a unit", "tied across units", "partly frozen", "unused",
    "scalar, empty, whole numbers", "used twice, recomputed", "two units in one checkpoint", "one layer",
]  # fmt: skip


def all_models(comm: Collectives, folder: Path) -> list[tuple[set[str], bool]]:
    made = sgd(momentum=0.9)
    return [
        at_places(comm, at, partial(build, name), folder, optimizer=made, align=1) for at, name in enumerate(MODELS)
    ]


def test_any_model_ends_with_the_same_bits_on_every_tier(tmp_path: Path) -> None:
    """On four ranks shards are uneven, parts of parameters, or empty."""
    by_rank = launch(all_models, tmp_path, ranks=4, world="lockstep", timeout=90)
    for cases in zip(*by_rank, strict=True):
        assert agree(cases, tmp_path)


SETTINGS: list[dict[str, Any]] = [
    *({"sub_group_numel": numel} for numel in (1, 33, 10**9)),
    *({"sub_group_numel": 16, "buffer_count": count} for count in (1, 2, 3, 100)),
    *({"parameters": "disk", "max_in_cpu": numel, "buffer_count": 1} for numel in (0, 64, 10**12)),
]


def all_settings(comm: Collectives, folder: Path) -> set[str]:
    given = {"optimizer": adamw(1e-2), "clip_norm": 0.05}
    ended = {fit(comm, model, 3, folder, {}, **given)[0]}
    for settings in SETTINGS:
        places = {"optimizer": "disk", **settings}
        for stage in (3,) if "parameters" in settings else (2,):
            ended.add(fit(comm, model, stage, folder, places, **given)[0])
    return ended


@pytest.mark.ranks
def test_sizes_of_sub_groups_buffers_and_host_share_change_no_bit(tmp_path: Path) -> None:
    by_rank = launch(all_settings, tmp_path, ranks=2, timeout=60)
    assert len(set.union(*by_rank)) == 1 and not list(tmp_path.iterdir())


class NowAndThen(nn.Module):
    """Every second forward leaves out the layers in the middle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Residual(), Residual(7), Residual(5), nn.Linear(6, 3)])
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        first, *middle, last = self.layers
        for layer in [first, *(middle if self.forwards % 2 else []), last]:
            x = layer(x)
        return x


def test_a_shard_read_ahead_of_a_step_for_a_unit_that_did_not_run_is_read_again_after_it(tmp_path: Path) -> None:
    # Momentum moves the layers that were left out.
    given: dict[str, Any] = {"optimizer": sgd(momentum=0.9), "steps": 5}

    def run(comm: Collectives) -> set[str]:
        places = [{"parameters": "disk", "buffer_count": count} for count in (2, 6)]
        return {fit(comm, NowAndThen, 3, tmp_path, place, **given)[0] for place in ({}, *places)}

    by_rank = launch(run, ranks=2, world="lockstep", timeout=60)
    assert len(set.union(*by_rank)) == 1


def test_a_rank_that_owns_nothing_needs_no_file(tmp_path: Path) -> None:
    def own(comm: Collectives) -> tuple[int, int]:
        engine = ZeroEngine(nn.Linear(1, 1), comm, 2, lr=0.1, align=1, offload=Offload(optimizer="disk", path=tmp_path))
        engine.backward(loss_of(engine(torch.ones(2, 1))))
        engine.step()
        found = sum(owned.numel for owned in engine.optimizer_step.segments), sum(engine.disk_bytes().values())
        engine.close()
        return found

    found = launch(own, ranks=4, world="lockstep", timeout=30)
    assert {(numel > 0, nbytes > 0) for numel, nbytes in found} == {(True, True), (False, False)}


# What a person does wrong


class BreakError(Exception):
    pass


def copies(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("copy_", "cpu", "cuda", "to")


def test_no_copy_is_begun_that_nobody_waits_for() -> None:
    """Copies between host and GPU block, but where an event says that they have ended (test_streams.py): whoever
    reads what came elsewhere needs none, and finds no half of it."""
    waited = ["copies.py", "gpu.py", "readback.py", "tiers.py", "tiers.py"]
    begun = []
    for path in Path(zerolab.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"non_blocking|\.(copy_|cpu|cuda|to)\(", text):
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call):
                # Or by a flag without a name, as in tensor.copy_(source, True).
                flags = [word.arg for word in call.keywords] + [getattr(word, "value", None) for word in call.args]
                begun += [path.name] * ("non_blocking" in flags or (copies(call) and True in flags))
    assert sorted(begun) == waited


def test_an_accumulation_that_failed_and_is_repeated_leaves_no_trace_on_any_tier(tmp_path: Path) -> None:
    def run(comm: Collectives) -> set[str]:
        ended = set()
        cases = [(PLACES[0], False, True)]
        cases += [
            (place, True, each) for place in (PLACES[1], PLACES[3], PLACES[5], PLACES[6]) for each in (False, True)
        ]
        for (stage, places), failing, each in cases:
            engine = ZeroEngine(model(), comm, stage, optimizer=adamw(1e-2), offload=offload(tmp_path, places))
            with pytest.raises(StateError, match=r"call backward\(loss\)"):
                engine.step()
            for at in (0, 1):
                if failing:
                    engine.backward(loss_of(engine(rows(comm.rank, 9))), reduce=each)
                    with pytest.raises(BreakError):
                        fail_half_way(engine, rows(comm.rank, 9))
                    with pytest.raises(StateError, match="zero_grad"):
                        engine.step()
                    engine.zero_grad()
                for micro in (0, 1):
                    # Whole parts first, so that both ways of reducing add up alike.
                    engine.backward(loss_of(engine(rows(comm.rank, 2 * at + micro))))
                engine.step()
            ended.add(digest(engine.consolidate()))
            engine.close()
        return ended

    assert len(set.union(*launch(run, ranks=2, timeout=60))) == 1


def fail_half_way(engine: ZeroEngine, x: torch.Tensor) -> None:
    def fail(_: torch.Tensor) -> None:
        raise BreakError

    hook = engine.model[1].register_forward_hook(lambda _module, _args, output: output.register_hook(fail) and None)
    try:
        loss = loss_of(engine(x))
    finally:
        hook.remove()
    engine.backward(loss)


def engine_of(folder: Any, stage: int = 3, precision: Any = None, **places: Any) -> ZeroEngine:
    given = {"optimizer": "disk", "path": folder, **places}
    return ZeroEngine(model(), LocalCollectives(), stage, lr=0.1, offload=Offload(**given), precision=precision)


REFUSED: list[tuple[Callable[[Path], object], list[str]]] = [
    (lambda at: engine_of(at / "none"), ["none", "does not exist", "create it"]),
    (lambda at: engine_of(at / "file"), ["file", "not a folder"]),
    (lambda at: engine_of(None), ["no path", "name a folder"]),
    (lambda at: engine_of(None, optimizer="device", parameters="disk"), ["no path"]),
    (lambda at: engine_of(at, optimizer="tape"), ["optimizer", "'tape'", "device, host, disk"]),
    (lambda at: engine_of(at, parameters="nvme"), ["parameters", "'nvme'", "device, host, disk"]),
    (lambda at: engine_of(at, stage=1, parameters="disk"), ["stage 3", "stage 1"]),
    (lambda at: engine_of(at, stage=2, parameters="host"), ["host", "stage 3", "stage 2"]),
    (lambda at: engine_of(at, stage=1, precision="fsdp2"), ["sharded", "stage 3"]),
    (lambda at: engine_of(at, max_in_cpu=3), ["max_in_cpu is 3", "device"]),
    (lambda at: engine_of(at, parameters="disk", max_in_cpu=-1), ["max_in_cpu is -1"]),
    (lambda at: engine_of(at, buffer_count=0), ["buffer_count is 0"]),
    (lambda at: engine_of(at, buffer_count=True), ["buffer_count is True"]),
    (lambda at: engine_of(at, sub_group_numel=0), ["sub_group_numel is 0"]),
    (lambda at: engine_of(at, precision="int8"), ["'int8'", "bf16"]),
    (lambda at: engine_of(at, precision=torch.bfloat16), ["torch.bfloat16", "bf16"]),
    (lambda at: engine_of(at, precision=Precision(grads="fp8")), ["grads is 'fp8'", "bf16"]),
    (lambda at: engine_of(at, precision=Precision(params="fp32", main_params="bf16")), ["bf16", "fp32", "narrower"]),
]


@pytest.mark.parametrize(("call", "names"), REFUSED)
def test_a_place_that_cannot_be_is_refused_by_value_and_with_a_way_out(
    tmp_path: Path, call: Callable[[Path], object], names: list[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as refused:
        call(tmp_path)
    assert all(name in str(refused.value) for name in names), str(refused.value)
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("fault", ["missing", "read-only", "full"])
def test_a_folder_that_cannot_be_used_is_refused_before_the_model_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    folder = tmp_path / "swap"
    if fault != "missing":
        folder.mkdir()
    if fault == "read-only":
        # Root may write anywhere, so the answer of the system is simulated.
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    if fault == "full":
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6, 0))
    made = model()
    before = digest({name: p.detach() for name, p in made.named_parameters()})
    given = Offload(optimizer="disk", path=folder)
    with pytest.raises(InputError, match=str(folder)) as refused:
        ZeroEngine(made, LocalCollectives(), 3, lr=0.1, offload=given)
    said = {"missing": "does not exist", "read-only": "not writable", "full": "0 bytes are free"}
    assert said[fault] in str(refused.value)
    assert digest({name: p.detach() for name, p in made.named_parameters()}) == before
    # And the model can go where there is room.
    monkeypatch.undo()
    folder.mkdir(exist_ok=True)
    ZeroEngine(made, LocalCollectives(), 3, lr=0.1, offload=given).close()


def test_a_parameter_larger_than_a_buffer_is_refused_before_the_model_is_touched(tmp_path: Path) -> None:
    made = model()

    def engine(buffer_numel: int, max_in_cpu: int = 0, of: nn.Module = made) -> ZeroEngine:
        given = Offload(parameters="disk", path=tmp_path, buffer_numel=buffer_numel, max_in_cpu=max_in_cpu)
        return ZeroEngine(of, LocalCollectives(), 3, lr=0.1, offload=given)

    with pytest.raises(InputError, match=r"a buffer of 127 elements is shorter .* 128 elements; make .*bucket_numel"):
        engine(127)
    assert not list(tmp_path.iterdir())
    engine(128).close()
    # What stays on the host needs no buffer.
    engine(127, max_in_cpu=10_000, of=model()).close()


# Files


def test_files_go_with_the_engine_closed_or_forgotten(tmp_path: Path) -> None:
    def use(comm: Collectives) -> list[tuple[int, int]]:
        return [files_of(comm, closed) for closed in (True, False)]

    def files_of(comm: Collectives, closed: bool) -> tuple[int, int]:
        engine = ZeroEngine(
            model(), comm, 3, lr=0.1, offload=Offload(optimizer="disk", parameters="disk", path=tmp_path)
        )
        engine.backward(loss_of(engine(rows(comm.rank, 0))))
        engine.step()
        comm.barrier()
        there = len(list(tmp_path.iterdir()))
        comm.barrier()
        if closed:
            engine.close()
        del engine
        gc.collect()
        comm.barrier()
        return there, len(list(tmp_path.iterdir()))

    assert launch(use, ranks=2, timeout=30) == [[(4, 0)] * 2] * 2


def test_files_go_when_ranks_end_with_an_error(tmp_path: Path) -> None:
    def use(comm: Collectives) -> None:
        engine = ZeroEngine(
            model(), comm, 3, lr=0.1, offload=Offload(optimizer="disk", parameters="disk", path=tmp_path)
        )
        engine.backward(loss_of(engine(rows(comm.rank, 0))))
        if comm.rank == 1:
            raise BreakError
        engine.step()

    with pytest.raises(RankError, match="BreakError"):
        launch(use, ranks=2, timeout=30)
    assert not list(tmp_path.iterdir())


def test_two_runs_on_one_path_keep_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def use(comm: Collectives, at_once: int) -> list[str]:
        places = {"optimizer": "disk", "parameters": "disk", **SMALL}
        engines = [
            ZeroEngine(model(), comm, 3, optimizer=adamw(lr), offload=offload(tmp_path, places))
            for lr in (1e-2, 1e-3)[:at_once]
        ]
        for step in range(3):
            for engine in engines:
                engine.backward(loss_of(engine(rows(comm.rank, step))))
            for engine in engines:
                engine.step()
        ended = [digest(engine.consolidate()) for engine in engines]
        for engine in engines:
            engine.close()
        return ended

    alone = launch(use, 1, ranks=2, world="lockstep", timeout=30)
    together = launch(use, 2, ranks=2, world="lockstep", timeout=30)
    assert [both[0] for both in together] == [one[0] for one in alone]
    assert together[0][1] != together[0][0]
    assert "killed" not in caplog.text


def test_what_a_killed_run_left_is_named_and_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    left = tmp_path / "zerolab-optimizer-rank0-1-0a0b0c0d.swap"
    left.write_bytes(b"some states")
    with caplog.at_level(logging.WARNING, "zerolab.offload"):
        engine_of(tmp_path).close()
    assert f"rm '{left}'" in caplog.text
    assert left.read_bytes() == b"some states"


# A disk that fails in the middle of a step


class Fault:
    """The k-th call of a system call from now on fails, and all after it, until `mend`."""

    def __init__(self, name: str, at: int, scribble: bool = False) -> None:
        self.name, self.left, self.scribble = name, at, scribble
        self.call = getattr(os, name)
        self.failed = threading.Event()
        setattr(os, name, self)

    def __call__(self, fd: int, memory: list[Any], offset: int) -> int:
        self.left -= 1
        if self.left >= 0:
            return self.call(fd, memory, offset)
        if self.scribble:
            # A transfer that ends half-way has written a part of its buffer.
            memory[0].raw = b"\x2a" * len(memory[0])
        self.failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    def mend(self) -> None:
        setattr(os, self.name, self.call)


@contextmanager
def fault(name: str, at: int, sick: bool = True, scribble: bool = False) -> Iterator[Fault | None]:
    found = Fault(name, at, scribble) if sick else None
    try:
        yield found
    finally:
        if found is not None:
            found.mend()


SWAPPED: tuple[tuple[int, dict[str, Any]], ...] = (
    (0, {"buffer_count": 3}),
    (2, {"buffer_count": 1}),
    (3, {"buffer_count": 4, "parameters": "host"}),
)
GROUPS = 3
"""Sub-groups that the ranks have in the tests below, at least."""
LOST = r"zerolab\.checkpoint\.load"


def one_run(
    comm: Collectives, folder: Path, stage: int, places: dict[str, Any], name: str = "", at: int = 0, sick: bool = True
) -> tuple[str, str, int]:
    """Three steps, the second after a checkpoint, and, where a system call is named, after a step that it broke."""
    engine = ZeroEngine(
        model(), comm, stage, optimizer=adamw(1e-2), clip_norm=0.05,
        offload=Offload(path=folder / "swap", **{"optimizer": "disk", "sub_group_numel": 32, **places}),
    )  # fmt: skip
    kept, said = folder / str(places), ""
    for step in range(3):
        if step == 1 and not name:
            save(kept, engine, step)
        if step == 1 and name:
            engine.backward(loss_of(engine(rows(comm.rank, 7))))
            with fault(name, at, sick, scribble=name == "preadv"), pytest.raises(OffloadError) as failed:
                engine.step()
            said = str(failed.value)
            all_refused(engine, rows(comm.rank, step))
            with fault("pwritev", 0, sick), pytest.raises((OffloadError, CheckpointError), match="the disk is full"):
                load(kept, engine)
            all_refused(engine, rows(comm.rank, step))
            assert load(kept, engine).step == step
        engine.backward(loss_of(engine(rows(comm.rank, step))))
        engine.step()
    count = len(engine.optimizer_step.groups)
    ended = digest(engine.consolidate())
    engine.close()
    return ended, said, count


def all_refused(engine: ZeroEngine, x: torch.Tensor) -> None:
    loss = torch.ones((), requires_grad=True)
    calls: list[Callable[[], object]] = [
        engine.step, engine.zero_grad, engine.consolidate, partial(engine, x), partial(engine.backward, loss),
        partial(engine.clip_grad_norm_, 1.0), partial(engine.load_state_dict, {}),
        engine.summon_full_params().__enter__,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StateError, match=LOST):
            call()


FAULTS = [("pwritev", 0, True), ("pwritev", 1, False), ("pwritev", 2, True), ("preadv", 0, False), ("preadv", 2, True)]


def failing_runs(comm: Collectives, folder: Path) -> list[Any]:
    found = []
    for stage, places in SWAPPED:
        whole, _, count = one_run(comm, folder, stage, places)
        assert count >= GROUPS
        for name, at, everybody in FAULTS:
            ended, said, _ = one_run(comm, folder, stage, places, name, at, everybody or comm.rank == 1)
            found.append((ended == whole, said, 0 if everybody else 1, "optimizer"))
    return found


def parameters_failing_runs(comm: Collectives, folder: Path) -> list[Any]:
    """The parameters' file is written first, whether the optimizer's is written after it or there is none."""
    found = []
    for places in [{"optimizer": optimizer, "parameters": "disk"} for optimizer in ("device", "host", "disk")]:
        whole, _, _ = one_run(comm, folder, 3, places)
        for at, sick in ((0, 0), (0, 1), (1, 1)):
            ended, said, _ = one_run(comm, folder, 3, places, "pwritev", at, comm.rank == sick)
            found.append((ended == whole, said, sick, ""))
    return found


@pytest.mark.ranks
@pytest.mark.parametrize("runs", [failing_runs, parameters_failing_runs])
def test_a_disk_that_fails_in_a_step_stops_all_ranks_and_a_checkpoint_goes_on_to_the_bit(
    tmp_path: Path, runs: Any
) -> None:
    """On every rank alike, also on one whose disk is well, or failed before anything was updated."""
    (tmp_path / "swap").mkdir()
    by_rank = launch(runs, tmp_path, ranks=2, timeout=90)
    assert len(by_rank[0]) == (len(FAULTS) * len(SWAPPED) if runs is failing_runs else 9)
    for on_0, on_1 in zip(*by_rank, strict=True):
        assert on_0 == on_1
        right, said, rank, file = on_0
        assert right
        assert said.startswith(f"rank {rank} failed to swap (record ") and "\n" not in said
        assert f"{tmp_path}/swap/zerolab-{file}" in said and f"-rank{rank}-" in said and said.count(";") == 1
        assert "see to the disk, then load a checkpoint" in said
    assert any("the disk is full" in said for _, said, _, _ in by_rank[1])
    assert not list((tmp_path / "swap").iterdir())


@pytest.mark.ranks
def test_replicas_hear_of_a_disk_that_failed_in_another_group_and_close_without_a_file(
    tmp_path: Path,
) -> None:
    def run(comm: Collectives) -> str:
        shard, replicate = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        places = Offload(optimizer="disk", path=tmp_path, **SMALL)
        engine = ZeroEngine(model(), shard, 2, lr=0.1, offload=places, replicate=replicate)
        engine.backward(loss_of(engine(rows(comm.rank, 0))))
        with fault("pwritev", 0, comm.rank == 3), pytest.raises(OffloadError) as failed:
            engine.step()
        engine.close()
        return str(failed.value)

    said = launch(run, ranks=4, timeout=30)
    assert len(set(said)) == 1 and "rank 3 failed to swap" in said[0]
    assert not list(tmp_path.iterdir())


class Slow:
    """A system call that takes its time, and tells how many are under way."""

    def __init__(self, name: str) -> None:
        self.call, self.under_way = getattr(os, name), 0
        setattr(os, name, self)

    def __call__(self, fd: int, memory: list[Any], offset: int) -> int:
        self.under_way += 1
        threading.Event().wait(0.1)
        try:
            return self.call(fd, memory, offset)
        finally:
            self.under_way -= 1


def test_an_error_in_the_middle_of_a_step_leaves_no_transfer_under_way_and_a_checkpoint_mends_it(
    tmp_path: Path,
) -> None:
    """Whoever keeps the error keeps the step's frame, and with it the walk over the groups."""

    def run(comm: Collectives) -> tuple[str, str]:
        ended = []
        for fails in (False, True):
            engine = ZeroEngine(
                model(), comm, 2, optimizer=adamw(1e-2),
                offload=Offload(optimizer="disk", path=tmp_path / "swap", sub_group_numel=32, buffer_count=3),
            )  # fmt: skip
            assert len(engine.optimizer_step.groups) > 3
            if not fails:
                engine.backward(loss_of(engine(rows(comm.rank, 0))))
                engine.step()
                save(tmp_path / "kept", engine, 1)
            else:
                engine.backward(loss_of(engine(rows(comm.rank, 5))))
                slow, kept = Slow("pwritev"), fail_in_second_group(engine)
                assert slow.under_way == 0
                os.pwritev = slow.call
                all_refused(engine, rows(comm.rank, 0))
                load(tmp_path / "kept", engine)
                del kept
            for step in (1, 2):
                engine.backward(loss_of(engine(rows(comm.rank, step))))
                engine.step()
            ended.append(digest(engine.consolidate()))
            engine.close()
        return ended[0], ended[1]

    (tmp_path / "swap").mkdir()
    assert len({one for pair in launch(run, ranks=2, timeout=30) for one in pair}) == 1


def fail_in_second_group(engine: ZeroEngine) -> Any:
    """Step, and fail as an optimizer may; returns the error with its frames."""
    calls = 0
    step = engine.optimizer.step

    def failing() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise BreakError
        step()

    engine.optimizer.step = failing  # type: ignore[method-assign]
    with pytest.raises(BreakError) as failed:
        engine.step()
    del engine.optimizer.step
    return failed


@pytest.mark.parametrize("name", ["preadv", "pwritev"])
def test_an_engine_is_mended_as_often_as_it_breaks_and_holds_no_buffer_in_between(tmp_path: Path, name: str) -> None:
    """The optimizer's file fails while a shard of the parameters is being written, or either file does."""
    places = {"optimizer": "disk", "parameters": "disk", "sub_group_numel": 32, "buffer_count": 1}
    engine = ZeroEngine(model(), LocalCollectives(), 3, optimizer=adamw(1e-2), offload=offload(tmp_path, places))
    tier, ended = engine.tier, []
    assert isinstance(tier, DiskTier)
    engine.backward(loss_of(engine(rows(0, 0))))
    engine.step()
    save(tmp_path / "kept", engine, 1)
    for at in range(5):
        engine.backward(loss_of(engine(rows(0, 1))))
        engine.step()
        ended.append(digest(engine.consolidate()))
        engine.backward(loss_of(engine(rows(0, 2))))
        with fault(name, at), pytest.raises(OffloadError):
            engine.step()
        assert len(tier.free) == len(tier.buffers)
        load(tmp_path / "kept", engine)
    assert len(set(ended)) == 1
    engine.close()


def test_a_broken_engine_takes_no_checkpoint_that_would_leave_states_of_its_own(tmp_path: Path) -> None:
    engine = ZeroEngine(
        model(), LocalCollectives(), 2, optimizer=adamw(1e-2), offload=offload(tmp_path, {"optimizer": "disk"})
    )
    with Checkpoints(tmp_path / "kept") as checkpoints:
        first = checkpoints.save(engine, 0)
        engine.backward(loss_of(engine(rows(0, 0))))
        engine.step()
        checkpoints.save(engine, 1)
        engine.backward(loss_of(engine(rows(0, 1))))
        with fault("preadv", 0), pytest.raises(OffloadError):
            engine.step()
        with pytest.raises(StateError, match="weights_only would leave the optimizer's states as they are"):
            checkpoints.load(engine, weights_only=True)
        with pytest.raises(InputError, match="before the first step"):
            checkpoints.load(engine, folder=first)
        assert checkpoints.load(engine).step == 1
    engine.close()


# A disk that fails under stage 3's parameters


def parameters_on_disk(comm: Collectives, folder: Path, optimizer: str = "device") -> ZeroEngine:
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Residual() for _ in range(4)))
    given = Offload(optimizer=optimizer, parameters="disk", path=folder, buffer_count=2)
    return ZeroEngine(blocks, comm, 3, optimizer=adamw(1e-2), offload=given)


def test_parameters_that_could_not_be_read_are_read_again(tmp_path: Path) -> None:
    """In forward and in backward, at hand and ahead."""

    def run(comm: Collectives, at: int | None) -> str:
        engine = parameters_on_disk(comm, tmp_path)
        for step in range(3):
            if at is not None and step == 1:
                with fault("preadv", at, scribble=True), pytest.raises(OffloadError, match="could not be read"):
                    engine.backward(loss_of(engine(rows(comm.rank, step))))
                engine.zero_grad()
            engine.backward(loss_of(engine(rows(comm.rank, step))))
            engine.step()
        ended = digest(engine.consolidate())
        engine.close()
        return ended

    # All ranks fail alike, so that all can repeat.
    found = launch(lambda comm: [run(comm, at) for at in (None, 0, 1, 2, 5, 6)], ranks=2, timeout=60)
    assert len({ended for of_rank in found for ended in of_rank}) == 1


def test_a_rank_whose_parameters_cannot_be_read_ends_the_run_and_is_named(tmp_path: Path) -> None:
    def run(comm: Collectives) -> None:
        engine = parameters_on_disk(comm, tmp_path)
        with fault("preadv", 1, comm.rank == 1):
            engine.backward(loss_of(engine(rows(comm.rank, 0))))

    with pytest.raises(RankError, match=r"(?s)rank 1.*OffloadError.*could not be read"):
        launch(run, ranks=2, timeout=30)
