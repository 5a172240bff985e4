"""Models that were built on the meta device get their memory and their first values unit by unit."""

from itertools import groupby

import pytest
import torch
import zero_cases
from torch import nn

from zerolab.collectives import LocalCollectives
from zerolab.errors import InputError
from zerolab.memory import Tracker
from zerolab.models import build
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

local = LocalCollectives()


class Table(nn.Module):
    """A parameter and two buffers with a `reset_parameters` of their own; one buffer is no part of the state."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width))
        self.register_buffer("angles", torch.empty(width))
        self.register_buffer("steps", torch.empty(1, dtype=torch.int64), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.scale)
        nn.init.constant_(self.angles, 3.0)
        nn.init.constant_(self.steps, 7)

    def forward(self, x):
        return x * self.scale + self.angles


class Counter(nn.Module):
    """Buffers alone, outside every unit."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.ones_(self.seen)

    def forward(self, x):
        return x * self.seen[0]


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 32)
        self.layers = nn.ModuleList([nn.Linear(32, 32), Table(32), nn.LayerNorm(32), nn.Linear(32, 32)])
        self.counter = Counter()
        # Used twice under two names, with a bias of its own the second time.
        self.layers[3].weight = self.layers[0].weight

    def forward(self, x):
        x = self.counter(self.first(x))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def on(device, make):
    torch.manual_seed(3)
    with torch.device(device):
        return make()


def step(engine, comm, batch):
    engine.backward(engine(batch[comm.rank * 2 : comm.rank * 2 + 2]).square().mean())
    engine.step()


def trained(comm, device, stage, make, precision=None):
    """The state after two steps, beginning with seed 3 on rank 0 and with something else on the others."""
    model = on("meta", make) if device == "meta" else on("cpu", make)
    torch.manual_seed(3 + comm.rank)
    engine = ZeroEngine(model, comm, stage, lr=0.1, precision=precision)
    first = engine.consolidate()
    for seed in (1, 2):
        step(engine, comm, torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)))
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    return first, engine.consolidate(), model.layers[1].steps.item(), list(engine.state_dict())


def plain():
    model = nn.Module()
    model.first = nn.Linear(6, 32)
    model.layers = nn.ModuleList([nn.Linear(32, 32), Table(32), nn.LayerNorm(32)])
    model.forward = lambda x: model.layers[2](model.layers[1](model.layers[0](model.first(x))))
    return model


def at_each_stage(comm, device, *what):
    return [trained(comm, device, stage, *what) for stage in (0, 2, 3)]


def test_a_plain_model_begins_with_the_bits_that_its_constructor_would_have_drawn():
    there = launch(at_each_stage, "cpu", plain, ranks=2, world="lockstep")[0]
    for found in launch(at_each_stage, "meta", plain, ranks=2, world="lockstep"):
        for (first, after, steps, names), own in zip(found, there, strict=True):
            assert names == own[3] and steps == 7
            for mine, its in ((first, own[0]), (after, own[1])):
                assert mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in its)


def seven():
    model = nn.Module()
    model.first = nn.Linear(6, 32)
    model.layers = nn.ModuleList([nn.Linear(32, 32), nn.Linear(32, 32, bias=False)])
    model.layers[1].steps = torch.tensor(7, device="cpu")
    model.forward = lambda x: model.layers[1](model.layers[0](model.first(x)))
    return model


def test_with_a_precision_it_goes_on_as_one_that_was_in_memory():
    there = launch(at_each_stage, "cpu", seven, "bf16", ranks=2, world="lockstep")[0]
    for found in launch(at_each_stage, "meta", seven, "bf16", ranks=2, world="lockstep"):
        for (_, after, _, _), own in zip(found, there, strict=True):
            assert all(torch.equal(after[name], own[1][name]) for name in own[1])


def test_all_stages_begin_and_go_on_with_the_same_bits_tied_weights_and_lone_buffers_too():
    runs = launch(at_each_stage, "meta", Mixed, ranks=2, world="lockstep")[1]
    for first, after, steps, _ in runs:
        assert steps == 7 and torch.equal(first["counter.seen"], torch.ones(2))
        assert all(torch.equal(after[name], runs[0][1][name]) for name in runs[0][1])
        assert all(torch.equal(first[name], runs[0][0][name]) for name in runs[0][0])
        assert "layers.3.weight" not in first


def built(comm, stage, make):
    model = on("meta", make)
    with Tracker() as tracker:
        engine = ZeroEngine(model, comm, stage, lr=0.1)
    return sum(tracker.peak.values()), building_bytes(engine.plans, stage)


