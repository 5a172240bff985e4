"""A step's predicted time: what it is made of, what it waits for, and what makes it longer or shorter."""

import json

import pytest
import torch
from cover import NIGHTLY

from zerolab.apps.cli.plan import main
from zerolab.apps.cost import Machine, Rate, find_gpu, machine_of
from zerolab.apps.cost.machine import operation_of
from zerolab.apps.plan import Shape
from zerolab.apps.plan.guide import traffic
from zerolab.apps.plan.mixture import build_model
from zerolab.apps.plan.timing import model_flop, network_of, predict_step
from zerolab.collectives import Link
from zerolab.collectives.cost import RINGS
from zerolab.course.measure import decay_of_train
from zerolab.errors import InputError
from zerolab.models import config_of
from zerolab.ranks import SimulatedCompute, launch
from zerolab.run import RunSpec
from zerolab.zero import ZeroEngine

TINY = Shape(config_of("llama", "tiny"), "llama tiny")
RUN = RunSpec(TINY, ranks=4, stage=3, seq_len=64, precision=None)
CPU = Machine("a slow core", {("matmul", 4): Rate(((1, 1e11),))}, Rate(((1, 1e10),)), overhead=5e-6)
FREE = Machine("no time", {("matmul", 4): Rate(((1, 1e30),))}, Rate(((1, 1e30),)))


def at(stage, **changes):
    return RUN.but(stage=stage, **changes)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_wire_is_busy_as_long_as_the_ledger_of_traffic_says(stage, micro_batches):
    """Without latency a ring's time is its bytes; the two ledgers count the same collectives by different ways."""
    run = at(stage, micro_batches=micro_batches)
    step = predict_step(run, FREE, Link(1.0))
    sent = sum(sum(calls.values()) for calls in traffic(run).values())
    assert step.communication == pytest.approx(sent * 8 / 1e9, rel=1e-3)
    assert step.seconds == pytest.approx(step.communication, rel=1e-3), "nothing to compute: all of it is waiting"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_time_is_what_it_was_spent_on_and_never_below_a_lane(stage):
    for gbit in (0.1, 1, 10, 1000):
        step = predict_step(at(stage, micro_batches=2), CPU, Link(gbit, 20))
        assert step.seconds == pytest.approx(sum(step.time_breakdown.values()))
        assert step.communication <= step.seconds + 1e-12 and step.time_breakdown["compute"] <= step.seconds
        assert 0 <= step.exposed <= step.communication + 1e-12


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_more_bandwidth_less_latency_and_fewer_tokens_are_never_slower(stage):
    def seconds(gbit=100.0, latency=20.0, machine=CPU, **changes):
        return predict_step(at(stage, **changes), machine, Link(gbit, latency)).seconds

    assert seconds(gbit=400) < seconds() < seconds(gbit=1) and seconds(latency=0) < seconds() < seconds(seq_len=128)
    assert seconds(checkpoint_activations=True) > seconds()
    assert seconds(machine=CPU.at(memory=Rate(((1, 5e9),)))) > seconds()


def test_overlap_hides_reductions_and_prefetch_hides_gathers():
    link = Link(2.0, 20)
    at_once = predict_step(at(2), CPU, link), predict_step(RUN, CPU, link)
    one_by_one = predict_step(at(2), CPU, link, overlap=False), predict_step(at(3, prefetch=False), CPU, link)
    for what, beside, after in zip(("reduce", "gather"), at_once, one_by_one, strict=True):
        assert beside.time_breakdown[what] < after.time_breakdown[what]


def test_one_rank_waits_for_nobody_and_prices_no_collective():
    step = predict_step(at(3, ranks=1), CPU, Link(0.001, 1e6))
    assert step.communication == step.exposed == 0 and step.seconds > 0


def test_states_elsewhere_take_time_by_their_tier():
    host = CPU.at(host=1e9, disk=2e8, host_step=1e9)
    on_host = predict_step(at(2, offload="optimizer"), host, Link(10))
    slower = predict_step(at(2, offload="optimizer"), host.at(host=1e8), Link(10))
    assert predict_step(at(2), host, Link(10)).time_breakdown.get("offload", 0) == 0
    both = predict_step(at(3, offload="optimizer and parameters"), host, Link(10))
    far = predict_step(at(3, offload="optimizer and parameters"), host.at(host=1e8), Link(10))
    times = [step.time_breakdown["offload"] for step in (on_host, slower, both, far)]
    assert 0 < times[0] < times[1] and times[3] - times[2] > times[1] - times[0]


def test_accumulation_without_reduction_saves_wire_and_many_micro_batches_are_as_long_as_each():
    each, deferred = (
        predict_step(at(2, micro_batches=4, defer_reduction=not way), CPU, Link(1)) for way in (True, False)
    )
    assert deferred.communication < each.communication
    few, many = (predict_step(at(3, micro_batches=m), CPU, Link(1)).seconds for m in (3, 10))
    one_more = predict_step(at(3, micro_batches=4), CPU, Link(1)).seconds - few
    assert many == pytest.approx(few + 7 * one_more, rel=1e-9)


