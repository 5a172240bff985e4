"""Any nn.Module trains as in plain torch, whatever its parameters are like; with the same bits at every stage."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from cover import NIGHTLY
from torch import nn
from zero_cases import VARIANTS, adamw, digest, largest_difference, sgd
from zero_models import MODELS, WIDTH, Residual, build, loss_of

from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import MismatchError, RankError, StateError
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


IN_TURN = [*((stage, way) for stage, way in VARIANTS if stage in (1, 2)), (3, {"prefetch": False, "overlap": False})]
"""By day a model trains in lockstep at stages 0 and 3, and in one of these ways; its neighbour in another."""


def fit_all(comm: Collectives, names: list[str], every: bool) -> dict[str, Fitted]:
    found = {}
    for at, name in enumerate(names):
        # Borders of shards fall anywhere, where the arithmetic of 16 bits allows it.
        align = 16 if "dtypes" in name else 1
        ways = [(0, {}), (3, {}), *(IN_TURN if every else [IN_TURN[at % len(IN_TURN)]])]
        states = [fit(comm, build(name), stage, align=align, **variant) for stage, variant in ways]
        start = {key: value.detach().clone() for key, value in build(name).state_dict(keep_vars=False).items()}
        moved = largest_difference(states[0], {key: start[key] for key in states[0]})
        # One process is compared with by one rank.
        away = largest_difference(states[0], fit_alone(build(name))) if comm.rank == 0 else 0.0
        found[name] = Fitted({digest(state) for state in states}, away, moved)
    return found


# All of them in lockstep; in processes those whose hooks or threads could tell a difference. Three ranks, so that some
# borders of shards fall inside of parameters; nightly four in lockstep.
IN_PROCESSES = ["used twice, recomputed", "reentrant checkpoint", "tied across units", "lstm"]
IN_LOCKSTEP = 4 if NIGHTLY else 3
PLACES = [(name, "lockstep", IN_LOCKSTEP) for name in MODELS] + [(name, "processes", 3) for name in IN_PROCESSES]


@pytest.fixture(scope="module")
def fitted() -> dict[str, list[dict[str, Fitted]]]:
    return {
        "lockstep": list(launch(fit_all, list(MODELS), NIGHTLY, ranks=IN_LOCKSTEP, world="lockstep", timeout=120)),
        "processes": list(launch(fit_all, IN_PROCESSES, True, ranks=3, timeout=120)),
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


def test_every_parameter_keeps_its_shape() -> None:
    """Also one of no dimension and one without elements: a sum over them is the same in another shape."""

    def shapes(comm: Collectives, stage: int) -> tuple[Any, Any, Any]:
        model = build("scalar, empty, whole numbers")
        engine = ZeroEngine(model, comm, stage, lr=0.1, align=1)
        engine.backward(loss_of(engine(own_rows(comm, 0))))
        engine.step()
        with engine.summon_full_params():
            summoned = {name: tuple(p.shape) for name, p in model.named_parameters()}
        saved = {name: tuple(value.shape) for name, value in engine.consolidate().items()}
        return summoned, saved, {name: tuple(p.shape) for name, p in engine.named_parameters()}

    expected = {name: tuple(p.shape) for name, p in build("scalar, empty, whole numbers").named_parameters()}
    assert {(), (0, 3)} <= set(expected.values())
    by_rank = launch(lambda comm: [shapes(comm, stage) for stage in range(4)], ranks=3, world="lockstep", timeout=60)
    assert by_rank == [[(expected,) * 3] * 4] * 3


class There(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)


class Back(There):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


def there_and_back(apart: bool) -> nn.Module:
    """One weight of 42 elements under two names, alone in its bucket: on 4 ranks 11, 11, 11 and 9 of them."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(WIDTH, 7))
    there, back = There(weight), Back(weight)
    # In one unit, or in two with another between them.
    return nn.Sequential(there, nn.Sequential(nn.Linear(7, 7)), back) if apart else nn.Sequential(OneUnit(there, back))


class OneUnit(nn.Module):
    def __init__(self, first: nn.Module, then: nn.Module) -> None:
        super().__init__()
        self.first, self.then = first, then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.first(x))