def building_bytes(plans, stage):
    """The most bytes of parameters while a model without persistent parameters is built: at stage 3 the shards so far,
    and the unit that is being made, of which a bucket is let go when its shard has been copied."""
    if stage < 3:
        return sum(plan.itemsize * plan.layout.numel for plan in plans)
    shards, most = 0, 0
    for _, unit in groupby(plans, key=lambda plan: plan.unit):
        buckets = list(unit)
        whole = [plan.itemsize * plan.layout.numel for plan in buckets]
        for at, plan in enumerate(buckets):
            shards += plan.itemsize * plan.layout.shard_numel
            most = max(most, shards + sum(whole[at:]))
    return most


def tower():
    return nn.Sequential(*(nn.Linear(96, 96) for _ in range(12)), nn.Linear(96, 200), nn.Linear(200, 3))


def built_each(comm):
    return [built(comm, stage, tower) for stage in (0, 2, 3)]


@pytest.mark.parametrize("collectives", ["shared", "ring"])
def test_building_takes_the_shards_and_the_largest_unit_as_predicted(collectives):
    for found in launch(built_each, ranks=2, collectives=collectives):
        for peak, predicted in found:
            # A few numbers of the checks, and of the probe of the optimizer.
            assert predicted <= peak <= predicted + 1000
        assert found[-1][1] < 0.75 * sum(parameter.nbytes for parameter in on("meta", tower).parameters())


def first_values(comm, family, stage):
    torch.manual_seed(comm.rank)
    with torch.device("meta"):
        model = build(family, "nano", vocab_size=64)
    return ZeroEngine(model, comm, stage, lr=0.1).consolidate()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_our_own_models_begin_as_their_constructors_let_them_begin(family):
    states = launch(lambda comm: [first_values(comm, family, stage) for stage in (0, 3)], ranks=2, world="lockstep")[0]
    torch.manual_seed(0)
    there = dict(build(family, "nano", vocab_size=64).named_parameters())
    assert states[0].keys() == there.keys()
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name])
        if value.dim() == 1:
            assert torch.equal(value, there[name])
        else:
            assert value.std().item() == pytest.approx(there[name].std().item(), rel=0.15)


def linear_only(module):
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.5)
        nn.init.zeros_(module.bias)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(3, 3)
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inside(x) * self.gain


def everything(module):
    linear_only(module)
    if isinstance(module, Bare):
        nn.init.constant_(module.gain, 2.0)


def test_a_function_of_a_module_has_the_last_word():
    state = ZeroEngine(on("meta", Bare), local, 3, lr=0.1, init=everything).consolidate()
    assert state["inside.weight"].unique().tolist() == [0.5] and state["gain"].tolist() == [2.0] * 3


