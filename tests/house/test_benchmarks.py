"""What the benchmarks rest on: contenders that train the same, a watcher that sees everything, sums that add up."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cover import NIGHTLY, nightly

from benchmarks import tiers
from benchmarks.account import PLACES, RATIO, REST, Clock
from benchmarks.account import count as count_parts
from benchmarks.account import measure as account_for
from benchmarks.checkpoints import checksum_speeds
from benchmarks.collectives import least_bytes
from benchmarks.growth import Point, count, draw, fit, points_of, simulate
from benchmarks.growth import measure as measure_points
from benchmarks.growth import table as growth_table
from benchmarks.peers.contenders import CONTENDERS, OURS, PARTS, RIVALS, is_installed
from benchmarks.peers.measure import allocated, count_sleep, held_bytes, timed, watched
from benchmarks.peers.report import Case, above_the_floor, ratio, tables
from benchmarks.peers.workload import WORKLOADS
from benchmarks.sweeps import begin, tiers_table, wires_table
from benchmarks.tiers import RUNS, held, table
from zerolab.collectives import Collectives, LocalTransport
from zerolab.collectives.shared import peers
from zerolab.memory.kinds import OFFLOADED
from zerolab.ranks import launch
from zerolab.run import RunSpec
from zerolab.train import train

pytestmark = pytest.mark.timeout(100)

TRAINED = [name for name in CONTENDERS if name not in PARTS]


@pytest.mark.ranks
@pytest.mark.parametrize("workload", [("nothing", 3), ("llama", 1)][: 1 + NIGHTLY])
def test_all_contenders_train_the_same_model_on_the_same_batches(workload: tuple[str, int]) -> None:
    """DeepSpeed's AdamW departs where gradients are nearly zero, so it is compared for two steps only."""
    losses, waited = {}, 0.0
    for name in TRAINED if NIGHTLY else ("zerolab 0", "zerolab 3", "DDP", "FSDP2"):
        if is_installed(name):
            by_rank = launch(timed, workload, name, 2, ranks=2, collectives="transport", timeout=80, prints="quiet")
            losses[name] = torch.tensor([rank["losses"] for rank in by_rank]).mean(dim=0)
            waited += sum(sum(rank["waited"]) for rank in by_rank)
    assert len(set(losses["zerolab 0"].tolist())) == 5 and waited > 0
    for name, found in losses.items():
        steps = 2 if name.startswith("DeepSpeed") else 5
        torch.testing.assert_close(found[:steps], losses["DDP"][:steps], rtol=0, atol=2e-5)
    assert all(torch.equal(losses[name], losses["zerolab 0"]) for name in losses if name.startswith("zerolab"))


@pytest.mark.ranks
def test_the_watcher_sees_private_and_shared_memory_but_not_a_peers() -> None:
    def hold(comm: Collectives) -> list[int]:
        grown, before = [], held_bytes(os.getpid())
        kept = [torch.ones(8_000_000)]
        grown.append(held_bytes(os.getpid()) - before)
        before = held_bytes(os.getpid())
        kept.append(comm.allocate(4_000_000).fill_(1.0))
        grown.append(held_bytes(os.getpid()) - before)
        before = held_bytes(os.getpid())
        # Now each has touched the other's memory as well.
        comm.all_reduce(kept[1])
        grown.append(held_bytes(os.getpid()) - before)
        return grown

    for private, shared, others in launch(hold, ranks=2, collectives="shared", timeout=60):
        assert private == pytest.approx(32e6, abs=2e6)
        assert shared == pytest.approx(16e6, abs=2e6)
        assert others == pytest.approx(0, abs=4e6)


def test_what_a_rank_sleeps_in_shared_memory_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "wait_for", lambda *events, seconds=None: time.sleep(0.02))
    (total,) = slept = count_sleep()
    assert total == 0.0
    peers.wait_for((0, 1))
    peers.wait_for((0, 1))
    assert slept[0] >= 0.04


