"""The two ledgers meet: bytes predicted from the layout are bytes of live storages, at every stage, on real ranks."""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread

import pytest
import torch
from cover import NIGHTLY
from memory_cases import MEMORY_CASES, STATES, TRANSIENT, Measured, by_day, measure_all
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from zerolab.collectives import Collectives, LocalTransport, build
from zerolab.collectives.call import phase, phase_now
from zerolab.errors import InputError
from zerolab.flat import BucketPlan, lay_out
from zerolab.memory import (
    Sample,
    StateSize,
    Tracker,
    model_labels,
    predict,
    predict_states,
    track,
)
from zerolab.memory.timeline import by_time
from zerolab.offload import Offload
from zerolab.precision import PRECISIONS, Precision
from zerolab.ranks import launch, spend
from zerolab.zero import ZeroEngine

pytestmark = pytest.mark.timeout(110)

ADAM = StateSize(tensors_per_element=2, bytes_per_tensor=4)


class ByRank(list[dict[tuple[str, int], Measured]]):
    """What each rank measured, with collectives of one implementation."""

    collectives = ""
    runs = 0


# Processes where they add something: what three share. By the ring one, two and four hold the same in lockstep, which
# takes half the time; nightly they are processes, too.
PLACES = [(1, "ring", "lockstep"), (2, "ring", "lockstep"), (4, "ring", "lockstep"), (3, "shared", "processes")]

# Which tests below compare stages of.
WHOLE = {("ten blocks", place) for place in PLACES} | {("ten blocks in two micro-batches", PLACES[-1])}
CASES = by_day(MEMORY_CASES, PLACES, whole=lambda *case: case in WHOLE or (case[0] == "nothing ahead"))


@pytest.fixture(scope="module", params=PLACES, ids=lambda place: str(place[:2]))
def by_rank(request: pytest.FixtureRequest) -> ByRank:
    ranks, collectives, world = request.param
    where = {"collectives": collectives, "world": "processes" if NIGHTLY else world}
    cases = CASES[request.param]
    measured = ByRank(launch(measure_all, cases, ranks=ranks, threads=1, timeout=90, **where))
    measured.collectives, measured.runs = collectives, sum(len(case.stages) for case in cases.values())
    return measured


def every(by_rank: ByRank) -> list[tuple[tuple[int, str, int], Measured]]:
    found = [((rank, *case), one) for rank, measured in enumerate(by_rank) for case, one in measured.items()]
    assert len(found) == len(by_rank) * by_rank.runs
    return found


# Real ranks


@pytest.mark.ranks
def test_predicted_states_are_the_live_storages(by_rank: ByRank) -> None:
    for where, one in every(by_rank):
        assert one.states == one.predicted, where
        assert one.states["parameters"] > 0


@pytest.mark.ranks
def test_what_passes_stays_within_its_bounds(by_rank: ByRank) -> None:
    for where, one in every(by_rank):
        for kind in TRANSIENT:
            assert one.peak_of[kind] <= one.bounds[kind], (where, kind)


@pytest.mark.ranks
def test_nothing_that_passes_is_left_after_a_step(by_rank: ByRank) -> None:
    for where, one in every(by_rank):
        assert not {kind: one.left[kind] for kind in TRANSIENT if one.left[kind]}, where


@pytest.mark.ranks
def test_a_higher_stage_has_a_lower_peak(by_rank: ByRank) -> None:
    """A model of ten blocks. On one rank there is nothing to shard, and every stage is stage 0."""
    for measured in by_rank:
        for case in ("ten blocks", "ten blocks in two micro-batches"):
            stages = [stage for stage in range(4) if (case, stage) in measured]
            peaks = [sum(measured[case, stage].peak.values()) for stage in stages]
            assert peaks == sorted(peaks, reverse=True)
            assert len(by_rank) == 1 or len(stages) < 4 or peaks[3] < 0.75 * peaks[0]