@pytest.mark.parametrize("apart", [False, True])
def test_a_tied_weight_that_is_cut_unevenly_is_updated_to_its_last_element(apart: bool) -> None:
    def tied(comm: Collectives) -> list[Any]:
        found = []
        for stage, variant in VARIANTS:
            model = there_and_back(apart)
            engine = ZeroEngine(model, comm, stage, optimizer=sgd(), align=1, **variant)
            (bucket,) = (b for b in engine.buckets if b.layout.used == 42)
            owned = sum(piece.numel for piece in bucket.layout.pieces(comm.rank))
            for step in range(STEPS):
                engine.backward(loss_of(engine(own_rows(comm, step))))
                engine.step()
            with engine.summon_full_params():
                one = model[0] if apart else model[0].first
                other = model[2] if apart else model[0].then
                found.append((owned, one.weight is other.weight, one.weight.detach().clone()))
        return found

    alone = there_and_back(apart)
    (start,) = (p.detach().clone() for p in alone.parameters() if p.numel() == 42)
    expected = next(value for value in fit_alone(alone).values() if value.numel() == 42)
    by_rank = launch(tied, ranks=4, world="lockstep", timeout=60)
    assert [{owned for owned, _, _ in of_rank} for of_rank in by_rank] == [{11}, {11}, {11}, {9}]
    for _, same, weight in (one for of_rank in by_rank for one in of_rank):
        assert same and (weight - start).abs().min() > 0
        assert (weight - expected).abs().max() < 2e-6


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


def test_a_model_of_frozen_parameters_only_can_be_held_and_used_but_not_trained() -> None:
    def use(comm: Collectives, stage: int) -> tuple[float, str]:
        model = build("plain sequential").requires_grad_(False)
        engine = ZeroEngine(model, comm, stage, lr=0.1, clip_norm=1.0)
        loss = loss_of(engine(inputs(0)))
        with pytest.raises(RuntimeError, match="does not require grad"):
            engine.backward(loss)
        engine.zero_grad()
        torch.optim.lr_scheduler.StepLR(engine.optimizer, 1)
        return loss.item(), digest(engine.consolidate())

    model = build("plain sequential")
    expected = loss_of(model(inputs(0))).item(), digest(dict(model.named_parameters()))
    by_rank = launch(lambda comm: [use(comm, stage) for stage in range(4)], ranks=2, world="lockstep", timeout=60)
    assert by_rank == [[(pytest.approx(expected[0]), expected[1])] * 4] * 2


class Marked(nn.Parameter):
    """A class of somebody's own."""


def test_a_parameter_of_somebody_s_own_class_trains_and_stays_one() -> None:
    def marked(comm: Collectives, stage: int) -> tuple[bool, str]:
        model = build("plain sequential")
        model[-1].weight = Marked(model[-1].weight.detach())
        state = fit(comm, model, stage)
        return type(model[-1].weight) is Marked, digest(state)

    def run(comm: Collectives) -> bool:
        plain = digest(fit(comm, build("plain sequential"), 0))
        return [marked(comm, stage) for stage in range(4)] == [(True, plain)] * 4

    assert launch(run, ranks=2, world="lockstep", timeout=60) == [True, True]


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
    by_rank = launch(lambda comm: [skip_by_rank(comm, stage) for stage in (0, 1, 2)], ranks=3, timeout=60)
    assert len({one for of_rank in by_rank for one, _ in of_rank}) == 1
    assert max(away for of_rank in by_rank for _, away in of_rank) < 1e-6


class Ways(nn.Module):
    """One unit with three weights, of which a forward takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ParameterList(torch.randn(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, way: int) -> torch.Tensor:
        return x + torch.tanh(x @ self.ways[way])


class Choosing(nn.Module):
    """All ranks run both layers, each rank by its own way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Ways() for _ in range(2))

    def forward(self, x: torch.Tensor, way: int) -> torch.Tensor:
        return self.layers[1](self.layers[0](x, way), way)


CHOSEN = [(0, 1, 2), (0, 0, 1), (2, 2, 2), (1, 0, 0)]
"""The way of each rank, step by step: each is taken by some ranks only, in one step by none, in one by all."""


def test_a_parameter_that_some_ranks_or_none_use_in_a_step_counts_as_zero_there_at_every_stage() -> None:
    momentum = sgd(momentum=0.9)

    def choose(comm: Collectives) -> list[dict[str, torch.Tensor]]:
        ended = []
        for stage, variant in VARIANTS:
            engine = ZeroEngine(Choosing(), comm, stage, optimizer=momentum, **variant)
            for step, ways in enumerate(CHOSEN):
                engine.backward(loss_of(engine(own_rows(comm, step), ways[comm.rank])))
                engine.step()
            ended.append(engine.consolidate())
        return ended

    alone = Choosing()
    optimizer = momentum(alone.parameters())
    for step, ways in enumerate(CHOSEN):
        # Zero and not none, so that a momentum of earlier steps goes on.
        for parameter in alone.parameters():
            parameter.grad = torch.zeros_like(parameter)
        (sum(loss_of(alone(rows, way)) for rows, way in zip(inputs(step).chunk(3), ways, strict=True)) / 3).backward()
        optimizer.step()
    by_rank = launch(choose, ranks=3, world="lockstep", timeout=60)
    assert len({digest(state) for of_rank in by_rank for state in of_rank}) == 1
    assert largest_difference(by_rank[0][0], {name: p.detach() for name, p in alone.named_parameters()}) < 1e-6