def test_flop_and_utilization_by_hand():
    machine = machine_of(find_gpu("A100 80GB"))
    run = RUN.but(precision="bf16", micro_batch_size=2)
    tokens = 2 * 64
    by_hand = tokens * (6 * TINY.parameters + 12 * TINY.config.layers * TINY.config.dim * 64)
    step = predict_step(run, machine, network_of(find_gpu("A100 80GB"), 4))
    assert model_flop(run) == by_hand
    assert step.mfu == pytest.approx(by_hand / step.seconds / 312e12)
    assert step.tokens_per_s == pytest.approx(4 * tokens / step.seconds)


def test_stage_3_collapses_at_small_batch_on_many_gpus():
    """What a GPU has to compute stays, what a ring has to wait for grows with N."""
    gpu = find_gpu("V100 32GB")
    run = RunSpec(
        Shape(config_of("gpt2", "1558m"), "1.5B"),
        ranks=8,
        stage=3,
        precision="fp16",
        micro_batch_size=1,
        seq_len=128,
    )

    def mfu(ranks, batch):
        one = run.but(ranks=ranks, micro_batch_size=batch)
        found = predict_step(one, machine_of(gpu), network_of(gpu, ranks, gbit_per_s=100, cards=1)).mfu
        assert found is not None
        return found

    assert mfu(1024, 1) < 0.25 * mfu(8, 1) and mfu(1024, 1) < 0.1 * mfu(1024, 32)


def test_plan_tells_time_by_stage_and_to_programs(tmp_path, capsys):
    path = tmp_path / "plan.json"
    command = ["--model", "llama tiny", "--ranks", "16", "--gpu", "A100 80GB", "--seq-len", "64", "--json", str(path)]
    assert main([*command, "--link-gbit-per-s", "1", "--node-size", "4", "--cards", "1"]) == 0
    said = capsys.readouterr().out
    assert "a step on 16 A100 80GB, predicted" in said and "1 x 0.8 between nodes of 4" in said
    time = json.loads(path.read_text())["time"]
    assert list(time["by_stage"]) == ["0", "1", "2", "3"] and time["network"]["node_size"] == 4
    run = RunSpec(TINY, ranks=16, stage=3, precision="bf16", micro_batch_size=1, seq_len=64, on_gpus=True)
    gpu = find_gpu("A100 80GB")
    step = predict_step(run, machine_of(gpu), network_of(gpu, 16, 4, 1.0, cards=1))
    assert time["by_stage"]["3"]["seconds"] == pytest.approx(step.seconds)
    assert time["by_stage"]["3"]["exposed_communication"] == pytest.approx(step.exposed)


def test_flags_of_time_need_a_gpu():
    with pytest.raises(InputError, match="--node-size is given and no GPU"):
        main(["--model", "llama tiny", "--node-size", "4"])
    with pytest.raises(InputError, match="--node-size is '0'"):
        main(["--model", "llama tiny", "--gpu", "T4", "--node-size", "0"])


def second_step(comm, run, machine):
    """Seconds of the second step of a real engine, by the clock of its world."""
    engine = ZeroEngine(
        build_model(run.shape.config, False), comm, run.stage, 1e-3, clip_norm=1.0, groups=decay_of_train
    )
    ends = []
    pace = SimulatedCompute(comm, 1.0, 1.0)
    pace.seconds = lambda *call: machine.seconds(found) if (found := operation_of(*call)) else 0.0
    with pace:
        for _ in range(2):
            for _ in range(run.micro_batches):
                tokens, targets = (part.clone() for part in torch.zeros(2, 1, run.seq_len, dtype=torch.int64))
                engine.backward(engine(tokens, targets) / run.micro_batches)
            engine.step()
            engine.synchronize()
            ends.append(comm.transport.now())
    return ends[1] - ends[0]


@pytest.mark.ranks
@pytest.mark.parametrize("stage", [0, 1, 2, 3] if NIGHTLY else [2, 3])
def test_quick_prediction_is_the_clock_of_the_real_engine_in_a_virtual_world(stage):
    """Within 3 %: the optimizer's kernel is priced by what it moves here, there by its arguments, each once."""
    machine = CPU.at(memory=Rate(((1, 1e12),)), overhead=0.0)
    # Of stages 0 to 2, of which the wire does as much, one is bound by it.
    gbit, micro_batches = (0.5, 1) if stage in (1, 3) else (5, 2)
    run, link = at(stage, ranks=8, micro_batches=micro_batches), Link(gbit, 20)
    [real] = launch(second_step, run, machine, ranks=8, world="virtual", link=link)
    assert predict_step(run, machine, link).seconds == pytest.approx(real, rel=0.03)


def test_every_collective_of_a_step_has_a_price():
    assert {"all_reduce", "reduce_scatter", "all_gather"} <= RINGS.keys()


def test_without_a_link_collectives_take_what_the_machine_says_of_them():
    calls = {"reduce_scatter": (1e-3, 0.0), "all_gather": (1e-3, 0.0)}
    free, slow = predict_step(at(2), CPU, None), predict_step(at(2), CPU.at(collective=calls), None)
    assert free.communication == 0 and slow.communication == pytest.approx(round(1e3 * slow.communication) * 1e-3)
    assert slow.communication >= 2e-3 and slow.seconds > free.seconds
    by_bytes = {name: (0.0, 1e-9) for name in calls}
    assert predict_step(at(2), CPU.at(collective=by_bytes), None).communication > 0
