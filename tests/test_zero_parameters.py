"""Any nn.Module trains as in plain torch, whatever its parameters are like; with the same bits at every stage."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from zero_cases import VARIANTS, adamw, digest, largest_difference, sgd
from zero_models import MODELS, WIDTH, Residual, build, loss_of

from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import InputError, MismatchError, RankError
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, find_units

pytestmark = pytest.mark.timeout(150)

ROWS, STEPS = 24, 2


def inputs(step: int) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))


def own_rows(comm: Collectives, step: int) -> torch.Tensor:
    return inputs(step).chunk(comm.size)[comm.rank].clone()


def fit(comm: Collectives, model: nn.Module, stage: int, **options: Any) -> dict[str, torch.Tensor]:
    engine = ZeroEngine(model, comm, stage, **{"optimizer": sgd(), **options})
    for step in range(STEPS):
        engine.backward(loss_of(engine(own_rows(comm, step))))
        engine.step()
    state = engine.consolidate()
    engine.close()
    return state


def fit_alone(model: nn.Module) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(STEPS):
        loss_of(model(inputs(step).clone())).backward()
        optimizer.step()
        optimizer.zero_grad()
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


@dataclass(frozen=True)
class Fitted:
    digests: set[str]
    from_torch: float
    moved: float


def fit_all(comm: Collectives, names: list[str]) -> dict[str, Fitted]:
    found = {}
    for name in names:
        # Borders of shards fall anywhere, where the arithmetic of 16 bits allows it.
        align = 16 if "dtypes" in name else 1
        states = [fit(comm, build(name), stage, align=align, **variant) for stage, variant in VARIANTS]
        states.append(fit(comm, build(name), 3, align=align, prefetch=False, overlap=False))
        start = {key: value.detach().clone() for key, value in build(name).state_dict(keep_vars=False).items()}
        moved = largest_difference(states[0], {key: start[key] for key in states[0]})
        away = largest_difference(states[0], fit_alone(build(name)))
        found[name] = Fitted({digest(state) for state in states}, away, moved)
    return found


# All of them in lockstep; in processes those whose hooks or threads could tell a difference.
IN_PROCESSES = ["used twice, recomputed", "reentrant checkpoint", "tied across units", "lstm"]
PLACES = [(name, "lockstep", 4) for name in MODELS] + [(name, "processes", 3) for name in IN_PROCESSES]


@pytest.fixture(scope="module")
def fitted() -> dict[str, list[dict[str, Fitted]]]:
    return {
        "lockstep": list(launch(fit_all, list(MODELS), ranks=4, world="lockstep", timeout=120)),
        "processes": list(launch(fit_all, IN_PROCESSES, ranks=3, timeout=120)),
    }


@pytest.mark.ranks
@pytest.mark.parametrize(("name", "world", "ranks"), PLACES)
def test_any_model_trains_as_in_plain_torch_at_every_stage(
    fitted: dict[str, list[dict[str, Fitted]]], name: str, world: str, ranks: int
) -> None:
    by_rank = [of_rank[name] for of_rank in fitted[world]]
    assert len(by_rank) == ranks
    assert len(set.union(*(one.digests for one in by_rank))) == 1
    assert by_rank[0].moved > 1e-3
    assert by_rank[0].from_torch < (2e-2 if "dtypes" in name else 2e-6)


def test_every_part_of_a_tied_weight_moves_on_the_rank_that_owns_it() -> None:
    def moved(comm: Collectives) -> float:
        model = build("tied across units")
        before = model[0].weight.detach().clone()
        state = fit(comm, model, 3, align=1)
        return (state["0.weight"] - before).abs().min().item()

    assert min(launch(moved, ranks=4, world="lockstep", timeout=60)) > 0


def test_a_frozen_parameter_keeps_its_bits_and_costs_no_reduction() -> None:
    def frozen(comm: Collectives) -> tuple[bool, int]:
        model = build("partly frozen")
        before = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
        state = fit(comm, model, 2)
        assert comm.meter is not None
        same = all(torch.equal(state[name], value) for name, value in before.items())
        return same and len(before) > 0, comm.meter.bytes_by_collective("backward")["reduce_scatter"]

    # Two layers train, one of them in part; each in a bucket of its own, padded to whole shards.
    units = find_units(build("partly frozen"), 2)
    trained = sum(bucket.layout.numel for unit in units for bucket in unit.trainable)
    assert sum(bucket.layout.used for unit in units for bucket in unit.trainable) == 71 + 36
    assert launch(frozen, ranks=2, world="lockstep", timeout=60) == [(True, STEPS * trained * 4 // 2)] * 2


@pytest.mark.parametrize("stage", range(4))
def test_a_model_of_frozen_parameters_only_can_be_held_and_used_but_not_trained(stage: int) -> None:
    def use(comm: Collectives) -> tuple[float, str]:
        model = build("plain sequential").requires_grad_(False)
        engine = ZeroEngine(model, comm, stage, lr=0.1, clip_norm=1.0)
        loss = loss_of(engine(inputs(0)))
        with pytest.raises(InputError, match="all frozen"):
            engine.backward(loss)
        torch.optim.lr_scheduler.StepLR(engine.optimizer, 1)
        return loss.item(), digest(engine.consolidate())

    model = build("plain sequential")
    expected = loss_of(model(inputs(0))).item(), digest(dict(model.named_parameters()))
    alike = digest({name: p.detach() for name, p in model.named_parameters()})
    assert launch(use, ranks=2, world="lockstep", timeout=60) == [(pytest.approx(expected[0]), alike)] * 2


class Marked(nn.Parameter):
    """A class of somebody's own."""