@pytest.mark.ranks
def test_watched_training_reports_what_went_over_the_wire(tmp_path: Any) -> None:
    by_rank = launch(
        watched, ("nothing", 2), "DDP", 4, str(tmp_path), ranks=2, collectives="transport", timeout=60, prints="quiet"
    )
    assert all(rank["sent"] > 144 * 4 for rank in by_rank)
    assert len(list(tmp_path.iterdir())) == 2


def test_least_bytes_are_those_of_the_algorithms() -> None:
    assert [least_bytes(name, 80, 4) for name in ("reduce_scatter", "all_gather", "all_reduce", "copy")] == [
        100,
        160,
        160,
        160,
    ]


def test_a_table_has_a_line_for_each_contender_and_each_rival() -> None:
    case = Case("stack", 32, 2)
    for place, name in enumerate(CONTENDERS, start=1):
        case.seconds[name] = [[place, place, 90.0], [2 * place] * 3]
        case.losses[name], case.peak[name], case.sent[name] = [1.0], place, place
        case.waited[name] = [[0.5, 0.5, 9.0], [0.5] * 3]
    text = tables(case)
    assert all(f"| {name} |" in text for name in TRAINED)
    assert all(f"| {ours} | {rival} |" in text for ours, rivals in RIVALS.items() for rival in rivals)
    assert list(RIVALS) == list(OURS)
    assert ratio(case.rounds("DDP"), case.rounds("DDP")) == "1.00 (1.00 to 1.00)"
    assert case.floor(0) == [
        compute + update + copy
        for compute, update, copy in zip(*(case.rounds(n) for n in ("compute", "update, whole", "copy")), strict=True)
    ]
    # A step is its floor, the copy of its gradients, its waits and what is left.
    for name, line in zip(OURS, above_the_floor(case)[2:], strict=True):
        step, floor, copied, waits, left = map(float, line.split("|")[2:7])
        assert line.startswith(f"| {name} |") and waits == 500.0 and line in text
        assert step - floor - copied - waits == pytest.approx(left, abs=0.3)
    # What NCCL sends nobody counts.
    on_gpus = tables(replace(case, device="cuda", sent={}))
    assert on_gpus.count("not counted") == len(TRAINED)


def test_on_a_gpu_the_peak_is_that_of_torch_s_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"memory_allocated": 100, "reset_peak_memory_stats": None, "max_memory_allocated": 350}
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert allocated(LocalTransport(), ("nothing", 1), "compute", 1) == {"peak": 250}


