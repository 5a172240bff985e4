"""Prices of operations and collectives: right by hand, the same by two ways, never against common sense."""

from itertools import pairwise

import pytest
import torch
from cover import nightly
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab.apps.cost import GPUS, Machine, Network, Rate, calibrate, calibration, find_gpu, machine_of
from zerolab.apps.cost.machine import Operation, operation_of
from zerolab.apps.plan import Shape
from zerolab.apps.plan.layout import layout_of
from zerolab.apps.plan.timing import predict_step
from zerolab.collectives import Link
from zerolab.collectives.cost import RINGS
from zerolab.collectives.ring import LocalCollectives
from zerolab.errors import InputError
from zerolab.models import config_of
from zerolab.ranks import launch
from zerolab.run import RunSpec

NVLINK, ETHERNET = Link(2400, 3), Link(100, 10)
NAMES = tuple(RINGS)


def one_of_each(comm):
    """Each ring collective over 12 elements, as long as the clock of a rank says that it takes."""
    whole, shard = torch.zeros(12), torch.zeros(12 // comm.size)
    calls = {
        "all_reduce": lambda: comm.all_reduce(whole),
        "reduce_scatter": lambda: comm.reduce_scatter(whole, out=shard),
        "all_gather": lambda: comm.all_gather(shard, out=whole),
        "barrier": comm.barrier,
    }
    found = {}
    for name, call in calls.items():
        start = comm.transport.now()
        call()
        found[name] = comm.transport.now() - start
    return found


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_price_of_a_ring_is_what_the_lockstep_clock_says(ranks):
    link = Link(0.001, 50)
    for found in launch(one_of_each, ranks=ranks, world="lockstep", collectives="ring", link=link):
        for name, seconds in found.items():
            assert Network(link).ring_seconds(name, 12, 4, ranks) == pytest.approx(seconds, rel=1e-12), name


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    numel=st.integers(1, 10**9),
    itemsize=st.sampled_from([2, 4]),
    size=st.integers(1, 64),
    algorithm=st.sampled_from(["ring", "hierarchical", "best"]),
)
def test_on_one_node_every_way_is_the_ring(name, numel, itemsize, size, algorithm):
    two = Network(NVLINK, ETHERNET, node_size=64, algorithm=algorithm)
    assert two.ring_seconds(name, numel, itemsize, size) == NVLINK.ring_seconds(name, numel, itemsize, size)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    numel=st.integers(64, 10**9),
    size=st.integers(9, 1024),
    algorithm=st.sampled_from(["ring", "hierarchical", "best"]),
    gbit=st.floats(1, 400),
)
def test_time_falls_with_bandwidth_and_with_cards_and_rises_with_bytes(name, numel, size, algorithm, gbit):
    def seconds(numel=numel, gbit=gbit, cards=1):
        network = Network(NVLINK, Link(gbit, 10), node_size=8, cards=cards, algorithm=algorithm)
        return network.ring_seconds(name, numel, 2, size)

    assert seconds(gbit=2 * gbit) <= seconds() and seconds(cards=4) <= seconds() <= seconds(numel=2 * numel)
    assert seconds() > 0


def test_rings_and_hierarchies_by_hand():
    """16 ranks on 2 nodes, chunks of 1 MB: 15 of them pass 100 Gbit/s (80 us each) and 14 + 1 links; or 1 passes an
    eighth of it (640 us), and 7 steps of 2 chunks pass 2400 Gbit/s (6.67 us)."""
    ring = Network(NVLINK, ETHERNET, node_size=8)
    assert ring.ring_seconds("all_gather", 16 * 10**6, 1, 16) == pytest.approx(15 * 80e-6 + 14 * 3e-6 + 10e-6)
    hierarchy = Network(NVLINK, ETHERNET, node_size=8, algorithm="hierarchical")
    by_hand = (640e-6 + 10e-6) + 7 * (2e6 * 8 / 2.4e12 + 3e-6)
    assert hierarchy.ring_seconds("reduce_scatter", 16 * 10**6, 1, 16) == pytest.approx(by_hand)
    for network in (ring, hierarchy):
        once = network.ring_seconds("all_gather", 16 * 10**6, 1, 16)
        assert network.ring_seconds("all_reduce", 16 * 10**6, 1, 16) == pytest.approx(2 * once)
        assert network.ring_seconds("broadcast", 16 * 10**6, 1, 16) == pytest.approx(2 * once)
    best = Network(NVLINK, ETHERNET, node_size=8, algorithm="best")
    assert best.ring_seconds("all_gather", 16 * 10**6, 1, 16) == pytest.approx(by_hand)
    many = [Network(NVLINK, ETHERNET, 8, 8, way).ring_seconds("all_gather", 1024, 1, 1024) for way in ("ring", "best")]
    assert many[0] > 3 * many[1], "short messages: a ring of 1024 waits for each link, a hierarchy for few"