@pytest.mark.parametrize("stage", range(4))
def test_a_parameter_of_somebody_s_own_class_trains_and_stays_one(stage: int) -> None:
    def marked(comm: Collectives) -> tuple[bool, str]:
        model = build("plain sequential")
        model[-1].weight = Marked(model[-1].weight.detach())
        state = fit(comm, model, stage)
        return type(model[-1].weight) is Marked, digest(state)

    plain = launch(lambda comm: digest(fit(comm, build("plain sequential"), 0)), ranks=2, world="lockstep", timeout=60)
    assert launch(marked, ranks=2, world="lockstep", timeout=60) == [(True, alike) for alike in plain]


class Skipping(nn.Module):
    """A layer that only some ranks use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual() for _ in range(4))

    def forward(self, x: torch.Tensor, skip: int) -> torch.Tensor:
        for at, layer in enumerate(self.layers):
            x = x if at == skip else layer(x)
        return x


def skip_by_rank(comm: Collectives, stage: int) -> tuple[str, float]:
    """Rank 0 skips layer 0, rank 1 layer 1, ..."""
    torch.manual_seed(0)
    engine = ZeroEngine(Skipping(), comm, stage, optimizer=sgd())
    for step in range(STEPS):
        engine.backward(loss_of(engine(own_rows(comm, step), comm.rank)))
        engine.step()
    state = engine.consolidate()
    torch.manual_seed(0)
    model = Skipping()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = inputs(step).chunk(comm.size)
        torch.stack([loss_of(model(rows[rank], rank)) for rank in range(comm.size)]).mean().backward()
        optimizer.step()
    return digest(state), largest_difference(state, dict(model.named_parameters()))


@pytest.mark.ranks
def test_layers_that_only_some_ranks_use_count_as_zero_on_the_others() -> None:
    """Where every rank has all parameters; at stage 3 all ranks must gather alike."""
    results = [launch(skip_by_rank, stage, ranks=3, timeout=60) for stage in (0, 1, 2)]
    assert len({one for by_rank in results for one, _ in by_rank}) == 1
    assert max(away for by_rank in results for _, away in by_rank) < 1e-6


@pytest.mark.ranks
@pytest.mark.parametrize(("world", "error"), [("lockstep", MismatchError), ("processes", RankError)])
def test_ranks_that_gather_different_layers_are_named_and_never_mixed_up(world: str, error: type[RankError]) -> None:
    with pytest.raises(error) as named:
        launch(skip_by_rank, 3, ranks=2, world=world, timeout=6)
    assert "(layers.0)" in str(named.value) and "(layers.1)" in str(named.value)


class Normed(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("of_rank", torch.full((2, 3), float(rank)).t())
        self.register_buffer("flag", torch.tensor(rank == 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


def test_buffers_start_as_rank_0s_stay_local_in_training_and_are_saved_as_rank_0s() -> None:
    def buffers(comm: Collectives, stage: int) -> tuple[Any, ...]:
        torch.manual_seed(comm.rank)
        model = Normed(comm.rank)
        engine = ZeroEngine(model, comm, stage, lr=0.1)
        start = model.of_rank.tolist(), model.flag.item(), model.linear.weight.numel()
        for step in range(STEPS):
            engine.backward(loss_of(engine(own_rows(comm, step))))
            engine.step()
        state = engine.consolidate()
        assert state["norm.num_batches_tracked"].item() == STEPS
        return start[:2], digest(state), model.norm.running_mean.tolist()

    for stage in range(4):
        (start, saved, own), (start_1, saved_1, own_1) = launch(buffers, stage, ranks=2, world="lockstep", timeout=60)
        assert start == start_1 == ([[0.0] * 2] * 3, True)
        assert saved == saved_1
        assert own != own_1


@pytest.mark.ranks
@pytest.mark.parametrize("stage", range(4))
def test_one_rank_moves_no_byte_at_any_stage(stage: int) -> None:
    def bytes_moved(comm: Collectives) -> int:
        fit(comm, build("plain sequential"), stage, clip_norm=0.1)
        assert comm.meter is not None
        return sum(comm.meter.bytes_by_collective().values())

    assert launch(bytes_moved, ranks=1, timeout=60) == [0]
    local = LocalCollectives()
    assert digest(fit(local, build("plain sequential"), stage)) == digest(fit(local, build("plain sequential"), 0))


@pytest.mark.parametrize("name", ["plain sequential", "two dtypes", "image", "transformer encoder", "lstm"])
def test_models_are_used_outside_training_as_they_are(name: str) -> None:
    """Under no_grad, in inference mode and in eval mode, between steps, without a trace."""

    def use(comm: Collectives, stage: int, used: bool) -> tuple[str, bool]:
        model = build(name)
        engine, same = ZeroEngine(model, comm, stage, optimizer=adamw(1e-2)), True
        for step in range(STEPS):
            if used:
                model.eval()
                with torch.no_grad():
                    first = engine(inputs(9))
                with torch.inference_mode():
                    same = same and torch.allclose(first, engine(inputs(9)), atol=1e-5)
                model.train()
            engine.backward(loss_of(engine(own_rows(comm, step))))
            engine.step()
        return digest(engine.consolidate()), same

    results = [
        launch(use, stage, used, ranks=2, world="lockstep", timeout=60) for stage in (0, 3) for used in (False, True)
    ]
    assert len({one for by_rank in results for one, _ in by_rank}) == 1
    assert all(same for by_rank in results for _, same in by_rank)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)) for _ in range(2))

    def forward(self, x: torch.Tensor, chosen: int) -> torch.Tensor:
        for experts in self.blocks:
            x = experts[chosen](x)
        return x


@pytest.mark.parametrize("world", ["lockstep", "processes"])
def test_ranks_that_run_different_experts_read_which_and_what_to_do(world: str) -> None:
    def choose(comm: Collectives, stage: int) -> None:
        model = Experts()
        engine = ZeroEngine(model, comm, stage, lr=0.1)
        engine.backward(loss_of(engine(inputs(0), comm.rank)))
        engine.step()

    launch(choose, 2, ranks=2, world=world, timeout=60)
    with pytest.raises(RankError, match=r"blocks\.0\.0.* while rank 1 .*blocks\.0\.1.* one unit \(units=\[\.\.\.\]\)"):
        launch(choose, 3, ranks=2, world=world, timeout=60)


def test_an_engine_explains_its_units_and_what_was_asked_for_from_outside() -> None:
    def explain(comm: Collectives) -> str:
        engine = ZeroEngine(build("weights used from outside"), comm, 3, lr=0.1)
        engine.backward(loss_of(engine(inputs(0))))
        engine.step()
        return engine.explain()

    said = launch(explain, ranks=2, world="lockstep", timeout=60)[0].splitlines()
    assert said[0] == "stage 3, units: 7, guessed"
    assert "  up: ModuleDict, 36 parameters, buckets: 1" in said
    assert any(line.startswith("    up.up.1 (unit up) was asked for outside the forward of its unit") for line in said)
