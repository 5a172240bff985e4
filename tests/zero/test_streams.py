"""What the library queues on a GPU's streams is in order: nothing is read before it is there, written while others read
it, or given back while it is used. Told without a GPU, see `tests/streams/`."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from cover import NIGHTLY
from streams.clocks import GPU, Checker
from streams.device import LIBRARY, FakeDoor, FakeNccl, Site, comm_of_one_rank
from streams.runs import Case, Net, Seen, make_engine, run
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab.apps.plan.footprint import step_buffers
from zerolab.apps.plan.guide import traffic_bytes
from zerolab.apps.plan.shapes import SHAPES
from zerolab.collectives import LocalCollectives, torch_
from zerolab.collectives.torch_ import TorchCollectives
from zerolab.errors import OffloadError
from zerolab.memory import Stage3Limits
from zerolab.offload import Offload
from zerolab.offload.copies import AHEAD
from zerolab.offload.places import SUB_GROUP, SUB_GROUP_ON_GPU
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec
from zerolab.zero import ZeroEngine
from zerolab.zero.step import gradient_norm

HOST_STEP = Offload(optimizer="host", sub_group_numel=100)
ALL_ON_HOST = Offload(optimizer="host", parameters="host", sub_group_numel=100)
FOLDER = TemporaryDirectory()
ALL_ON_DISK = Offload(optimizer="disk", parameters="disk", path=FOLDER.name, sub_group_numel=100)

ALL = {
    "stage 0": Case(0),
    "all-reduce": Case(1, settings={"reduction": "all_reduce"}),
    "stage 1, gathers behind the step": Case(1, settings={"overlap_gather": True}),
    "stage 1, reads what another module has": Case(1, reads="the head", settings={"overlap_gather": True}),
    "stage 2, reads what no module has": Case(2, reads="a list", settings={"overlap_gather": True}),
    "stage 3, reads what stays": Case(
        3, reads="the head", settings={"overlap_gather": True, "limits": Stage3Limits(persistence_numel=20)}
    ),
    "accumulation": Case(2, micro_batches=2, settings={"overlap_gather": True}),
    "no overlap, two instances": Case(2, replicate=True, settings={"overlap": False}),
    "stage 3": Case(3, micro_batches=2),
    "unused prefetch": Case(3, skips=True, steps=3),
    "checkpointing": Case(3, checkpoints=True),
    "no prefetch": Case(3, settings={"prefetch": False, "overlap": False}),
    "deferred reduction, clipping": Case(3, micro_batches=2, reduce_each=False, settings={"clip_norm": 0.1}),
    "limits": Case(3, settings={"limits": Stage3Limits(reuse_numel=1, persistence_numel=20)}),
    "bf16": Case(3, settings={"precision": "bf16"}),
    "fp16": Case(2, settings={"precision": "fp16", "clip_norm": 0.1}),
    "fp8": Case(3, settings={"precision": "fp8"}),
    "fsdp2": Case(3, settings={"precision": "fsdp2"}),
    "8-bit moments": Case(3, settings={"precision": "bf16_fp8_moments"}),
    "ring, two instances": Case(3, ring=True, replicate=True),
    "ring, stage 1": Case(1, ring=True, settings={"overlap_gather": True}),
    "optimizer on the host, in 16 bits": Case(
        1, micro_batches=2, settings={"offload": HOST_STEP, "precision": "bf16", "clip_norm": 0.1}
    ),
    "gradients on the host": Case(2, micro_batches=2, settings={"offload": HOST_STEP, "bucket_numel": 40}),
    "gradients on the host, wider than they travel": Case(
        2,
        micro_batches=2,
        settings={"offload": HOST_STEP, "precision": Precision(params="bf16", reduce="bf16"), "clip_norm": 0.1},
    ),
    "gradients, unclipped": Case(2, settings={"offload": HOST_STEP}),
    "16 bits on the host": Case(3, settings={"offload": HOST_STEP, "precision": "bf16"}),
    "8-bit moments on the host": Case(2, settings={"offload": HOST_STEP, "precision": "bf16_fp8_moments"}),
    "all on the host": Case(3, skips=True, steps=3, settings={"offload": ALL_ON_HOST}),
    "parameters on the host, gathered in 16 bits": Case(
        3, settings={"offload": Offload(parameters="host"), "precision": "fsdp2"}
    ),
    "parameters on the host, in 16 bits": Case(
        3, settings={"offload": Offload(parameters="host", sub_group_numel=100), "precision": "pure_bf16"}
    ),
    "parameters on the host, small ones on the GPU, saved": Case(
        3, looks=True, settings={"offload": Offload(parameters="host"), "limits": Stage3Limits(persistence_numel=20)}
    ),
    "all on disk": Case(3, skips=True, steps=3, settings={"offload": ALL_ON_DISK}),
    "optimizer on disk": Case(2, settings={"offload": replace(ALL_ON_DISK, parameters="device"), "precision": "bf16"}),
    "parameters on disk, several buckets a unit": Case(
        3, settings={"offload": replace(ALL_ON_DISK, optimizer="device"), "bucket_numel": 40}
    ),
    "parameters for the disk, all in memory": Case(
        3, looks=True, settings={"offload": replace(ALL_ON_DISK, optimizer="device", max_in_cpu=10**6)}
    ),
    "two instances": Case(3, micro_batches=2, replicate=True),
    "two instances, sums on all ranks": Case(
        1, micro_batches=2, replicate=True, fails=True, settings={"reduction": "all_reduce"}
    ),
    "loop": Case(2, by="loop"),
    "by hand": Case(0, by="hand"),
    "by hand, ring": Case(0, ring=True, by="hand"),
}
BY_NIGHT = ("all-reduce", "stage 1, gathers behind the step", "stage 3", "fp8")
"""By day cases with two instances, accumulation and the ring go these ways, and the loop's test of fp8."""
CASES = {name: case for name, case in ALL.items() if NIGHTLY or name not in BY_NIGHT}