@pytest.mark.ranks
def test_stage3_holds_a_unit_and_its_neighbour(by_rank: ByRank) -> None:
    for measured in by_rank:
        block = measured["ten blocks", 0].predicted["parameters"] // 10
        two = 2 * block if len(by_rank) > 1 else 0
        assert [measured["ten blocks", stage].peak_of["gathered_units"] for stage in range(4)] == [0, 0, 0, two]


@pytest.mark.ranks
def test_stage3_holds_one_unit_if_nothing_is_fetched_ahead(by_rank: ByRank) -> None:
    for measured in by_rank:
        alone, whole = measured["nothing ahead", 3], measured["nothing ahead", 0].predicted["parameters"]
        assert alone.peak_of["gathered_units"] == alone.bounds["gathered_units"] < whole // 2
        assert alone.bounds["gathered_units"] > 0 or len(by_rank) == 1


@pytest.mark.ranks
def test_stage2_frees_gradients_during_backward(by_rank: ByRank) -> None:
    for measured in by_rank:
        whole = measured["ten blocks", 0].predicted["gradients"]
        for stage in (2, 3):
            passing = measured["ten blocks", stage].peak_of["gradient_buffers"]
            assert passing <= 3 * whole // 10
            assert passing >= whole // 10 or len(by_rank) == 1


@pytest.mark.ranks
def test_the_ring_receives_into_a_chunk_or_two_and_shared_memory_into_none(by_rank: ByRank) -> None:
    chunks = min(len(by_rank) - 1, 2) if by_rank.collectives == "ring" else 0
    for measured in by_rank:
        ranks, block = len(by_rank), measured["ten blocks", 0].predicted["gradients"] // 10
        for stage in range(4):
            scratch = measured["ten blocks", stage].peak_of["communication_buffers"]
            assert scratch == block // ranks * chunks


# From a layout: integers


def plan(*shapes: tuple[int, ...], ranks: int = 2, unit: str = "unit", **changes: object) -> BucketPlan:
    layout = lay_out({f"parameter {at}": shape for at, shape in enumerate(shapes)}, ranks, align=4)
    options: dict = {"itemsize": 4, "trainable": True, "groups": (None,) * len(shapes), **changes}
    return BucketPlan(unit, layout, **options)


def test_prediction_counts_padding() -> None:
    # 6 elements and 2 of padding, 3 elements and 5 of padding: 16, of which each of two ranks has 8.
    plans = [plan((2, 3), (3,))]
    step = 4  # bytes of the step counter that Adam keeps for each tensor
    assert predict(plans, 0, ADAM) == {
        "parameters": [64, 64],
        "gradients": [64, 64],
        # One segment from the first slot to the end of the last, padding to the alignment in it.
        "optimizer_states": [2 * 12 * 4 + step] * 2,
    }
    assert predict(plans, 1, ADAM)["optimizer_states"] == [2 * 8 * 4 + step, 2 * 4 * 4 + step]
    assert predict(plans, 2, ADAM)["gradients"] == [32, 32]
    assert predict(plans, 3, ADAM)["parameters"] == [32, 32]


def test_two_groups_have_two_states() -> None:
    plans = [plan((2, 3), (3,), groups=("decay", "none"))]
    assert predict(plans, 0, ADAM)["optimizer_states"] == [2 * 12 * 4 + 2 * 4] * 2


def test_a_rank_whose_shard_is_padding_has_no_optimizer_state() -> None:
    assert predict([plan((1,), ranks=3)], 3, ADAM) == {
        "parameters": [16] * 3,
        "gradients": [16] * 3,
        "optimizer_states": [2 * 4 * 4 + 4, 0, 0],
    }


def test_a_frozen_bucket_has_parameters_only() -> None:
    for stage in range(4):
        frozen = predict([plan((8,), trainable=False)], stage, ADAM)
        assert frozen == {
            "parameters": [16 if stage == 3 else 32] * 2,
            "gradients": [0, 0],
            "optimizer_states": [0, 0],
        }


# From Ψ and N: the sources' figures