def test_an_operation_takes_the_longer_of_arithmetic_and_memory_and_its_launch():
    machine = Machine("by hand", {("matmul", 4): Rate(((1, 1e9),))}, Rate(((1, 1e8),)), overhead=0.25)
    assert machine.seconds(Operation("matmul", flop=2 * 10**9, nbytes=10**8)) == pytest.approx(2.25)
    assert machine.seconds(Operation("matmul", flop=10**8, nbytes=3 * 10**8)) == pytest.approx(3.25)
    assert machine.seconds(Operation("memory", flop=0, nbytes=10**8)) == pytest.approx(1.25)


def test_operations_are_what_torch_does():
    a, b = torch.empty(3, 4), torch.empty(4, 5)
    found = operation_of(torch.ops.aten.mm.default, (a, b), {}, torch.empty(3, 5))
    assert found == Operation("matmul", 2 * 3 * 4 * 5, 4 * (12 + 20 + 15), 4)
    assert operation_of(torch.ops.aten.t.default, (a,), {}, a.t()) is None
    assert operation_of(torch.ops.aten.gelu.default, (a,), {}, a) == Operation("math", 0, 96, 4)
    assert operation_of(torch.ops.aten.gelu.default, (a,), {"approximate": "tanh"}, a) == Operation("tanh", 0, 96, 4)
    q = torch.empty(2, 3, 8, 4)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    dense = operation_of(flash.default, (q, q, q), {}, q)
    assert dense is not None and dense.kind == "attention" and dense.flop == 2 * 2 * (2 * 3 * 8 * 8 * 4)
    causal = operation_of(flash.default, (q, q, q, 0.0, True), {}, q)
    back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    backward = operation_of(back.default, (q, q, q, q, q, torch.empty(2, 3, 8), 0.0, True), {}, (q, q, q))
    assert causal is not None and backward is not None
    assert causal.flop * 2 == dense.flop and backward.flop * 2 == causal.flop * 5


def test_a_measured_rate_goes_through_its_points_and_more_takes_longer():
    rate = Rate(((1e3, 1e6), (1e5, 4e6), (1e7, 2e6)))
    assert [rate.seconds(amount) for amount in (1e3, 1e5, 1e7)] == pytest.approx([1e-3, 0.025, 5.0])
    assert rate.seconds(10) == pytest.approx(1e-5) and rate.seconds(1e8) == pytest.approx(50) and rate.seconds(0) == 0
    times = [rate.seconds(10 ** (power / 4)) for power in range(40)]
    assert all(one < other for one, other in pairwise(times))


