"""torch.compile and an engine: before wrapping, after it, of the whole model or of its units."""

import os
import shutil
from functools import partial
from itertools import product

import pytest
import torch
from cover import covering, nightly
from torch import nn
from torch.nn import functional as F
from zero_cases import Late

from zerolab.collectives import LocalCollectives
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]
WAYS = ("before", "after", "model.compile", "units", "units.compile")
LAYERS = 4
RUNS = covering(list(product(range(4), WAYS)), shows=lambda run: {(run[0] == 3, run[1]), run[0]})
"""Stages and ways. Stages 0 to 2 hook a unit alike and stage 3 in its own way: so each way at stage 3 and at one of the
others, and something at each of these; nightly each way at every stage."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def train(comm, stage, way, **options):
    """Losses of three steps, the state by plain names, the graphs that were compiled, and the parts that a backward has
    of them."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = Net()
    if way == "before":
        model = torch.compile(model, **options)
    elif way == "model.compile":
        model.compile(**options)
    elif way == "units":
        for at, layer in enumerate(model.layers):
            model.layers[at] = torch.compile(layer, **options)
    elif way == "units.compile":
        for layer in model.layers:
            layer.compile(**options)
    engine = ZeroEngine(model, comm, stage, lr=0.1, overlap_gather=stage == 2)
    run = torch.compile(model, **options) if way == "after" else engine
    losses = []
    for step in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + comm.rank))
        loss = run(x).square().mean()
        parts = compiled_parts(loss)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    state = {name.replace("_orig_mod.", ""): value for name, value in engine.consolidate().items()}
    return losses, state, torch._dynamo.utils.counters["stats"]["unique_graphs"], parts


def compiled_parts(loss):
    """How many compiled graphs run in the backward of a loss."""
    seen, coming = set(), [loss.grad_fn]
    while coming:
        node = coming.pop()
        if node is not None and node not in seen:
            seen.add(node)
            coming += [before for before, _ in node.next_functions]
    return sum(node.name() == "CompiledFunctionBackward" for node in seen)


def train_all(comm, backend):
    """By stage and way, and by stage without a compiler; and what a single graph is told at stages 0 and 3. In one
    launch: a rank imports the compiler for seconds."""
    found = {(stage, way): train(comm, stage, way, backend=backend) for stage, way in [*product(range(4), [""]), *RUNS]}
    return found, [whole(comm, stage) for stage in (0, 3)]


def whole(comm, stage):
    with pytest.raises(Exception, match="ZeroEngine") as refused:
        train(comm, stage, "before", backend="eager", fullgraph=True)
    return str(refused.value)


@pytest.fixture(scope="module")
def by_rank():
    return launch(train_all, "aot_eager", ranks=2, timeout=240)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_compiled_model_trains_as_one_that_is_not_in_a_few_graphs(by_rank, stage):
    ways = [way for at, way in RUNS if at == stage]
    assert ways == list(WAYS) if stage == 3 else ways
    for runs, _ in by_rank:
        losses, state, *none = runs[stage, ""]
        assert none == [0, 0]
        for way in ways:
            of_way, state_of_way, graphs, parts = runs[stage, way]
            assert of_way == losses, way
            assert state_of_way.keys() == state.keys(), way
            assert all(torch.equal(state[name], state_of_way[name]) for name in state), way
            # One for the blocks, which are alike, and what the first step needs of its own.
            assert 1 <= graphs <= 3, (way, graphs)
            # Gradients come layer by layer: a single graph would bring all at its end, and no reduction before.
            assert parts >= LAYERS, (way, parts)


class Peeks(nn.Module):
    """Reads a parameter of `last` before `last` runs."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def units(self):
        return [self.first, self.last]

    def forward(self, x):
        return self.last(self.first(F.linear(x, self.last.weight)))


def test_a_compiled_model_waits_for_new_parameters_wherever_it_reads_them(monkeypatch):
    torch._dynamo.reset()
    model = Peeks()
    model.compile(backend="eager")
    engine = ZeroEngine(model, LocalCollectives(), 2, lr=0.1, overlap_gather=True)
    for unit in engine.units:
        # On one rank nothing is published.
        monkeypatch.setattr(unit, "published", unit.buckets)
    for bucket in engine.buckets:
        monkeypatch.setattr(bucket, "publish", partial(Late, bucket))
    for _ in range(3):
        loss = engine(torch.ones(4, 8)).square().mean()
        assert loss.isfinite()
        engine.backward(loss)
        engine.step()
        assert sum(bool(unit.arriving) for unit in engine.units) == 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def train_by_inductor(comm):
    """By stage: what a rank ends with, compiled by torch's own compiler and not compiled."""
    return [[train(comm, stage, way, **how) for way, how in (("", {}), ("before", {}))] for stage in range(4)]


COMPILER = shutil.which(os.environ.get("CXX", "g++"))


@nightly("a minute of compiling")
@pytest.mark.skipif(COMPILER is None, reason="inductor makes C++ of a graph, and there is no compiler of it here")
def test_what_inductor_compiles_trains_as_what_is_not_compiled(tmp_path):
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for of_rank in launch(train_by_inductor, ranks=2, timeout=240, env=env):
        for (losses, state, *_), (of_way, state_of_way, graphs, parts) in of_rank:
            assert 1 <= graphs <= 3 and parts >= LAYERS
            assert of_way == pytest.approx(losses, abs=1e-5)
            # It rounds where it likes.
            assert all(torch.allclose(state[name], state_of_way[name], atol=1e-5) for name in state)


def test_a_single_graph_is_refused_with_the_way_out(by_rank):
    for _, told in by_rank:
        for said in told:
            assert "between compiled graphs" in said and "without fullgraph=True" in said