@pytest.mark.parametrize(
    ("ranks", "gigabytes"),
    [(64, (120, 31.4, 16.6, 1.9)), (4, (120, 52.5, 41.3, 30)), (1024, (120, 30.1, 15.1, 0.12))],
)
def test_states_are_those_of_the_papers_figure_1(ranks: int, gigabytes: tuple[float, ...]) -> None:
    for stage, expected in enumerate(gigabytes):
        total = sum(predict_states(7_500_000_000, ranks, stage, "fp16").values()) / 1e9
        assert total == pytest.approx(expected, abs=0.0051 if expected < 1 else 0.0501)


@pytest.mark.parametrize(
    ("precision", "of"),
    [
        ("fp32", (lambda n: 16, lambda n: 8 + 8 / n, lambda n: 4 + 12 / n, lambda n: 16 / n)),
        ("bf16", (lambda n: 16, lambda n: 4 + 12 / n, lambda n: 2 + 14 / n, lambda n: 16 / n)),
        ("bf16_fp32_grads", (lambda n: 18, lambda n: 6 + 12 / n, lambda n: 2 + 16 / n, lambda n: 18 / n)),
    ],
)
def test_every_precision_follows_its_formula(precision: str, of: tuple[Callable[[int], float], ...]) -> None:
    for stage, formula in enumerate(of):
        for ranks in (1, 3, 64):
            total = sum(predict_states(1000, ranks, stage, precision).values())
            assert total == pytest.approx(1000 * formula(ranks), rel=1e-12)


def test_savings_at_four_ranks_are_2_3_and_2_9_and_4() -> None:
    whole = sum(predict_states(10**9, 4, 0).values())
    saved = [round(whole / sum(predict_states(10**9, 4, stage).values()), 2) for stage in (1, 2, 3)]
    assert saved == [2.29, 2.91, 4.0]


def test_gpt2_124m_in_fp32_takes_2_gigabytes_and_a_quarter_less_than_half_is_saved() -> None:
    parameters = 124_373_760
    whole, sharded = (predict_states(parameters, 4, stage, "fp32") for stage in (0, 1))
    assert round(sum(whole.values()) / 1e9, 2) == 1.99
    assert round(whole["optimizer_states"] / 1e9, 3) == 0.995
    assert round(sharded["optimizer_states"] / 1e9, 3) == 0.249
    assert round(sum(sharded.values()) / 1e9, 3) == 1.244
    assert 1 - sum(sharded.values()) / sum(whole.values()) == 0.375


def test_175b_on_eight_ranks_with_and_without_main_parameters_of_their_own() -> None:
    bare, mixed = Precision("bf16", "bf16", "bf16", "bf16"), PRECISIONS["bf16"]
    gigabytes = {
        precision: [sum(predict_states(175 * 10**9, 8, stage, precision).values()) / 1e9 for stage in (0, 1)]
        for precision in (bare, mixed)
    }
    assert gigabytes == {bare: [2100, 875], mixed: [2800, 962.5]}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 4, 1), "parameters is 0"),
        ((10, 0, 1), "ranks is 0"),
        ((10, 4, 5), "no ZeRO stage 5"),
        ((10, 4, True), "no ZeRO stage True"),
        ((10, 4, 1, "fp64"), "no precision 'fp64'; choose one of fp32, bf16, fp16"),
        ((10, 4, 1, "fsdp2"), "precision fsdp2 has no stage 1"),
        ((10, 4, 1, "bf16", Offload("host", "host")), "at stage 3, where nobody keeps them whole, not at stage 1"),
    ],
)
def test_states_that_cannot_be_predicted_are_refused(arguments: tuple, says: str) -> None:
    with pytest.raises(InputError, match=says):
        predict_states(*arguments)


# The tracker


def live(tracker: Tracker) -> dict[str, int]:
    return {kind: size for kind, size in tracker.now().items() if size}


