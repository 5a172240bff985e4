"""What an engine cannot use it refuses in one sentence, before it has moved a parameter or sent a byte."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import InputError, MismatchError, StateError
from zerolab.offload import Offload
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, find_units
from zerolab.zero.table import Sharding

local = LocalCollectives()


def pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def with_gradient() -> nn.Module:
    model = pair()
    model(torch.ones(1, 3)).sum().backward()
    return model


def two_parameters_in_one_memory() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    return model


def engine(model: Any = None, stage: Any = 2, **options: Any) -> ZeroEngine:
    return ZeroEngine(pair() if model is None else model, local, stage, **{"lr": 0.1, **options})


def used_twice() -> None:
    model = pair()
    engine(model)
    engine(model)


REFUSED: list[tuple[Callable[[], object], list[str]]] = [
    (lambda: engine(stage=4), ["stage 4", "0, 1, 2 or 3"]),
    (lambda: engine(stage=True), ["stage True"]),
    (lambda: engine(stage="2"), ["stage '2'"]),
    (lambda: engine(reduction="gather"), ["'gather'", "reduce_scatter, all_reduce"]),
    (lambda: engine(lr=None), ["lr is None", "exactly one"]),
    (lambda: engine(optimizer=partial(torch.optim.SGD, lr=0.1)), ["lr is 0.1", "exactly one"]),
    (lambda: engine(clip_norm=0.0), ["0.0", "above 0"]),
    (lambda: engine(clip_norm=float("nan")), ["nan"]),
    (lambda: engine(clip_norm="1"), ["'1'"]),
    (lambda: engine(clip_norm=1.0, norm_type=0.5), ["0.5", "at least 1"]),
    (lambda: engine(bucket_numel=0), ["limit is 0"]),
    (lambda: engine(align=0), ["align is 0"]),
    (lambda: engine(with_gradient()), ["0.weight", "zero_grad"]),
    (lambda: engine(two_parameters_in_one_memory()), ["1.weight and 0.weight", "same nn.Parameter"]),
    (lambda: engine(nn.ReLU()), ["ReLU", "no parameters"]),
    (lambda: engine(units=[nn.Linear(1, 1)]), ["Linear", "no part of Sequential"]),
    (lambda: engine(units=[3]), ["int", "no part of Sequential"]),
    (used_twice, ["Sequential", "close()"]),
]


@pytest.mark.parametrize(("call", "names"), REFUSED)
def test_a_bad_engine_is_refused_by_value_and_with_a_way_out(call: Callable[[], object], names: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert all(name in str(refused.value) for name in names), str(refused.value)


def test_a_refused_model_is_as_it_was_and_goes_into_the_next_engine() -> None:
    model = pair()
    places = [parameter.data_ptr() for parameter in model.parameters()]
    for options in ({"stage": 7}, {"clip_norm": -1.0}, {"align": 0}):
        with pytest.raises(InputError):
            engine(model, **options)
    for error, given in ((TypeError, {"betas": [0.9, 0.99]}), (AttributeError, 3)):
        with pytest.raises(error):
            engine(model, groups=lambda name, p, given=given: given)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    engine(model)


def test_a_closed_engine_leaves_a_plain_model_behind() -> None:
    model = pair()
    first = engine(model)
    first.close()
    model(torch.ones(1, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad()
    second = engine(model, stage=0)
    # What closes once more, as a `finally` may, takes nothing from the next engine.
    first.close()
    with pytest.raises(InputError, match="in an engine already"):
        engine(model)
    with pytest.raises(StateError, match="was closed and takes no gradients; wrap the model again"):
        first.backward(second(torch.ones(1, 3)).sum())
    second.backward(second(torch.ones(1, 3)).sum())
    second.step()


def test_a_step_before_any_backward_is_refused() -> None:
    with pytest.raises(StateError, match=r"call backward\(loss\) first"):
        engine().step()


# Units


def names(model: nn.Module, **options: Any) -> list[str]:
    return [unit.name for unit in find_units(model, 2, **options)]


def test_units_are_layers_of_lists_what_stands_beside_them_and_the_model_itself_first() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
            self.head = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 5))
            self.scale = nn.Parameter(torch.ones(()))

    expected = ["root", "embedding", "layers.0", "layers.1", "layers.2", "head.0", "head.1"]
    assert names(Model()) == expected
    model = Model()
    assert names(model, modules=[model.head, *model.layers]) == ["root", "head", *expected[2:5]]
    assert names(model, modules=[]) == ["root"]
    assert names(model, modules=[model]) == ["root"]
    assert names(model, modules=[*model.layers, model.layers[0]]) == ["root", *expected[2:5]]


def test_modules_that_share_a_parameter_are_one_unit_where_the_first_stood() -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    model[3].weight = model[1].weight
    units = find_units(model, 2)
    assert [unit.name for unit in units] == ["0", "1", "2"]
    assert [slot.name for slot in units[1].buckets[0].layout.slots] == ["1.weight", "1.bias", "3.bias"]


def test_a_unit_inside_a_unit_keeps_its_own_parameters() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    units = find_units(model, 2, modules=[model[0], model[0][1], model[1]])
    assert [[slot.name for b in unit.buckets for slot in b.layout.slots] for unit in units] == [
        ["0.0.weight", "0.0.bias"],
        ["0.1.weight", "0.1.bias"],
        ["1.weight", "1.bias"],
    ]


def test_buckets_part_dtypes_and_frozen_parameters_and_respect_their_limit() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2, dtype=torch.float64), nn.Linear(2, 2))
    model[3].requires_grad_(False)
    buckets = find_units(model, 2, modules=[model])[0].buckets
    assert [(b.dtype, b.trainable, b.layout.used) for b in buckets] == [
        (torch.float32, True, 26),
        (torch.float64, True, 6),
        (torch.float32, False, 6),
    ]
    limited = find_units(model, 2, modules=[model], sharding=Sharding(bucket_numel=12))[0].buckets
    assert [b.layout.used for b in limited if b.trainable and b.dtype == torch.float32] == [12, 12, 2]


def test_16_bit_shards_start_at_as_many_bytes_as_fp32_ones() -> None:
    for dtype, align in ((torch.float32, 16), (torch.float64, 16), (torch.bfloat16, 32)):
        (unit,) = find_units(nn.Linear(3, 4, dtype=dtype), 3)
        assert unit.buckets[0].layout.align == align


def test_an_embedding_that_rewrites_its_rows_is_refused_where_ranks_would_part() -> None:
    def build(comm: Collectives) -> str:
        try:
            ZeroEngine(nn.Sequential(nn.Embedding(5, 3, max_norm=1.0)), comm, 1, lr=0.1)
        except InputError as error:
            return str(error)
        return ""

    assert launch(build, ranks=1, world="lockstep", timeout=60) == [""]
    for said in launch(build, ranks=2, world="lockstep", timeout=60):
        assert said.startswith("0 has max_norm=1, by which a forward writes") and "summon_full_params" in said


def layers_in_another_order(comm: Collectives, stage: int) -> ZeroEngine:
    model = nn.Module()
    for name in ("first", "second") if comm.rank == 0 else ("second", "first"):
        setattr(model, name, nn.Linear(4, 4))
    return ZeroEngine(model, comm, stage, lr=0.1)


def frozen_on_a_rank(comm: Collectives, stage: int) -> ZeroEngine:
    model = pair()
    model[0].bias.requires_grad_(comm.rank == 0)
    return ZeroEngine(model, comm, stage, lr=0.1)


def optimizer_by_rank(comm: Collectives, stage: int) -> ZeroEngine:
    kind = (torch.optim.SGD, torch.optim.Adam)[comm.rank]
    return ZeroEngine(pair(), comm, stage, optimizer=partial(kind, lr=0.1))


def decay_by_rank(comm: Collectives, stage: int) -> ZeroEngine:
    return ZeroEngine(pair(), comm, stage, lr=0.1, groups=lambda name, parameter: {"weight_decay": 0.1 * comm.rank})


DIFFERENT: list[tuple[Callable[[Collectives, int], ZeroEngine], tuple[str, ...]]] = [
    (layers_in_another_order, ("first.weight", "second.weight")),
    (frozen_on_a_rank, ("0.bias", "frozen")),
    (optimizer_by_rank, ("SGD", "Adam")),
    (decay_by_rank, ("('weight_decay', 0.0)", "('weight_decay', 0.1)")),
    (lambda comm, stage: ZeroEngine(pair(), comm, stage, lr=0.1 + comm.rank), ("lr=0.1", "lr=1.1")),
    (lambda comm, stage: ZeroEngine(pair(), comm, (stage + comm.rank) % 4, lr=0.1), ("stage=0",)),
    (lambda comm, stage: ZeroEngine(nn.Linear(3, 4 + comm.rank), comm, stage, lr=0.1), ("[4, 3]", "[5, 3]")),
    (
        lambda comm, stage: ZeroEngine(pair(), comm, stage, lr=0.1, clip_norm=(None, 1.0)[comm.rank]),
        ("clip_norm=None", "clip_norm=1.0"),
    ),
]


def test_ranks_that_build_different_engines_are_told_where_they_differ() -> None:
    def told(comm: Collectives) -> list[str]:
        said = []
        for stage in (0, 3):
            for build, _ in DIFFERENT:
                with pytest.raises(MismatchError, match="the same model with the same options") as refused:
                    build(comm, stage)
                said.append(str(refused.value))
        return said

    for said in launch(told, ranks=2, world="lockstep", timeout=60):
        for text, (_, differ) in zip(said, DIFFERENT * 2, strict=True):
            assert all(words in text for words in ("rank 0", "rank 1", *differ)), text


def test_a_hook_may_read_a_gradient_before_the_engine_and_not_take_it() -> None:
    for stage in range(4):
        model = pair()
        seen = []
        model[0].bias.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad.clone()))
        model[1].bias.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        its = engine(model, stage, offload=Offload(optimizer="host"))
        with pytest.raises(StateError, match=r"a hook of 1\.bias took its gradient"):
            its.backward(its(torch.ones(2, 3)).sum())
        # One that only reads it works, as far as backward came.
        assert len(seen) <= 1


def test_forwards_of_several_threads_are_refused_at_stage_3_and_work_below() -> None:
    def run(comm: Collectives) -> list[str]:
        return [told_at(comm, stage) for stage in (2, 3)]

    def told_at(comm: Collectives, stage: int) -> str:
        model, told = pair(), ""
        its = ZeroEngine(model, comm, stage, lr=0.1)

        def another(*_: Any) -> None:
            nonlocal told
            with ThreadPoolExecutor(1) as pool:
                try:
                    pool.submit(its, torch.ones(2, 3)).result(30)
                except StateError as error:
                    told = str(error)

        hook = model[0].register_forward_pre_hook(another)
        model[0].register_forward_pre_hook(lambda *_: hook.remove(), prepend=True)
        with torch.no_grad():
            its(torch.ones(2, 3))
            its(torch.ones(2, 3))
        return told

    for below, told in launch(run, ranks=2, timeout=100):
        assert below == "" and "another thread" in told and "take turns" in told
