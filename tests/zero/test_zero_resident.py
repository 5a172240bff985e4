"""What the system sees of a rank: what the ledger says, and little more."""

import itertools
import os
import platform
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.peers.measure import held_bytes
from zerolab.collectives import Collectives
from zerolab.memory import Tracker
from zerolab.ranks import launch
from zerolab.ranks.malloc import hand_back, make_malloc_settings
from zerolab.zero import ZeroEngine, engine_labels
from zerolab.zero.tiers import Spares

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(150),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is asked to keep memory"),
]

LAYERS, WIDTH = 24, 1024  # 101 MB of parameters, so that from stage to stage tens of megabytes go


def train(comm: Collectives, stage: int, layers: int, width: int, ledger: bool = False) -> int:
    """What this rank holds after some steps beyond what it held before. A rank keeps what it has taken, so in the end
    it holds what it held at its peak. Or the ledger's peak of the same steps."""
    before = held_bytes(os.getpid())
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    engine = ZeroEngine(model, comm, stage, lr=1e-3)
    x = torch.randn(8, width)
    if not ledger:
        step(engine, x)
        step(engine, x)
        return held_bytes(os.getpid()) - before
    with Tracker(engine_labels(engine), samples=False) as tracker:
        step(engine, x)
        step(engine, x)
    return sum(tracker.peak.values())


def step(engine: ZeroEngine, x: torch.Tensor) -> None:
    engine.backward(F.mse_loss(engine(x), x))
    engine.step()


def test_what_the_system_sees_falls_with_every_stage_as_the_ledger_does() -> None:
    def run(comm: Collectives, stage: int) -> int:
        # What a first use opens does not count.
        train(comm, stage, 2, 8)
        return train(comm, stage, LAYERS, WIDTH)

    held = [max(launch(run, stage, ranks=2, timeout=60)) for stage in range(4)]
    # A virtual world computes nothing, and its ledger is that of processes.
    ledger = [launch(train, stage, LAYERS, WIDTH, True, ranks=2, world="virtual")[0] for stage in range(4)]
    for more, less in itertools.pairwise(held):
        assert less < more - 20e6, held
    for stage in range(4):
        assert held[stage] < 1.15 * ledger[stage], (held, ledger)


def grown(before: int) -> float:
    return (held_bytes(os.getpid()) - before) / 1e6


def test_storages_filled_one_after_the_other_share_their_memory() -> None:
    def run(comm: Collectives) -> tuple[list[float], bool]:
        spares, before = Spares(comm.device), held_bytes(os.getpid())
        tensors = [torch.empty(0) for _ in range(5)]
        sizes, seen, whole = [8_000_000, 4_000_000, 8_000_000, 2_000_000, 6_000_000], [], True
        for turn in range(3):
            for tensor, numel in zip(tensors, sizes, strict=True):
                storage = tensor.untyped_storage()
                spares.fill(storage, 4 * numel)
                filled = torch.empty(0).set_(storage, 0, (numel,)).fill_(numel + turn)
                whole &= filled.min().item() == filled.max().item() == numel + turn and storage.nbytes() == 4 * numel
                seen.append(grown(before))
                spares.empty(storage)
                whole &= storage.nbytes() == 0
        return seen, whole

    [(seen, whole)] = launch(run, ranks=1, timeout=60)
    assert whole
    assert seen == pytest.approx([32] * 15, abs=3)


def test_spare_memory_is_given_back_with_its_owner_and_beyond_three_of_the_largest() -> None:
    def run(comm: Collectives) -> list[float]:
        spares, before, seen = Spares(comm.device), held_bytes(os.getpid()), []
        tensors = [torch.empty(0) for _ in range(6)]
        for tensor in tensors:
            spares.fill(tensor.untyped_storage(), 16_000_000)
            torch.empty(0).set_(tensor.untyped_storage(), 0, (4_000_000,)).fill_(1.0)
        seen.append(grown(before))
        for tensor in tensors:
            spares.empty(tensor.untyped_storage())
        hand_back()
        seen.append(grown(before))
        del spares
        hand_back()
        seen.append(grown(before))
        return seen

    [(all_here, aside, gone)] = launch(run, ranks=1, timeout=60)
    assert all_here == pytest.approx(96, abs=3)
    assert aside == pytest.approx(48, abs=3)
    assert gone == pytest.approx(0, abs=3)


def test_an_emptied_storage_leaves_its_memory_to_the_next_of_its_length_and_to_no_other() -> None:
    spares = Spares(torch.device("cpu"))
    first, second, third = (torch.empty(0).untyped_storage() for _ in range(3))
    spares.fill(first, 4_000_000)
    view, place = torch.empty(0).set_(first, 0, (1_000_000,)).view(1000, 1000), first.data_ptr()
    spares.empty(first)
    assert (first.nbytes(), view.untyped_storage().nbytes()) == (0, 0)
    # Malloc would give a freed place to whoever comes next.
    others = [torch.ones(1_000_000) for _ in range(8)]
    assert place not in {other.data_ptr() for other in others}
    spares.fill(second, 4_000_000)
    assert (second.data_ptr(), second.nbytes()) == (place, 4_000_000)
    # Views find what their storage is filled with next.
    spares.fill(first, 4_000_000)
    first.fill_(0)
    assert first.data_ptr() != place and not view.any()
    spares.empty(first)
    spares.fill(third, 400)
    assert third.nbytes() == 400


def test_what_is_freed_when_a_model_is_sharded_goes_back_to_the_system() -> None:
    def run(comm: Collectives) -> tuple[float, float]:
        train(comm, 3, 2, 8)
        before = held_bytes(os.getpid())
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
        whole = grown(before)
        engine = ZeroEngine(model, comm, 3, lr=1e-3)
        sharded = grown(before)
        engine.close()
        return whole, sharded

    for whole, sharded in launch(run, ranks=2, timeout=60):
        assert whole == pytest.approx(101, abs=5)
        # Half of it, and the place in which one unit was whole.
        assert sharded == pytest.approx(101 / 2 + 4.2, abs=5)


def test_ranks_are_born_with_settings_of_malloc_and_programs_that_they_start_are_not() -> None:
    def run(comm: Collectives) -> tuple[bool, bool]:
        born_with = Path("/proc/self/environ").read_bytes()
        return b"glibc.malloc.mmap_max=0" in born_with, "GLIBC_TUNABLES" in os.environ

    assert launch(run, ranks=1, timeout=60) == [(True, "GLIBC_TUNABLES" in os.environ)]


def test_the_tunables_that_somebody_has_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=1")
    ours = make_malloc_settings()["GLIBC_TUNABLES"]
    assert ours.startswith("glibc.malloc.perturb=1:glibc.malloc.tcache_count=0:")
    monkeypatch.setenv("ZEROLAB_KEEP_FREED_MEMORY", "0")
    assert make_malloc_settings() == {}