def test_a_storage_counts_once_however_many_tensors_view_it() -> None:
    with Tracker() as tracker, torch.no_grad():
        whole = torch.empty(1000)
        parts = [*whole.split(10), whole.view(10, 100).t(), whole.detach()]
        assert sum(tracker.now().values()) == 4000
        del whole
        assert sum(tracker.now().values()) == 4000
        del parts
        assert sum(tracker.now().values()) == 0
    assert sum(tracker.peak.values()) == 4000


def test_a_storage_that_is_emptied_and_filled_counts_as_it_is() -> None:
    with Tracker() as tracker:
        whole = torch.zeros(1000)
        whole.untyped_storage().resize_(0)
        assert sum(tracker.now().values()) == 0
        whole.untyped_storage().resize_(4000)
        whole.fill_(1)
        other = torch.zeros(100)
        whole.untyped_storage().resize_(0)
        other.add_(1)
        del other
    assert [sample.total for sample in tracker.samples if sample.total] == [4000, 4000, 4400, 400]


def test_a_freed_neighbour_does_not_make_a_peak() -> None:
    with Tracker() as tracker:
        for _ in range(5):
            big = torch.zeros(1000)
            del big
    assert sum(tracker.peak.values()) == 4000


def test_a_buffer_counts_from_its_birth_under_the_name_that_it_gets_later() -> None:
    owner: dict[str, torch.Tensor] = {}
    with Tracker(lambda: {"gradient_buffers": owner.values()}) as tracker:
        buffer = torch.empty(1000)
        owner["gradients"] = buffer.view(10, 100)
        spike = torch.empty(5)
        del spike
        buffer.zero_()
        owner.clear()
        del buffer
    assert tracker.peak["gradient_buffers"] == 4000
    assert tracker.peak["activations"] == 20
    assert sum(tracker.now().values()) == 0


def test_meta_tensors_hold_no_memory() -> None:
    with Tracker() as tracker:
        kept = nn.Linear(100, 100, device="meta")
        assert sum(tracker.now().values()) == 0
    assert kept.weight.numel() == 10_000


def test_plain_training_has_its_kinds() -> None:
    model = nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    numel = sum(parameter.numel() for parameter in model.parameters())
    batch = torch.randn(7, 30)
    with Tracker(model_labels(model, optimizer)) as tracker:
        with phase("forward"):
            loss = model(batch).square().mean()
        # What backward needs: the first layer's output is dropped, its tanh and the second layer's output stay.
        assert live(tracker) == {
            "parameters": 4 * numel,
            "activations": 4 * (7 * 50 + 7 * 10 + 1),
            "other": 4 * 7 * 30,
        }
        with phase("backward"):
            loss.backward()
            del loss
        with phase("step"):
            optimizer.step()
        steps = 4 * len(list(model.parameters()))
        assert live(tracker) == {
            "parameters": 4 * numel,
            "gradients": 4 * numel,
            "optimizer_states": 8 * numel + steps,
            "other": 4 * 7 * 30,
        }
    assert tracker.peak_of("gradients") == 4 * numel
    # Before the first phase there was what the labels name.
    assert [*dict.fromkeys(sample.phase for sample in tracker.samples)] == ["", "forward", "backward", "step"]


def test_samples_rise_to_the_peak() -> None:
    model = nn.Linear(20, 20)
    with Tracker(model_labels(model)) as tracker:
        model(torch.randn(3, 20)).sum().backward()
    totals = [sample.total for sample in tracker.samples]
    assert max(totals) == sum(tracker.peak.values()) > totals[-1] > 0
    assert [sample.order for sample in tracker.samples] == sorted(sample.order for sample in tracker.samples)
    assert all(size >= 0 for sample in tracker.samples for size in sample.bytes.values())


def test_without_samples_only_the_figures_are_kept() -> None:
    with Tracker(samples=False) as tracker:
        kept = torch.zeros(10)
    assert tracker.samples == [] and sum(tracker.peak.values()) == kept.untyped_storage().nbytes()