def test_what_memory_held_before_never_stands_in_for_a_gradient_that_did_not_come() -> None:
    """Such as the parameters of a unit that were gathered there."""

    def poisoned(comm: Collectives) -> set[str]:
        ended, allocate = set(), comm.allocate
        for held in (0.0, 7777.0):
            comm.allocate = lambda *args, held=held: allocate(*args).fill_(held)  # type: ignore[method-assign]
            ended |= {digest(fit(comm, build("unused"), stage, **variant)) for stage, variant in VARIANTS}
            del comm.allocate
        return ended

    assert len(set.union(*launch(poisoned, ranks=2, world="lockstep", timeout=60))) == 1


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
def test_one_rank_moves_no_byte_at_any_stage() -> None:
    def bytes_moved(comm: Collectives) -> int:
        for stage in range(4):
            fit(comm, build("plain sequential"), stage, clip_norm=0.1)
        assert comm.meter is not None
        return sum(comm.meter.bytes_by_collective().values())

    assert launch(bytes_moved, ranks=1, timeout=60) == [0]
    local = LocalCollectives()
    assert len({digest(fit(local, build("plain sequential"), stage)) for stage in range(4)}) == 1


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
    with pytest.raises(RankError, match=r"blocks\.0\.\d.* while rank .*blocks\.0\.\d.* one unit \(units=\[\.\.\.\]\)"):
        launch(choose, 3, ranks=2, world=world, timeout=60)


def test_an_engine_explains_its_units_and_what_was_asked_for_from_outside() -> None:
    def explain(comm: Collectives) -> str:
        engine = ZeroEngine(build("weights used from outside"), comm, 3, lr=0.1)
        engine.backward(loss_of(engine(inputs(0))))
        engine.step()
        return engine.explain()

    trained, frozen, units = launch(explain, ranks=2, world="lockstep", timeout=60)[0].split("\n\n")
    assert trained.startswith("buckets: 6\n") and "main, moments  shard" in trained
    assert frozen.startswith("buckets: 1\n") and "parameters     shard" in frozen and "gradients" not in frozen
    said = units.splitlines()
    assert said[0] == "stage 3, units: 7, guessed"
    assert "  up: ModuleDict, 36 parameters, buckets: 1" in said
    assert any(line.startswith("    up.up.1 (unit up) was asked for outside the forward of its unit") for line in said)


# What trains


class Adapted(nn.Module):
    """A frozen linear layer with two adapters, of which one is in use, as PEFT's LoRA has them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.adapters = nn.ModuleDict({"policy": nn.Linear(6, 6), "reference": nn.Linear(6, 6)})
        self.head = nn.Linear(6, 4)
        self.use("policy")

    def use(self, name: str | None) -> None:
        self.used = name
        for other, adapter in self.adapters.items():
            adapter.requires_grad_(other == name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.base(x)
        return self.head(h + self.adapters[self.used](x) if self.used else h)


def preferred(call: Any, model: Adapted, x: torch.Tensor) -> torch.Tensor:
    """A loss like DPO's: the policy beside the reference, and beside no adapter."""
    model.use("reference")
    with torch.no_grad():
        reference = call(x)
    model.use(None)
    with torch.no_grad():
        bare = call(x)
    model.use("policy")
    return (call(x) - reference - bare).square().mean()


def test_adapters_that_are_switched_for_a_forward_and_back_train_as_in_torch() -> None:
    torch.manual_seed(0)
    batch, adapted = torch.randn(4, 6), Adapted()
    alone = copy.deepcopy(adapted)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(2):
        preferred(alone, alone, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    def run(comm: Collectives, stage: int) -> dict[str, torch.Tensor]:
        model = copy.deepcopy(adapted)
        engine = ZeroEngine(model, comm, stage, optimizer=sgd(0.1))
        for _ in range(2):
            engine.backward(preferred(engine, model, batch[2 * comm.rank : 2 * comm.rank + 2]))
            engine.step()
        return engine.state_dict()

    for stage in range(4):
        torch.testing.assert_close(launch(run, stage, ranks=2, world="lockstep", timeout=60)[0], alone.state_dict())


def test_what_trains_is_what_trained_when_the_model_was_wrapped() -> None:
    def run(comm: Collectives, stage: int) -> list[str]:
        told = []
        for name in ("policy", "reference"):
            engine = ZeroEngine(Adapted(), comm, stage, lr=0.1)
            loss = engine(torch.ones(2, 6)).sum()
            engine.model.adapters[name].weight.requires_grad = name != "policy"
            with pytest.raises(StateError, match="before the model is wrapped") as refused:
                engine.backward(loss)
            told.append(str(refused.value))
        return told

    for stage in (0, 3):
        frozen, thawed = launch(run, stage, ranks=2, world="lockstep", timeout=60)[0]
        assert "requires_grad of adapters.policy.weight" in frozen
        assert "requires_grad of adapters.reference.weight" in thawed