def test_the_table_of_gpus_has_units_that_make_sense():
    a100, h100 = find_gpu("a100 80gb"), find_gpu("H100")
    machine = machine_of(a100, efficiency=0.5)
    assert machine.seconds(Operation("matmul", 156 * 10**12, 1, 2)) == pytest.approx(1, rel=1e-4)
    assert machine.peak[2] == 312e12
    assert machine_of(h100).seconds(Operation("memory", 0, 10**12)) == pytest.approx(1e12 / (0.8 * 3.35e12), rel=1e-3)
    for gpu in GPUS.values():
        assert gpu.fp32_tflop_per_s < gpu.tflop_per_s and gpu.memory_gbyte_per_s > gpu.link_gbyte_per_s
        assert gpu.link_gbyte_per_s >= gpu.host_gbyte_per_s and 0 < gpu.efficiency <= 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Network(NVLINK, ETHERNET), "node_size"),
        (lambda: Network(NVLINK, node_size=8), "between"),
        (lambda: Network(NVLINK, ETHERNET, node_size=0), "node_size"),
        (lambda: Network(NVLINK, ETHERNET, 8, cards=0), "cards"),
        (lambda: Network(NVLINK, ETHERNET, 8, algorithm="tree"), "'tree'; choose"),
        (lambda: Rate(()), "points"),
        (lambda: Rate(((2, 1), (1, 1)))  , "rising"),
        (lambda: machine_of(find_gpu("T4"), efficiency=1.5), "1.5"),
        (lambda: find_gpu("A1000"), "no GPU 'A1000'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_a_sentence(make, said):
    with pytest.raises(InputError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


def seconds_by_hand():
    """What a machine of 10 GFLOP/s and 1 GB/s (0.25 GB/s of tanh) would measure, each call 1 us, of two ranks."""
    found = {kind: [amount / 1e9 + 1e-6 for amount in amounts] for kind, amounts in calibration.AMOUNTS.items()}
    for kind in ("matmul", "matmul16", "attention"):
        found[kind] = [amount / 1e10 + 1e-6 for amount in calibration.AMOUNTS[kind]]
    found["tanh"] = [amount / 2.5e8 + 1e-6 for amount in calibration.AMOUNTS["tanh"]]
    found |= {"call": [1e-6], "overhead": [5e-6]}
    for name in calibration.COLLECTIVES:
        found[name] = [1e-4 + 4 * numel / 1e9 for numel in calibration.WHOLES]
    return found


def test_calibration_finds_the_figures_of_a_machine_by_hand():
    machine = calibration.machine_from(seconds_by_hand(), 2)
    assert machine.seconds(Operation("matmul", 10**10, 0)) == pytest.approx(1 + 5e-6)
    assert machine.seconds(Operation("attention", 10**10, 0)) == pytest.approx(1 + 5e-6)
    assert machine.seconds(Operation("math", 0, 10**6)) == pytest.approx(1e-3 + 5e-6)
    assert machine.seconds(Operation("tanh", 0, 10**6)) == pytest.approx(4e-3 + 5e-6)
    assert machine.seconds(Operation("memory", 0, 10**6)) == pytest.approx(1e-3 + 5e-6)
    for name in calibration.COLLECTIVES:
        assert machine.local_seconds(name, 10**6) == pytest.approx(1e-4 + 1e-3, rel=1e-6)
    assert machine.local_seconds("barrier", 16) == 0
    assert machine.per_unit_overhead == pytest.approx(calibration.ENGINE_CALLS * 1e-6)
    assert machine.host == pytest.approx(5e8) and machine.host_step == pytest.approx(1e9)
    assert machine.disk == float("inf"), "nobody named a disk"


def test_ranks_that_share_a_core_take_turns_and_a_disk_has_no_core():
    measured = seconds_by_hand() | {"disk": [0.5]}
    alone, shared = (calibration.machine_from(measured | {"turns": [turns]}, 4) for turns in (1.0, 2.0))
    for one in (Operation("matmul", 10**10, 0), Operation("math", 0, 10**6), Operation("optimizer", 0, 10**8)):
        assert shared.seconds(one) == pytest.approx(2 * alone.seconds(one))
    assert shared.local_seconds("all_gather", 10**6) == pytest.approx(2 * alone.local_seconds("all_gather", 10**6))
    assert shared.host == pytest.approx(alone.host / 2) and shared.per_unit_overhead == 2 * alone.per_unit_overhead
    assert shared.disk == alone.disk == calibration.DISK / 0.5


def test_a_processor_that_carries_messages_does_not_compute_meanwhile():
    """Reductions beside backward take their share of the processor, however quick the wire is."""
    run = RunSpec(Shape(config_of("llama", "nano"), "nano"), ranks=4, stage=2, precision=None)
    machine = Machine("", {("matmul", 4): Rate(((1, 1e9),))}, Rate(((1, 1e9),)))
    carries = machine.at(collective={"reduce_scatter": (0.5, 0.0)})
    quick = Link(1e6)
    more = predict_step(run, carries, quick).seconds - predict_step(run, machine, quick).seconds
    assert more == pytest.approx(0.5 * len(layout_of(run).plans), rel=1e-6)


def test_calibration_takes_a_disturbed_figure_for_the_next_one():
    figures = seconds_by_hand()
    disturbed = [*figures["math"][:1], 9 * figures["math"][2], *figures["math"][2:]]
    as_next = [*figures["math"][:1], figures["math"][2], *figures["math"][2:]]
    one, other = (calibration.machine_from(figures | {"math": math}, 2) for math in (disturbed, as_next))
    assert one == other


def test_amounts_of_a_calibration_are_those_of_the_operations_that_it_times():
    """By what `operation_of` counts of each call, as it counts those of a step."""
    for kind, shares in (("matmul", 3), ("attention", 1), ("math", 1), ("tanh", 1), ("memory", 1)):
        amount, make = calibration.CALLS[kind][0]
        operations = [one for one in bytes_of(make()) if one.kind == kind]
        assert operations and all(one.kind == kind for one in operations)
        assert sum(one.flop or one.nbytes for one in operations) == shares * amount, kind


def test_figures_are_medians_of_tries_and_half_of_these_are_within_the_spread(monkeypatch):
    tries = [
        {**seconds_by_hand(), **{kind: [share] for kind in calibration.CALLS}} for share in (1.0, 9.0, 0.8, 1.2, 1.0)
    ]
    coming = iter(tries)
    monkeypatch.setattr(calibration, "measure_once", lambda *_: next(coming))
    found = calibration.measure(LocalCollectives())
    assert found["tanh"] == pytest.approx([1.0]) and found["spread"] == pytest.approx([0.1])
    machine = calibration.machine_from(seconds_by_hand() | {"spread": found["spread"], "turns": [2.0]}, 4)
    assert machine.spread == pytest.approx(0.1), "a share, which turns do not change"


def test_each_buffer_of_a_figure_is_used_in_turn_and_all_together_are_more_than_a_cache_holds():
    seen = []
    for width in (1024, 2**22):
        call = calibration.make_turns(lambda *parts: seen.append([part.data_ptr() for part in parts]), width)
        for _ in range(65):
            call()
    few, many = seen[65:], seen[:65]
    assert many[0] == many[64] and len({part for one in many for part in one}) == 64 * 3
    assert len({one[0] for one in few}) == 1 and few[0][2] - few[0][0] == 2 * 4 * 2**22
    assert calibration.cold_memory().nbytes >= 48 * 2**20


@nightly("a calibration that takes its time")
@pytest.mark.ranks
def test_this_machine_is_calibrated_to_figures_that_make_sense(tmp_path):
    machine = calibrate(ranks=1, disk=tmp_path)
    assert 0 < machine.spread < 5
    assert 1e6 < machine.disk < 1e12 and not list(tmp_path.iterdir())
    assert 1e6 < machine.host < 1e12 and 1e6 < machine.host_step < 1e12
    assert machine.collective == {} and 0 < machine.overhead < 1
    for amounts in ((10**6, 10**8), (10**8, 10**10)):
        less, more = (machine.seconds(Operation("matmul", amount, 0)) for amount in amounts)
        assert 0 < less < more
    with pytest.raises(InputError, match="ranks is 0"):
        calibrate(ranks=0)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_nodes_with_more_cards_send_so_much_faster_until_the_links_inside_bind(algorithm: str) -> None:
    def seconds(cards: int, inside: float = 1e9) -> float:
        network = Network(Link(inside), Link(100), node_size=8, cards=cards, algorithm=algorithm)
        return network.ring_seconds("all_gather", 10**9, 2, 64)

    assert seconds(1) == pytest.approx(8 * seconds(8), rel=1e-3)
    assert seconds(8, inside=400) > 1.5 * seconds(8)


def bytes_of(call):
    """What the operations of a call read and write."""
    found = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            found.append(operation_of(func, args, kwargs or {}, result))
            return result

    with Noting():
        call()
    return [operation for operation in found if operation is not None]


def test_what_is_changed_in_place_is_read_and_written_and_what_is_filled_only_written():
    one, other, table = torch.zeros(25), torch.ones(25), torch.zeros(1000, 5)
    chosen = torch.tensor([1, 2])
    for call, nbytes in (
        (lambda: one.add_(other), 300),
        (lambda: one.copy_(other), 200),
        (lambda: one.zero_(), 100),
        (lambda: torch.add(one, one, out=other), 300),
        (lambda: torch._foreach_mul_([one, other], 2.0), 400),
        (lambda: torch.nn.functional.embedding(chosen, table), 16 + 2 * 40),
    ):
        assert [operation.nbytes for operation in bytes_of(call)] == [nbytes]


def test_a_fused_step_is_priced_by_all_that_it_moves_and_as_the_planner_prices_it():
    """It gives nothing back: parameters and two moments read and written, gradients read, 7 numbers of 4 bytes."""
    parameter = torch.zeros(1000, requires_grad=True)
    parameter.grad = torch.ones(1000)
    adamw = torch.optim.AdamW([parameter], fused=True)
    adamw.step()
    (step,) = (operation for operation in bytes_of(adamw.step) if operation.kind == "optimizer")
    assert step.nbytes == 28_000 + 4, "and its counter"
    shape = Shape(config_of("llama", "nano"), "nano")
    run = RunSpec(shape, ranks=1, stage=0, precision=None)
    numel = sum(plan.layout.numel for plan in layout_of(run).plans)
    slow = Machine("", {("matmul", 4): Rate(((1, 1e30),))}, Rate(((1, 1e30),)), optimizer=Rate(((1, 28.0),)))
    assert slow.seconds(step) == pytest.approx(step.nbytes / 28)
    assert predict_step(run, slow, None, clips=False).seconds == pytest.approx(numel)


def test_who_does_not_clip_reads_no_gradients_for_it():
    run = RunSpec(Shape(config_of("llama", "nano"), "nano"), ranks=1, stage=0, precision=None)
    slow = Machine("", {("matmul", 4): Rate(((1, 1e30),))}, Rate(((1, 1e9),)))
    clipped, plain = (predict_step(run, slow, None, clips=clips).seconds for clips in (True, False))
    numel = sum(plan.layout.numel for plan in layout_of(run).plans)
    assert clipped - plain == pytest.approx((4 + 8) * numel / 1e9), "read for the norm, read and written once more"