def test_the_log_may_be_counted_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> tuple[dict[str, int], int]:
        model = nn.Linear(20, 20)
        with Tracker(model_labels(model)) as tracker:
            model(torch.randn(3, 20)).sum().backward()
        return tracker.now(), sum(tracker.peak.values())

    at_the_end = measured()
    monkeypatch.setattr(track, "COUNT_EVERY", 1)
    assert measured() == at_the_end


def test_peaks_are_counted_anew_when_a_tracker_is_entered_again() -> None:
    tracker = Tracker()
    with tracker:
        torch.zeros(1000)
    with tracker:
        second = torch.zeros(10)
    assert sum(tracker.peak.values()) == second.untyped_storage().nbytes()


def test_the_tracker_agrees_with_torchs_allocator() -> None:
    """Torch's profiler hears of every allocation of the CPU's allocator; what is left must be the tracker's sum."""
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 64))
    batch = torch.randn(5, 64)
    torch.optim.SGD(model.parameters(), lr=0.1)  # what torch imports on first use allocates, too
    gc.collect()
    with Tracker(model_labels(model)) as tracker:
        model(batch)
        before = sum(tracker.now().values())
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            output = model(batch)
            earlier = len(tracker.samples)
            loss = output.square().mean()
            loss.backward()
        grown = sum(tracker.now().values()) - before
        peak = max(sample.total for sample in tracker.samples[earlier:]) - before
    sizes = [event.nbytes() for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert grown == sum(sizes) > sum(parameter.numel() for parameter in model.parameters()) * 4
    # The allocator also hears of what kernels allocate for themselves, so its peak may be a little higher.
    courses = [sum(sizes[:stop]) for stop in range(len(sizes) + 1)]
    assert 0.9 * max(courses) <= peak <= max(courses)
    del loss, output


@pytest.mark.gpu
def test_cuda_counters_stand_beside_the_tracker() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda", 0)
    base = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with Tracker() as tracker:
        kept = torch.zeros(1 << 20, device=device)
        total = torch.zeros(1 << 20, device=device).add(kept)
    assert torch.cuda.memory_allocated(device) - base == sum(tracker.now().values()) == kept.nbytes + total.nbytes
    assert torch.cuda.max_memory_allocated(device) - base == sum(tracker.peak.values()) == 3 * kept.nbytes


def test_states_are_named_alike_on_both_sides() -> None:
    assert tuple(predict([plan((8,))], 0, ADAM)) == tuple(predict_states(8, 2, 0)) == STATES


NO_SCALES = [name for name in PRECISIONS if "fp8_moments" not in name]


@pytest.mark.parametrize("precision", NO_SCALES)
@pytest.mark.parametrize("places", [Offload(), Offload("host"), Offload("host", "host")], ids=str)
def test_the_formula_and_the_layout_say_the_same_where_nothing_is_padded(precision: str, places: Offload) -> None:
    """In every place, too: what the planner adds up is what the engine's ledger has."""
    size = StateSize(2, 0, ("exp_avg", "exp_avg_sq"))
    for stage in PRECISIONS[precision].stages:
        if places.parameters == "device" or stage == 3:
            width = 2 if "16" in precision or precision in ("fp8", "fsdp2") else 4
            exact = predict([plan((16, 64), itemsize=width)], stage, size, precision, places)
            said = predict_states(1024, 2, stage, precision, places)
            assert {kind: sizes[0] for kind, sizes in exact.items() if sizes[0]} == said


def test_a_tracker_in_lockstep_counts_no_neighbours_tensors() -> None:
    def gather(comm):  # type: ignore[no-untyped-def]
        shard = torch.ones(1000)
        with Tracker(lambda: {"own": [shard]}) as tracker:
            whole = comm.all_gather(shard)
        return sum(tracker.peak.values()), whole.nbytes

    for peak, nbytes in launch(gather, ranks=3, world="lockstep", collectives="ring"):
        assert peak == 4000 + nbytes


def test_what_runs_on_autograd_s_own_threads_is_of_the_backward_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a GPU autograd works in threads that have the caller's modes, and none of its context variables. Here a
    thread of that kind is made."""

    def elsewhere(loss: torch.Tensor) -> None:
        modes, failed, first = list(_get_current_dispatch_mode_stack()), [], torch.ones_like(loss)

        def run() -> None:
            try:
                with ExitStack() as stack:
                    for mode in modes:
                        stack.enter_context(mode)
                    torch.autograd.backward(loss, first)
            except BaseException as error:
                failed.append(error)

        thread = Thread(target=run)
        thread.start()
        thread.join()
        assert not failed, failed

    monkeypatch.setattr(torch.Tensor, "backward", elsewhere)

    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])
    engine = ZeroEngine(model, build(LocalTransport(), "local"), stage=0, lr=0.1)
    loss = engine(torch.ones(2, 8)).sum()
    with Tracker() as tracker:
        engine.backward(loss)
    assert len(tracker.samples) > 10 and {sample.phase for sample in tracker.samples} == {"backward"}
    assert phase_now() == ""


# The tracker's clock


def test_a_trackers_samples_have_the_time_of_its_clock() -> None:
    def on_rank(comm: Collectives) -> list[tuple[float, int]]:
        with Tracker(clock=comm.transport.now) as tracker:
            spend(1.0)
            kept = torch.zeros(4)
            spend(1.0)
            passing = torch.zeros(2)
            spend(1.0)
            del passing
            spend(1.0)
            kept.add_(1)
        return [(sample.time, sample.total) for sample in tracker.samples]

    # A storage is gone when it was let go, not when the next operation comes.
    assert launch(on_rank, ranks=2, world="lockstep", timeout=30)[0] == [(1.0, 16), (2.0, 24), (3.0, 16)]


def test_a_storage_emptied_behind_the_dispatcher_was_so_before_the_rank_waited() -> None:
    def on_rank(comm: Collectives) -> list[tuple[float, int]]:
        with Tracker(clock=comm.transport.now) as tracker:
            whole, other = torch.zeros(4), torch.zeros(1)
            whole.untyped_storage().resize_(0)
            # Seen once with another size, a storage is read again after each operation.
            tracker.now()
            whole.untyped_storage().resize_(16)
            spend(1.0)
            other.add_(1)
            whole.untyped_storage().resize_(0)
            spend(1.0)
            other.add_(1)
        return [(sample.time, sample.total) for sample in tracker.samples]

    assert launch(on_rank, ranks=2, world="lockstep", timeout=30)[0][-1] == (1.0, 4)


def test_without_a_clock_samples_have_no_time() -> None:
    with Tracker() as tracker:
        torch.zeros(4).add_(1)
    assert tracker.samples and {sample.time for sample in tracker.samples} == {0.0}


def test_storages_that_outlive_a_failed_launch_are_let_go_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    def on_rank(comm: Collectives) -> None:
        with Tracker(clock=comm.transport.now):
            kept = torch.zeros(4)
            comm.all_reduce(kept)
            if comm.rank:
                raise ValueError("on purpose")
            comm.all_reduce(kept)

    with pytest.raises(RuntimeError, match="on purpose"):
        launch(on_rank, ranks=2, world="lockstep", timeout=30)
    assert "Exception ignored" not in capfd.readouterr().err


def test_samples_by_time_are_the_same_changes_in_the_order_of_the_clock() -> None:
    # A lane's temporary buffer: late in the order of operations, early on the clock.
    samples = [
        Sample(1, "", {"activations": 10}, 0.0),
        Sample(2, "", {"activations": 30}, 2.0),
        Sample(3, "", {"activations": 30, "communication_buffers": 5}, 1.0),
        Sample(4, "", {"activations": 30}, 1.5),
    ]
    course = by_time(samples)
    assert [(sample.time, sample.total) for sample in course] == [(0.0, 10), (1.0, 15), (1.5, 10), (2.0, 30)]