def test_workloads_are_functions_of_their_seeds() -> None:
    for name, make in WORKLOADS.items():
        work = make(2)
        again, other = work.batch(3, 1), work.batch(3, 0)
        assert all(torch.equal(a, b) for a, b in zip(work.batch(3, 1), again, strict=True))
        assert name == "nothing" or not torch.equal(again[0], other[0])
        pairs = zip(work.model().parameters(), work.model().parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@nightly("measures seven configurations")
def test_row_27_the_seven_configurations_that_guides_rank_are_measured(tmp_path: Path) -> None:
    settings = {"ranks": 2, "model_size": "nano", "seq_len": 16, "batch_size": 4, "max_steps": 3, "world": "lockstep"}
    disk = {name: {"offload_path": tmp_path} if "disk" in of.values() else {} for name, of in RUNS.items()}
    reports = {name: train(RunSpec(**of, **disk[name], **settings)) for name, of in RUNS.items()}
    device = [held(report.peak, "") for report in reports.values()]
    assert device[0] > device[1] > device[2] > device[3] and device[4] > device[5]
    resting = {place: [held(report.memory_measured, place) > 0 for report in reports.values()] for place in OFFLOADED}
    assert resting == {"host:": [False] * 3 + [True, False, True, True], "disk:": [False] * 6 + [True]}
    text = table([reports])
    assert all(f"| {name} | " in text for name in RUNS) and text.endswith("over all rows: True")


def test_the_benchmark_of_checkpoints_says_how_fast_each_checksum_is() -> None:
    speeds = checksum_speeds(1 << 16, rounds=1)
    assert "zlib" in speeds and all(speed > 0 for speed in speeds.values())


def swept(predicted: float, measured: float, **settings: Any) -> dict[str, Any]:
    """A row of a sweep: seconds and settings."""
    figures = {"step_seconds_predicted": predicted, "step_seconds": measured, "tokens_per_s": 64 / measured}
    sizes = {f"{what}_bytes{end}": 2_500_000 for what in ("peak", "sent") for end in ("", "_predicted")}
    return {"settings": settings, "parameters_sha256": "a", **figures, **sizes}


def test_a_sweep_of_wires_shows_each_time_the_errors_and_where_stages_cross() -> None:
    rows = [
        swept(predicted, measured, zero_stage=stage, ranks=2, gbit_per_s=gbit, wire="shaped")
        for stage, gbit, predicted, measured in (
            (0, 0.1, 1.0, 2.0), (0, 1, 0.5, 0.4), (3, 0.1, 1.5, 3.0), (3, 1, 0.3, 0.3)
        )
    ]  # fmt: skip
    lines = wires_table(rows)
    assert lines[2:4] == [
        "| 2 | 0.1 | shaped | 1,000 / 2,000 | 1,500 / 3,000 |",
        "| 2 | 1 | shaped | 500 / 400 | 300 |",
    ]
    assert lines[5].endswith("On shaped wires the median error is 38%, the worst 50%.")
    simulated = [swept(0.9 * row["step_seconds"], 1.0, **{**row["settings"], "wire": "simulated"}) for row in rows[:3]]
    said = next(line for line in wires_table(rows + simulated) if line.startswith("Milliseconds"))
    assert said.endswith(" predicted for simulated wires, shaped ones are 10% off by the median, and 10% at worst.")
    assert lines[6].startswith("On 2 ranks and shaped wires there cross: stages 0 and 3 at 0.")


def test_a_sweep_of_tiers_names_what_rests_elsewhere() -> None:
    disk = {"offload_optimizer": "disk", "offload_param": "disk"}
    rows = [
        swept(1, 1, zero_stage=0),
        swept(1, 2, zero_stage=2, offload_optimizer="host"),
        swept(1, 3, zero_stage=3, **disk),
    ]
    rows[2] |= {"disk_bytes_predicted": 10**6, "disk_bytes": 2 * 10**6}
    assert tiers_table(rows)[2:5] == [
        "| 0 | 2.50 | 0.00 | 0.00 | 2.50 | 1,000 | 1.00 |",
        "| 2, optimizer on the host | 2.50 | 0.00 | 0.00 | 2.50 | 1,000 / 2,000 | 2.00 |",
        "| 3, optimizer and parameters on the disk | 2.50 | 0.00 | 1.00 / 2.00 | 2.50 | 1,000 / 3,000 | 3.00 |",
    ]


def test_the_tables_of_sweeps_have_their_places_in_the_readme() -> None:
    text = Path(tiers.__file__).with_name("README.md").read_text(encoding="utf-8")
    assert all(text.count(begin(name)) == 1 for name in ("wires", "tiers"))


@pytest.mark.ranks
def test_growth_counts_alike_on_real_and_on_virtual_ranks() -> None:
    for stage, times in (("0", 2), ("3", 3)):
        (real, _) = launch(count, (16, 2, 1), stage, ranks=2, collectives="ring", timeout=60, prints="quiet")
        virtual = simulate(None, (16, 2, 1), stage, ranks=2)
        # Their peaks differ by the batch, which only one of the two trackers has seen made.
        assert real["sent"] == virtual["sent"] and real["peak"] == pytest.approx(virtual["peak"], abs=4096)
        assert virtual["seconds"] > 0 and virtual["clock"] > 0
        # Each call sends (N-1)/N of all elements; a unit's slots and shards are padded.
        point = Point("stack", 32, 2, sweep="parameters", shape=(16, 2, 1))
        assert real["sent"] == pytest.approx(times * 4 * point.x / 2, rel=0.02)


@nightly("trains at each point; by day growth counts on one")
@pytest.mark.ranks
def test_growth_measures_each_point_once_a_round() -> None:
    points = [Point("stack", 2, 2, sweep=sweep, shape=(8, 2, 1)) for sweep in ("units", "virtual")]
    for _ in range(2):
        for point in points:
            measure_points([point], 2)
    real, virtual = points
    assert [len(steps) for rounds in real.seconds.values() for steps in rounds] == [2] * 8
    assert [len(real.each(stage)) for stage in range(4)] == [len(virtual.each(stage)) for stage in range(4)] == [2] * 4
    assert virtual.seconds == real.counted == {} and len(virtual.counted["0"]["held"]) == 2
    assert "| 2 | " in growth_table([real, replace(real, shape=(8, 4, 1))])


def test_growth_fits_a_line_and_says_how_far_points_are_from_it() -> None:
    swept = [points_of(sweep) for sweep in ("ranks", "virtual")]
    for point in [*swept[0], *swept[1]]:
        rounds = [[0.002 + 1e-5 * point.ranks] * 3]
        point.seconds = dict.fromkeys((*OURS, *PARTS), rounds) if point.sweep == "ranks" else {}
        row = {"sent": point.ranks - 1, "peak": 10, "clock": 0.5, "seconds": [0.1], "held": [0]}
        point.counted = {str(stage): row for stage in range(4)}
    swept[0][-1].seconds["zerolab 3"] = [[0.003] * 3]
    lines = growth_table(swept[0]).splitlines()
    assert lines[6].startswith("| 2 | 2.0 (2.0 to 2.0), ") and lines[9].startswith("| line | 2.0 ms + 10 us each |")
    assert fit([1, 2, 4], [3, 5, 9]) == pytest.approx((2, 1))
    off = [[float(cell.split(",")[1].strip(" %")) for cell in line.split("|")[2:6]] for line in lines[5:9]]
    assert all(row[:3] == [0, 0, 0] for row in off) and any(row[3] for row in off)
    assert "ms on its clock" in growth_table(swept[1]) and "/ floor" not in growth_table(swept[1])
    assert len(draw(swept).axes) == 4


@nightly("trains six ways to time their parts")
@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_the_parts_of_an_account_are_the_step() -> None:
    by_rank = launch(count_parts, "stack", 2, 3, 2, 1.0, ranks=2, collectives="transport", device="cpu")
    for _, seconds, parts in by_rank[0]:
        # The clock is stopped after the step has been timed, however late on a busy machine: it has lost nothing.
        assert seconds <= sum(parts.values())
        # Who always comes last has nobody to wait for.
        assert {*parts, "waits"} == set(PLACES) and min(parts.values()) > 0
    found = account_for("stack", 2, 3, rounds=1, steps=2, clip_norm=1.0)
    assert set(found) == {*PLACES, "sum", "step", RATIO}
    assert min(found[part] for part in found if part != "waits") > 0


def test_a_clock_runs_for_the_innermost_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = Clock(), [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def inner() -> None:
        now[0] += 2.0

    def outer() -> None:
        now[0] += 1.0
        timed_inner()
        now[0] += 4.0

    timed_inner, timed_outer = clock.around(inner, "waits"), clock.around(outer, "calls")
    clock.runs, clock.since = True, 0.0
    timed_outer()
    now[0] += 8.0
    clock.turn_to(REST)
    assert dict(clock.seconds) == {"waits": 2.0, "calls": 5.0, REST: 8.0}
