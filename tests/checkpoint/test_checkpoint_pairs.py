"""What is saved by N ranks at one stage goes on at any other number of ranks, stage, precision and tier."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import SAVED, STEPS, Run, Way, differing, load_at, save_at, values_of
from cover import NIGHTLY, covering, pairs
from torch import nn

from zerolab.checkpoint import CheckpointError, Checkpoints, load, read_manifest, save
from zerolab.checkpoint.manifest import ShardRange
from zerolab.checkpoint.planner import plan
from zerolab.checkpoint.tensors import BLOCK, FileReader
from zerolab.collectives import Collectives
from zerolab.memory import Tracker
from zerolab.offload import Offload
from zerolab.precision import LossScaler
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, engine_labels

pytestmark = [pytest.mark.timeout(240), pytest.mark.ranks]

RANKS, STAGES = (1, 2, 3, 4), (0, 1, 2, 3)


def lockstep(fn: Any, *arguments: Any, ranks: int) -> list[Any]:
    return launch(fn, *arguments, ranks=ranks, world="lockstep", timeout=120)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    """A checkpoint of each number of ranks and stage; every other one is written while nobody waits."""

    def save_all(comm: Collectives, folder: Path) -> list[Path]:
        return [
            save_at(comm, Way(stage), folder / f"{comm.size}-{stage}", wait=(stage + comm.size) % 2 == 0)
            for stage in STAGES
        ]

    folder = tmp_path_factory.mktemp("pairs")
    return {
        (ranks, stage): path for ranks in RANKS for stage, path in enumerate(lockstep(save_all, folder, ranks=ranks)[0])
    }


@pytest.mark.parametrize("ranks", RANKS)
def test_a_run_goes_on_from_its_own_checkpoint_to_the_bit(ranks: int, saved: dict[tuple[int, int], Path]) -> None:
    def go_on(comm: Collectives, paths: list[Path]) -> list[Any]:
        found = []
        for stage, path in enumerate(paths):
            undisturbed = Run(comm, Way(stage))
            undisturbed.train(0, STEPS)
            run, loaded = load_at(comm, Way(stage), path)
            run.train(loaded.step, STEPS)
            found.append((undisturbed.end(), run.end(), loaded))
        return found

    for by_stage in lockstep(go_on, [saved[ranks, stage] for stage in STAGES], ranks=ranks):
        for undisturbed, resumed, loaded in by_stage:
            assert (loaded.step, loaded.data, loaded.notes) == (SAVED, {"step": SAVED}, ())
            assert undisturbed[0][SAVED:] == resumed[0]
            assert differing(undisturbed[1], resumed[1]) == []
            assert undisturbed[2] == resumed[2]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_number_of_ranks_writes_the_same_tensors_at_every_stage(
    ranks: int, saved: dict[tuple[int, int], Path]
) -> None:
    """So what loads from one stage loads from all."""
    first = values_of(saved[ranks, 0])
    for stage in STAGES[1:]:
        assert differing(first, values_of(saved[ranks, stage])) == []
        assert sorted(path.name for path in saved[ranks, stage].iterdir()) == sorted(
            path.name for path in saved[ranks, 0].iterdir()
        )


PAIRS = covering(
    [(saver, stage, ranks, to) for saver in RANKS for stage in STAGES for ranks in RANKS for to in STAGES],
    # Stages write the same (above), so by day each two of the four values meet.
    shows=lambda pair: pairs(*pair),
    cost=lambda pair: pair[2],
)


@pytest.mark.parametrize("ranks", RANKS)
def test_any_number_of_ranks_and_stage_loads_what_any_other_saved_to_the_bit(
    ranks: int, saved: dict[tuple[int, int], Path], tmp_path: Path
) -> None:
    """Parameters, moments and counters of a checkpoint that is saved again as soon as it was loaded are the same, and
    losses go on as the same batches give them."""
    of_ranks = [(saver, stage, to) for saver, stage, loader, to in PAIRS if loader == ranks]

    def load_all(comm: Collectives) -> list[Any]:
        found = []
        for saver, stage, to in of_ranks:
            run, loaded = load_at(comm, Way(to, dropout=0.0), saved[saver, stage])
            with Checkpoints(tmp_path / f"{saver}-{stage}-{comm.size}-{to}") as again:
                path = again.save(run.engine, loaded.step, scheduler=run.scheduler, data=loaded.data)
            run.train(loaded.step, loaded.step + 1)
            found.append((path, loaded, run.losses))
        return found

    by_rank = lockstep(load_all, ranks=ranks)
    losses = {}
    for number, (saver, stage, to) in enumerate(of_ranks):
        path, loaded, losses[saver, to] = by_rank[0][number]
        was, now = read_manifest(saved[saver, stage]), read_manifest(path)
        assert differing(values_of(saved[saver, stage]), values_of(path)) == [], (saver, stage, ranks, to)
        assert (was.step, was.data, was.parameters.keys()) == (now.step, now.data, now.parameters.keys())
        assert nonparam(saved[saver, stage]) == nonparam(path)
        assert bool(loaded.notes) == (saver != ranks), "random numbers cannot go on with another number of ranks"
    for (saver, to), of_one in losses.items():
        assert of_one == pytest.approx(losses[saver, next(t for s, t in losses if s == saver)], rel=1e-5), (saver, to)


def nonparam(path: Path) -> Any:
    return json.loads((path / "optimizer_nonparam.json").read_text())


RECIPES = ("fp32", "bf16", "fp16", "bf16_fp32_grads", "bf16_fp8_moments", "pure_bf16", "fsdp2")
TIERS = ("device", "host", "disk")
STORED = [
    (recipe, tier, stage)
    for recipe in RECIPES
    for tier in TIERS
    for stage in (0, 2, 3)
    if (recipe != "fsdp2" or stage == 3) and (tier == "device" or stage > 0)
]
# By day a few ways stand for all; of those, a few go on from their own checkpoint and from that of the next one: each
# recipe, and each tier at each stage. Nightly all do.
BY_DAY = covering(STORED, shows=lambda way: pairs(*way))
GO_ON = [BY_DAY.index(way) for way in covering(BY_DAY, shows=lambda way: {way[0], way[1:]})]


def way_of(recipe: str, tier: str, stage: int, folder: Path) -> Way:
    places = Offload(tier, tier if stage == 3 and recipe != "fsdp2" else "device", path=folder)
    offload = {} if tier == "device" else {"offload": places}
    scaler = {"scaler": LossScaler(initial_power=8, window=2)} if recipe == "fp16" else {}
    return Way(stage, {"precision": recipe, **offload, **scaler})


@pytest.mark.parametrize("at", GO_ON, ids=["-".join(map(str, BY_DAY[at])) for at in GO_ON])
def test_any_precision_and_tier_goes_on_to_the_bit_and_from_any_other(at: int, tmp_path: Path) -> None:
    """From its own checkpoint, and from that of the next in the list, whose values are cast or decoded on the way."""
    own, other = BY_DAY[at], BY_DAY[(at + 1) % len(BY_DAY)]

    def both(comm: Collectives) -> Any:
        mine, theirs = way_of(*own, tmp_path), way_of(*other, tmp_path)
        path = save_at(comm, mine, tmp_path / "own", wait=False)
        undisturbed = Run(comm, mine)
        undisturbed.train(0, STEPS)
        run, _ = load_at(comm, mine, tmp_path / "own")
        again = Checkpoints(tmp_path / "again").save(run.engine, SAVED, scheduler=run.scheduler)
        run.train(SAVED, STEPS)
        _, from_other = save_at(comm, theirs, tmp_path / "other"), load_at(comm, mine, tmp_path / "other")[0]
        state = from_other.engine.consolidate()
        from_other.train(SAVED, SAVED + 1)
        on = load_at(comm, theirs, tmp_path / "other")[0]
        on.train(SAVED, SAVED + 1)
        return path, again, undisturbed.end(), run.end(), state, (from_other.losses, on.losses)

    for path, again, undisturbed, resumed, state, losses in lockstep(both, ranks=3):
        assert differing(values_of(path), values_of(again)) == []
        # The loss scale, too, which is a power of two and shows in no loss.
        assert nonparam(path) == nonparam(again)
        assert undisturbed[0][SAVED:] == resumed[0] and undisturbed[2] == resumed[2]
        assert differing(undisturbed[1], resumed[1]) == []
        # What another recipe saved: its most precise parameters, rounded once.
        theirs = read_manifest(next((tmp_path / "other").glob("step-*")))
        stored = values_of(next((tmp_path / "other").glob("step-*")))
        for name, saved in theirs.parameters.items():
            if saved.numel:
                best = stored.get(f"main/{name}", stored[f"model/{name}"])
                assert torch.equal(state[name].view(-1), best.to(state[name].dtype)), name
        assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_reads_the_bytes_of_its_own_elements_and_no_others(
    ranks: int, saved: dict[tuple[int, int], Path]
) -> None:
    """Counted: a rank of stages 1 to 3 needs its shard's parameters and moments; one of stage 0 all. What is read
    beyond that is rounded up to blocks, whose checksums tell damage."""
    path = saved[4, 3]

    def load_all(comm: Collectives) -> list[Any]:
        found, read = [], FileReader.read

        def counted(*arguments: Any) -> torch.Tensor:
            nonlocal nbytes
            values = read(*arguments)
            nbytes += values.untyped_storage().nbytes()
            return values

        FileReader.read = counted
        for stage in STAGES:
            nbytes = 0
            run, loaded = load_at(comm, Way(stage), path)
            buckets = [bucket for unit in run.engine.units for bucket in unit.buckets]
            mine = [
                (bucket.trainable, sum(piece.numel for piece in bucket.layout.pieces(comm.rank))) for bucket in buckets
            ]
            found.append((loaded, sum(numel * (12 if trains else 4) for trains, numel in mine), nbytes))
        return found

    by_rank = lockstep(load_all, ranks=ranks)
    whole = sum(saved.numel * (12 if saved.trains else 4) for saved in read_manifest(path).parameters.values())
    for stage in STAGES:
        of_ranks = [by_rank[rank][stage] for rank in range(ranks)]
        needed = [loaded.nbytes_needed for loaded, *_ in of_ranks]
        assert needed == ([whole] * ranks if stage == 0 else [own for _, own, _ in of_ranks])
        assert stage == 0 or sum(needed) == whole
        for loaded, _, nbytes in of_ranks:
            tensors = 3 * 4 * len(read_manifest(path).parameters)
            # To check them, and then into place.
            assert 2 * loaded.nbytes_needed <= nbytes <= 2 * (loaded.nbytes_needed + 2 * BLOCK * tensors)


@pytest.mark.parametrize(("stage", "precision"), [(1, "bf16_fp8_moments"), (3, None)])
def test_loading_takes_what_stays_and_one_unit_of_memory(stage: int, precision: str | None, tmp_path: Path) -> None:
    """Above what the engine holds once it is loaded, and with what Python itself holds of files."""

    def both(comm: Collectives, saves: bool) -> tuple[int, int, int]:
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
        engine = ZeroEngine(model, comm, stage if not saves else 2, 1e-3, precision=precision)
        if saves:
            engine.backward(engine(torch.randn(4, 256)).sum())
            engine.step()
            save(tmp_path, engine, 1)
            return 0, 0, 0
        largest = max(sum(4 * bucket.layout.numel for bucket in unit.buckets) for unit in engine.units)
        tracemalloc.start()
        with Tracker(engine_labels(engine)) as tracker:
            load(tmp_path, engine)
            held = sum(tracker.now().values())
        of_python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return sum(tracker.peak.values()) - held, of_python, largest

    launch(both, True, ranks=3, timeout=60)
    for above, of_python, largest in launch(both, False, ranks=2, timeout=60):
        assert above <= largest and of_python <= largest + 1_000_000, (above, of_python, largest)


def test_of_stretches_that_overlap_the_fewest_are_read() -> None:
    stretches = [ShardRange(0, 8, 0), ShardRange(0, 3, 1), ShardRange(2, 12, 2), ShardRange(4, 9, 3)]
    parts = plan(stretches, 1, 12)
    assert [(part.start, part.stop, part.source.writer, part.within) for part in parts] == [
        (1, 8, 0, (1, 8)),
        (8, 12, 2, (6, 10)),
    ]
    assert plan(stretches, 5, 5) == []
    with pytest.raises(CheckpointError, match="no file has element 12 of 11 to 13"):
        plan(stretches, 11, 13)


def test_by_night_all_pairs_are_run() -> None:
    assert len(PAIRS) == 256 if NIGHTLY else 16 <= len(PAIRS) < 32