@cache
def clean(name: str) -> Seen:
    return run(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_nothing_on_a_gpu_is_touched_too_early(name: str) -> None:
    seen = clean(name)
    assert seen.races == []
    assert all(value.isfinite().all() for value in seen.ended.values())


OFFLOADED = [name for name, case in CASES.items() if "offload" in case.settings]


@pytest.mark.parametrize("name", OFFLOADED)
def test_no_copy_to_or_from_a_gpu_makes_the_host_wait_where_states_are_offloaded(name: str) -> None:
    """It waits for events, where it uses what has come; and for the norm, which goes to the GPU and comes back."""
    waits = sum(clean(name).waits, Counter[str]())
    assert [why for why in waits if not why.startswith(("event", "tolist", "_to_copy (zero/step.py"))] == []


@pytest.mark.parametrize("name", OFFLOADED)
def test_only_memory_that_a_gpu_copies_is_page_locked(name: str) -> None:
    assert clean(name).idle_pages == []


@pytest.mark.parametrize("name", OFFLOADED)
def test_states_that_are_copied_beside_the_computation_end_with_the_bits_of_those_that_stay(name: str) -> None:
    case = CASES[name]
    stays = run(replace(case, settings={key: value for key, value in case.settings.items() if key != "offload"}))
    ended = clean(name).ended
    assert all(torch.equal(value, ended[key]) for key, value in stays.ended.items())


@pytest.mark.parametrize("name", ["two instances", "two instances, sums on all ranks"])
def test_gradients_are_averaged_across_instances_beside_the_computation(name: str) -> None:
    streams = {stream for call, stream in clean(name).calls if call == "all_reduce"}
    assert streams and "computing" not in streams


def test_a_backward_that_fails_leaves_no_copy_under_way_behind() -> None:
    seen = run(Case(2, fails=True, settings={"offload": HOST_STEP}))
    assert seen.races == []
    assert all(torch.equal(value, clean("gradients, unclipped").ended[key]) for key, value in seen.ended.items())


def test_a_gather_that_fails_half_way_leaves_no_copy_to_memory_that_it_gives_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first bucket of a unit comes from memory, the second cannot be read from the disk."""
    offload = replace(ALL_ON_DISK, optimizer="device", max_in_cpu=40)
    with Checker() as checker:
        fake = FakeDoor(checker)
        fake.put_in(monkeypatch)
        engine = make_engine(Case(3, settings={"offload": offload, "bucket_numel": 40}), fake)
        first, second, *_ = engine.units[0].gathered
        assert first.shard.numel() and not second.shard.numel()

        def fail(*_: object) -> None:
            raise OffloadError("the disk is gone")

        monkeypatch.setattr(engine.tier, "_read", fail)
        with pytest.raises(OffloadError, match="the disk is gone"):
            engine(torch.ones(4, 8).to(GPU))
        assert checker.races == {}
        engine.close()


@pytest.mark.parametrize("precision", ["bf16", "pure_bf16"])
def test_new_parameters_on_their_way_to_the_host_take_no_more_than_a_few_sub_groups(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numel = 50
    offload = Offload(parameters="host", sub_group_numel=numel)
    with TrafficSettings() as checker:
        fake = FakeDoor(checker)
        fake.put_in(monkeypatch)
        engine = make_engine(Case(3, settings={"offload": offload, "precision": precision}), fake)
        engine.backward(engine(torch.rand(4, 8).to(GPU)))
        checker.sent = []
        engine.step()
        assert sum(copy.nbytes for copy in checker.sent) == sum(bucket.shard.nbytes for bucket in engine.buckets)
        assert checker.most <= (AHEAD + 1) * numel * torch.bfloat16.itemsize
        engine.close()


class Copied(NamedTuple):
    nbytes: int
    stream: str
    tick: int


class TrafficSettings(Checker):
    """`sent`: what other streams than the one that computes have read of the device's memory; `most`: the most bytes of
    it at once of which neither that one nor the host knew that they were read."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Copied] | None = None
        self.most = 0

    def touch(self, what: str, actor: str, reads: Iterable[torch.Tensor], writes: Iterable[torch.Tensor]) -> int:
        reads = list(reads)
        tick = super().touch(what, actor, reads, writes)
        if self.sent is not None and actor not in ("computing", self.host):
            self.sent += [Copied(each.nbytes, actor, tick) for each in reads if self.memory(each).place == "device"]
            known = self.clock("computing"), self.clock(self.host)
            held = [copy for copy in self.sent if all(clock.get(copy.stream, 0) < copy.tick for clock in known)]
            self.most = max(self.most, sum(copy.nbytes for copy in held))
        return tick


# Mutants: the library without one of its waits, events or guards.


ORDERS_NOTHING = {"process_transport.py"}
"""Its events are for who looks whether a call hangs; nothing waits for them."""


def sites_in_the_library() -> set[Site]:
    """Where the library puts a GPU's work in order: calls of its door."""
    found = set()
    for path in sorted(LIBRARY.rglob("*.py")):
        if path.name in ORDERS_NOTHING:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in [f"door.{name}" for name in FakeDoor.SILENCED]:
                found.add((path.relative_to(LIBRARY).as_posix(), node.lineno))
    return found


def reached() -> dict[Site, list[str]]:
    """Which cases come by each of them, and by each wait for a call under way."""
    found = defaultdict(list)
    for name in CASES:
        for site in clean(name).sites:
            found[site].append(name)
    return found


def test_no_wait_event_or_guard_can_be_left_out_unnoticed() -> None:
    # The last cases are the smallest, and most to the point.
    missed = {
        site: names
        for site, names in reached().items()
        if not any(run(CASES[name], site).races for name in reversed(names))
    }
    assert missed == {}
    assert sites_in_the_library() <= set(reached())


# What else is another on a GPU.


@pytest.mark.parametrize(
    ("said", "numel"),
    [
        (Offload(), SUB_GROUP_ON_GPU),
        (Offload(sub_group_numel=700), 700),
        (Offload(optimizer="host"), None),
    ],
    ids=["left open", "said", "the host steps"],
)
def test_a_gpu_steps_in_large_sub_groups_unless_it_is_told_otherwise(
    said: Offload, numel: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checker() as checker:
        fake = FakeDoor(checker)
        fake.put_in(monkeypatch)
        engine = make_engine(Case(2, settings={"precision": "bf16", "offload": said}), fake)
    assert engine.offload.sub_group_numel == numel == engine.offload.sub_group_numel
    assert ZeroEngine(Net(), LocalCollectives(), 2, lr=1e-2, precision="bf16").offload == Offload()


@pytest.mark.parametrize(("reuse", "again"), [(None, 0), (0, 1)], ids=["left open", "said"])
def test_the_last_unit_stays_on_a_gpu_until_its_backward(
    reuse: int | None, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[torch.Tensor] = []
    bring = TorchCollectives._bring

    def counted(comm: TorchCollectives, shard: torch.Tensor, out: torch.Tensor) -> None:
        gathered.append(out)
        bring(comm, shard, out)

    monkeypatch.setattr(TorchCollectives, "_bring", counted)
    case = Case(3, settings={"limits": Stage3Limits(reuse_numel=reuse)})
    assert run(case).races == []
    # Three blocks and a head, forward and backward; and once to be looked at.
    assert len(gathered) == case.steps * (4 + 3 + again) + 4


def test_the_planner_knows_that_a_gpu_gathers_the_last_unit_once() -> None:
    run = RunSpec(SHAPES["GPT-2 124M"], ranks=4, stage=3, precision="bf16", seq_len=64)
    gpus = run.but(on_gpus=True)
    told = gpus.but(max_reuse_distance=0)
    assert traffic_bytes(gpus) < traffic_bytes(told) == traffic_bytes(run)


def test_nccl_s_means_of_fp16_overflow_no_sooner_than_the_numbers_of_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with Checker() as checker:
        fake = FakeDoor(checker)
        fake.put_in(monkeypatch)
        comm = comm_of_one_rank(fake)
        whole, length = torch.full((8,), 4e4, dtype=torch.float16).to(GPU), torch.full((5,), 4e4).half().to(GPU)
        means = [
            comm.reduce_scatter(whole, average=True),
            comm.reduce_scatter(length, average=True),
            comm.all_reduce_async(whole, average=True).wait(),
        ]
        assert [mean.unique().tolist() for mean in means] == [[4e4]] * 3
        assert comm.all_reduce(torch.ones(8, device=GPU)).unique().tolist() == [2]


@pytest.mark.parametrize(
    ("dtype", "ranks", "op"),
    [
        (torch.bfloat16, 3, dist.ReduceOp.SUM),
        (torch.bfloat16, 12, dist.ReduceOp.SUM),
        (torch.bfloat16, 4, dist.ReduceOp.AVG),
        (torch.float16, 3, dist.ReduceOp.AVG),
        (torch.float32, 3, dist.ReduceOp.AVG),
    ],
    ids=str,
)
def test_nccl_multiplies_no_bf16_gradient_by_a_rounded_third(
    dtype: torch.dtype, ranks: int, op: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's own mean multiplies each number by 1 / N in the tensor's dtype. A sum of bf16 is divided after it."""
    asked: list[Any] = []

    def scale(op: Any) -> float:
        asked.append(op)
        return 1 if op == dist.ReduceOp.AVG else ranks

    with Checker() as checker:
        fake = FakeDoor(checker)
        fake.put_in(monkeypatch)
        monkeypatch.setattr(FakeNccl, "size", ranks)
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, op, group: tensor.mul_(scale(op)))
        monkeypatch.setattr(
            torch_, "_reduce_scatter_single", lambda out, whole, op, group: out.copy_(whole[: len(out)] * scale(op))
        )
        comm = comm_of_one_rank(fake)
        means = [
            comm.all_reduce_async(torch.full((ranks,), 1.5, dtype=dtype).to(GPU), average=True).wait(),
            comm.reduce_scatter(torch.full((ranks,), 1.5, dtype=dtype).to(GPU), average=True),
            comm.reduce_scatter(torch.full((ranks + 1,), 1.5, dtype=dtype).to(GPU), average=True),
        ]
        assert asked == [op] * 3
        assert [mean.unique().tolist() for mean in means] == [[1.5]] * 3
        assert checker.races == {}


@pytest.mark.parametrize("case", [Case(0), Case(3, micro_batches=2), Case(2, micro_batches=2, reduce_each=False)])
def test_a_buckets_small_gradients_are_copied_at_once_on_a_gpu(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    copy = torch._foreach_copy_

    def counted(slots: list[torch.Tensor], small: list[torch.Tensor]) -> None:
        copied.append(len(slots))
        copy(slots, small)

    monkeypatch.setattr(torch, "_foreach_copy_", counted)
    assert run(case).races == []
    # Three blocks of six parameters, and a head of two; what is added to is added by itself.
    passes = case.steps * (case.micro_batches if case.reduce_each else 1)
    assert copied == [2, 6, 6, 6] * passes


def test_the_planner_knows_what_a_step_in_large_sub_groups_brings_to_hand() -> None:
    run = RunSpec(SHAPES["GPT-2 1.5B"], ranks=4, stage=2, precision="bf16", seq_len=64)
    assert step_buffers(run, 0) == 4 * SUB_GROUP
    assert step_buffers(run.but(on_gpus=True), 0) == 4 * SUB_GROUP_ON_GPU
    assert step_buffers(run.but(on_gpus=True, offload=Offload(sub_group_numel=704)), 0) == 4 * 704


def test_the_planner_knows_that_new_parameters_wait_on_a_gpu_for_their_way_to_the_host() -> None:
    run = RunSpec(SHAPES["GPT-2 1.5B"], ranks=4, stage=3, precision="bf16", seq_len=64)
    there = Offload(sub_group_numel=704)
    runs = [run.but(on_gpus=gpus, offload=replace(there, parameters="host")) for gpus in (False, True)]
    before = step_buffers(run.but(on_gpus=True, offload=there), 0)
    assert [step_buffers(run, 0) - before for run in runs] == [0, (AHEAD + 1) * 2 * 704]


# How often the host waits for the device. A wait empties the queue: nothing is computed until the host has queued more.


@pytest.mark.parametrize("clip_norm", [None, 0.1] if NIGHTLY else [0.1])
@pytest.mark.parametrize("stage", range(4))
def test_the_host_waits_at_most_once_a_step(stage: int, clip_norm: float | None) -> None:
    """By day with clipping, which looks at all gradients before the step."""
    for precision in (None, "bf16") if stage == 3 else (None,):
        settings = {"precision": precision, "clip_norm": clip_norm}
        check_waits(run(Case(stage, micro_batches=2, steps=3, by="loop", settings=settings)))


def test_the_norm_takes_no_operation_for_each_piece_of_the_gradients() -> None:
    """Each is a kernel on a GPU; views are none."""

    def operations(layers: int) -> list[str]:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
        engine = ZeroEngine(model, LocalCollectives(), 2, lr=1e-2, clip_norm=1.0, bucket_numel=80)
        engine.backward(engine(torch.ones(4, 8)).sum())
        with Operations() as seen:
            gradient_norm(engine.comm, engine.buckets)
        return seen.names

    assert operations(5) == operations(1)


class Operations(TorchDispatchMode):
    """The names of operations that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def check_waits(seen: Seen) -> None:
    assert max(sum(waits.values()) for waits in seen.waits[1:]) <= 1, seen.waits
    assert seen.races == []
    assert seen.ended["loss"].isfinite().all()