class Tied(nn.Module):
    """The embedding, whose values are wider, stands first and owns the weight."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.head = nn.Linear(16, 64)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def by_kind(module):
    if isinstance(module, nn.Embedding):
        nn.init.constant_(module.weight, 2.0)
    elif isinstance(module, nn.Linear):
        linear_only(module)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_tied_weight_has_the_first_values_of_the_module_that_owns_it(stage):
    drawn = ZeroEngine(on("meta", Tied), local, stage, lr=0.1).consolidate()["embedding.weight"]
    # A linear layer would draw between -0.25 and 0.25.
    assert drawn.std().item() == pytest.approx(1.0, rel=0.15)
    given = ZeroEngine(on("meta", Tied), local, stage, lr=0.1, init=by_kind).consolidate()
    assert given["embedding.weight"].unique().tolist() == [2.0] and given["head.bias"].tolist() == [0.0] * 64


class Dirty(LocalCollectives):
    """Memory that held something else before."""

    def allocate(self, numel, dtype=torch.float32):
        return super().allocate(numel, dtype).fill_(float("nan"))


def test_what_lies_between_parameters_does_not_depend_on_what_memory_held_before():
    engine = ZeroEngine(on("meta", lambda: nn.Linear(3, 3)), Dirty(), 0, lr=0.1)
    gaps = [bucket.whole[start:stop] for bucket in engine.buckets for start, stop in bucket.layout.gaps()]
    assert gaps and not any(gap.any() for gap in gaps)


@pytest.mark.parametrize("stage", [0, 3])
def test_what_modules_share_and_what_hangs_on_a_parameter_stays(stage):
    model = on("meta", lambda: nn.Sequential(Table(6), Table(6)))
    model[1].angles = model[0].angles
    model[1].scale.kind = "scale"
    ZeroEngine(model, local, stage, lr=0.1)
    assert model[1].angles is model[0].angles and model[0].angles.tolist() == [3.0] * 6
    assert model[1].steps is not model[0].steps and model[1].scale.kind == "scale"


def of_rank_0(comm, stage):
    """Only rank 0 knows the values, as when it alone has read a checkpoint."""

    def init(module):
        if comm.rank == 0:
            everything(module)

    return ZeroEngine(on("meta", Bare), comm, stage, lr=0.1, init=init).consolidate()["gain"].tolist()


def test_rank_0_s_values_are_everybody_s():
    assert launch(of_rank_0, 3, ranks=2, world="lockstep") == [[2.0] * 3] * 2


def half_there():
    linear = nn.Linear(3, 3)
    linear.bias = nn.Parameter(torch.zeros(3, device="cpu"))
    return linear


def lone_buffer():
    model = nn.Sequential(nn.Linear(3, 3), nn.Module())
    model[1].register_buffer("mask", torch.ones(3))
    return model


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (Bare, {}, ["the model (Bare) has gain", "no reset_parameters", "ZeroEngine(init=...)"]),
        (lone_buffer, {}, ["1 (Module) has mask", "no reset_parameters"]),
        (half_there, {}, ["weight on the meta device and bias in memory"]),
        (Bare, {"init": linear_only}, ["gain of the model (Bare)", "has written all of it"]),
        (lambda: on("cpu", Bare), {"init": everything}, ["no tensor of this Bare is on the meta device"]),
    ],
)
def test_what_would_have_no_first_values_is_refused_by_name(make, options, words):
    model = on("meta", make) if make is not None else None
    with pytest.raises(InputError) as refused:
        ZeroEngine(model, local, 2, lr=0.1, **options)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_attention_of_torch_and_fp8_layers_write_their_own_values():
    attention = ZeroEngine(on("meta", lambda: nn.MultiheadAttention(8, 2)), local, 0, lr=0.1).consolidate()
    there = on("cpu", lambda: nn.MultiheadAttention(8, 2)).state_dict()
    assert attention.keys() == there.keys() and all(torch.isfinite(tensor).all() for tensor in attention.values())
    assert torch.equal(attention["out_proj.bias"], there["out_proj.bias"])
    layers = ZeroEngine(on("meta", tower), local, 0, lr=0.1, precision="fp8")
    assert layers(torch.ones(2, 96)).isfinite().all()
    assert layers.model[0].fp8_history.count_nonzero() == 0


@pytest.mark.parametrize("stage", [0, 3])
def test_hooks_of_a_parameter_are_called_wherever_it_came_from(stage):
    def run(comm, device):
        with torch.device(device):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        seen = []
        first, second = (model[0].weight.register_hook(lambda _, at=at: seen.append(at)) for at in (1, 2))
        second.remove()
        engine = ZeroEngine(model, comm, stage, lr=0.1)
        engine.backward(engine(torch.ones(2, 4)).sum())
        first.remove()
        engine.zero_grad()
        engine.backward(engine(torch.ones(2, 4)).sum())
        return seen

    for device in ("cpu", "meta"):
        assert launch(run, device, ranks=2, world="lockstep", timeout=60) == [[1]] * 2


def test_precision_makes_main_parameters_of_the_first_values():
    wide = ZeroEngine(on("meta", zero_cases.gpt2), local, 0, lr=0.1).consolidate()
    narrow = ZeroEngine(on("meta", zero_cases.gpt2), local, 0, lr=0.1, precision="bf16").consolidate()
    assert all(torch.equal(wide[name].bfloat16(), narrow[name]) for name in wide)


def consolidated(comm, stage):
    torch.manual_seed(0)
    engine = ZeroEngine(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), comm, stage, lr=0.1)
    whole, alone = engine.consolidate(), engine.consolidate(to=1)
    copied = [name for unit in engine.units for name in engine.parameters_of(unit, to=1)]
    with pytest.raises(InputError, match="to is 2; name a rank from 0 to 1"):
        engine.consolidate(to=2)
    return whole, alone, copied, list(engine.state_dict(to=1))


@pytest.mark.parametrize("stage", [0, 3])
def test_one_rank_alone_takes_the_whole_model(stage):
    other, taker = launch(consolidated, stage, ranks=2, world="lockstep")
    assert other[1:] == ({}, [], [])
    whole, alone, copied, names = taker
    assert set(names) == alone.keys() and set(copied) == {name for name in alone if name.endswith(("weight", "bias"))}
    assert whole.keys() == alone.keys() and all(torch.equal(whole[name], alone[name]) for name in whole)
