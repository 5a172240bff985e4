"""A virtual world: one rank of many, on tensors without values; its sizes, traffic and time are those of a real one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from zerolab.collectives import Collectives, Link
from zerolab.errors import InputError
from zerolab.memory import Tracker
from zerolab.models import build
from zerolab.ranks import Pace, RankFailure, launch
from zerolab.zero import ZeroEngine
from zerolab.zero.labels import engine_labels

LINK = Link(gbit_per_s=1, latency_us=5)


def virtual(fn: Callable[..., Any], ranks: int = 4, **options: Any) -> Any:
    return launch(fn, ranks=ranks, world="virtual", **options)[0]


def trained(comm: Collectives, stage: int, name: str = "llama", micro_batches: int = 1, **options: Any) -> Any:
    """What the second step of a training takes on a rank."""
    torch.manual_seed(0)
    model = build(name, "nano", checkpoint=options.pop("checkpoint", False))
    engine = ZeroEngine(model, comm, stage, 1e-3, **options)

    def step() -> None:
        for _ in range(micro_batches):
            tokens, targets = (part.clone() for part in torch.randint(0, 256, (2, 2, 16)))
            engine.backward(engine(tokens, targets) / micro_batches)
        engine.step()
        engine.synchronize()

    step()
    assert comm.meter is not None
    comm.meter.reset()
    with Tracker(engine_labels(engine)) as tracker:
        step()
    kept = tracker.now() | engine.disk_bytes()
    engine.close()
    return {
        "peak": (tracker.peak, tracker.peak_phase),
        "kept": kept,
        "traffic": dict(comm.meter.bytes),
        "calls": dict(comm.meter.calls),
        "seconds": pytest.approx(comm.transport.now(), rel=1e-9),
    }


def paced(comm: Collectives, stage: int) -> float:
    """Seconds of the second of two steps in which operations take time, too."""
    torch.manual_seed(0)
    engine = ZeroEngine(build("llama", "nano"), comm, stage, 1e-3)
    ends = []
    with Pace(comm, gflop_per_s=50, gbyte_per_s=20):
        for _ in range(2):
            tokens, targets = (part.clone() for part in torch.randint(0, 256, (2, 2, 16)))
            engine.backward(engine(tokens, targets))
            engine.step()
            ends.append(comm.transport.now())
    return ends[1] - ends[0]


@pytest.mark.parametrize("stage", [0, 3])
def test_operations_take_as_long_as_in_lockstep_but_for_the_additions_inside_collectives(stage: int) -> None:
    (_, lockstep) = launch(paced, stage, ranks=2, world="lockstep", link=LINK)
    assert 0.98 * lockstep < virtual(partial(paced, stage=stage), 2, link=LINK) <= lockstep


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_memory_by_kind_traffic_by_phase_and_the_clock_are_locksteps(ranks: int) -> None:
    for stage in range(4):
        kwargs = {"stage": stage, "clip_norm": 1.0}
        lockstep = launch(trained, ranks=ranks, world="lockstep", link=LINK, kwargs=kwargs)[0]
        assert virtual(trained, ranks, link=LINK, kwargs=kwargs) == lockstep, f"stage {stage}"


def test_a_value_that_is_read_is_refused_by_line() -> None:
    def reads(comm: Collectives) -> float:
        return comm.all_reduce(torch.ones(3)).sum().item()

    with pytest.raises(RankFailure, match=r"reads, line \d+, reads a value of a tensor, .*sum\(\)\.item\(\); leave it"):
        virtual(reads)


def test_a_model_in_memory_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(
        RankFailure, match=r"a parameter of shape \(2, 2\) came with .*; build the model inside the rank"
    ):
        virtual(lambda comm: ZeroEngine(model, comm, 0, 1e-3))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"ranks": 100_000}, "ranks is 100000; give a whole number from 1 to 65536"),
        ({"only": [4]}, r"only is \[4\]; name the ranks to run, each once, from 0 to 3"),
        ({"only": [1, 1]}, r"only is \[1, 1\]; name the ranks"),
        ({"world": "lockstep", "only": [1]}, "all ranks run with world='lockstep'; leave it out"),
        ({"collectives": "ring"}, 'collectives="ring": the ranks of a virtual world have no messages'),
    ],
)
def test_what_a_virtual_world_has_not_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        launch(lambda comm: None, **{"ranks": 4, "world": "virtual", **options})


def test_a_message_to_a_rank_that_is_not_run_is_refused() -> None:
    with pytest.raises(RankFailure, match=r"rank 0 would send to rank 1, which is not run in this virtual"):
        virtual(lambda comm: comm.send(torch.ones(2), 1))


def test_chosen_ranks_send_each_other_messages() -> None:
    def pass_on(comm: Collectives) -> float:
        if comm.rank == 3:
            comm.send(torch.ones(250), 7)
        else:
            comm.recv(torch.empty(250), 3)
        return comm.transport.now()

    # 1000 bytes at 1 Gbit/s take 8 us, and the latency is 5.
    seconds = launch(pass_on, ranks=8, world="virtual", only=[7, 3], link=LINK)
    assert seconds == pytest.approx([13e-6, 13e-6])


def test_a_tensor_without_values_is_not_given_back() -> None:
    with pytest.raises(RankFailure, match=r"rank 0 returned a tensor of shape \(3,\), which has no values"):
        virtual(lambda comm: {"sum": comm.all_reduce(torch.ones(3))})


def test_groups_are_made_by_a_function_of_the_rank() -> None:
    def regrouped(comm: Collectives) -> Any:
        inside = comm.split(lambda rank: rank // 8, name="node")
        across = comm.split(lambda rank: rank % 8, name="replicas")
        odd = comm.subgroup([1, 3])
        assert inside is not None and across is not None and comm.meter is not None
        inside.all_reduce(torch.ones(8))
        across.all_reduce(torch.ones(128))
        return inside.ranks, across.ranks[:3], across.size, odd, comm.meter.bytes_by_group()

    inside, across, size, odd, sent = launch(regrouped, ranks=1024, world="virtual", only=[9])[0]
    assert (inside, across, size, odd) == (tuple(range(8, 16)), (1, 9, 17), 128, None)
    assert sent == {"node": 2 * 7 * 4, "replicas": 2 * 127 * 4}


def test_a_colour_that_others_would_have_to_say_is_refused() -> None:
    with pytest.raises(RankFailure, match=r"others of a virtual world do not answer; give it a function of a rank"):
        virtual(lambda comm: comm.split(comm.rank // 2))


def test_tensors_that_come_along_have_the_memory_that_they_have_in_lockstep() -> None:
    text = torch.arange(100, dtype=torch.uint8)

    def measured(comm: Collectives, first: torch.Tensor, rest: torch.Tensor) -> Any:
        with Tracker() as tracker:
            kept = first[3:], rest + 1
        return tracker.now(), [part.shape for part in kept]

    both = [launch(measured, text[:60], text[60:], ranks=2, world=world)[0] for world in ("lockstep", "virtual")]
    assert both[0] == both[1]
