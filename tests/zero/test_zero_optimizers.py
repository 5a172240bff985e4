"""Clipping sees the norm of the whole; any elementwise optimizer updates shards as it would the whole."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from zero_cases import adamw, decay_matrices, digest, largest_difference, sgd
from zero_models import STAGES, at_every_stage, lockstep, loss_of, model, rows

from zerolab.checkpoint import Checkpoints
from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import InputError, StateError
from zerolab.offload import Offload
from zerolab.precision import Precision
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine
from zerolab.zero.step import gradient_norm

pytestmark = pytest.mark.timeout(150)


# Norms


NORMS = (1.0, 2.0, 3.0, float("inf"))


def test_the_norm_over_shards_is_the_norm_of_the_whole() -> None:
    """And one that is no number in one rank's shard is none on every rank."""

    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> tuple[list[float], list[float]]:
        engine, sick_norms = new_engine(), []
        engine.backward(loss_of(engine(rows(comm.rank, 0))))
        norms = [gradient_norm(comm, engine.buckets, norm_type) for norm_type in NORMS]
        for sick in (0, 1):
            if comm.rank == sick:
                engine.buckets[0].for_step()[0] = float("nan")
            if sick == 0 or engine.owner is not None:
                sick_norms += [gradient_norm(comm, engine.buckets, norm_type) for norm_type in NORMS]
            engine.zero_grad()
            engine.backward(loss_of(engine(rows(comm.rank, 0))))
        return norms, sick_norms

    alone = model()
    (sum(loss_of(alone(rows(rank, 0))) for rank in (0, 1)) / 2).backward()
    gradients = [p.grad for p in alone.parameters() if p.grad is not None]
    expected = [nn.utils.get_total_norm(gradients, norm_type).item() for norm_type in NORMS]
    for norms, sick in (found := at_every_stage(run, align=1)):
        assert norms == found[0][0] and norms == pytest.approx(expected, rel=1e-5)
        assert sick and all(norm != norm for norm in sick)


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_poisoned_padding_changes_no_norm_and_no_parameter(norm_type: float) -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> list[tuple[str, list[float | None], int]]:
        ended = []
        for poison in (0.0, 7777.0):
            engine, norms = new_engine(), []
            for step in range(3):
                loss = loss_of(engine(rows(comm.rank, step)))
                engine.backward(loss)
                poisoned = poison_padding(comm.rank, engine, poison)
                norms.append(engine.step().norm)
            ended.append((digest(engine.consolidate()), norms, poisoned))
        return ended

    for clean, poisoned in at_every_stage(run, clip_norm=0.5, norm_type=norm_type):
        assert clean == poisoned and clean[2] > 0


def poison_padding(rank: int, engine: ZeroEngine, value: float) -> int:
    """Write to every element of parameters and gradients that belongs to no slot; how many there were."""
    found = 0
    for bucket in engine.buckets:
        first, _ = bucket.layout.shard(rank)
        for tensor in (bucket.whole, bucket.shard, bucket.gradients.reduced):
            assert tensor is not None
            if not tensor.untyped_storage().nbytes():
                continue
            offset = 0 if tensor.numel() == bucket.layout.numel else first
            for start, stop in bucket.layout.gaps():
                part = tensor[max(0, start - offset) : max(0, stop - offset)]
                part.fill_(value)
                found += part.numel()
    return found


def test_what_memory_held_before_changes_nothing_and_padding_stays_zero() -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> list[tuple[str, float]]:
        ended, allocate = [], comm.allocate
        for held in (0.0, 7777.0):
            comm.allocate = lambda *args, held=held: allocate(*args).fill_(held)  # type: ignore[method-assign]
            engine = new_engine()
            for step in range(3):
                for micro in (0, 1):
                    engine.backward(loss_of(engine(rows(comm.rank, 2 * step + micro))))
                engine.step()
            ended.append((digest(engine.consolidate()), padding_of(comm.rank, engine)))
            del comm.allocate
        return ended

    assert {tuple(padding for _, padding in found) for found in at_every_stage(run)} == {(0.0, 0.0)}
    assert len({one for found in at_every_stage(run) for one, _ in found}) == 1


def padding_of(rank: int, engine: ZeroEngine) -> float:
    """The sum of what this rank's padding holds, in parameters and optimizer states."""
    total = 0.0
    for own in engine.optimizer_step.segments:
        first = own.start + (own.bucket.layout.shard(rank)[0] if engine.owner is not None else 0)
        kept = [own.tensor, *(s for s in engine.optimizer.state[own.tensor].values() if torch.is_tensor(s) and s.dim())]
        for start, stop in own.bucket.layout.gaps():
            total += sum(t[max(0, start - first) : max(0, stop - first)].abs().sum().item() for t in kept)
    return total


def test_16_bit_gradients_whose_norm_is_no_16_bit_number_still_have_one() -> None:
    engine = ZeroEngine(nn.Linear(4, 4, dtype=torch.float16), LocalCollectives(), 2, lr=0.1, clip_norm=1.0)
    engine.backward(30_000.0 * engine(torch.ones(2, 4, dtype=torch.float16)).float().sum())
    assert engine.step().norm == pytest.approx(60_000.0 * 20**0.5, rel=1e-2)


def test_a_norm_below_the_limit_scales_nothing() -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> str:
        engine = new_engine()
        engine.backward(loss_of(engine(rows(comm.rank, 0))))
        engine.step()
        return digest(engine.consolidate())

    assert set(at_every_stage(run, clip_norm=1e6)) == set(at_every_stage(run))


# Optimizers

O = torch.optim  # noqa: E741
ELEMENTWISE: dict[str, Callable[..., O.Optimizer]] = {
    "sgd": sgd(),
    "sgd with momentum": sgd(momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": partial(O.Adam, lr=1e-2, amsgrad=True),
    "adamw": adamw(1e-2, fused=False, foreach=False),
    "adamw, foreach": adamw(1e-2, fused=False, foreach=True),
    "adamw, fused": adamw(1e-2),
    "rmsprop": partial(O.RMSprop, lr=1e-3, centered=True),
    "adagrad": partial(O.Adagrad, lr=1e-2),
    "adadelta": O.Adadelta,
    "adamax": partial(O.Adamax, lr=1e-3),
    "nadam": partial(O.NAdam, lr=1e-3),
    "radam": partial(O.RAdam, lr=1e-3),
    "asgd": partial(O.ASGD, lr=1e-2),
    "rprop": partial(O.Rprop, lr=1e-3),
}


def three_steps(comm: Collectives, stage: int, optimizer: Any, **options: Any) -> dict[str, torch.Tensor]:
    engine = ZeroEngine(model(), comm, stage, optimizer=optimizer, **options)
    for step in range(3):
        engine.backward(loss_of(engine(rows(comm.rank, step))))
        engine.step()
    return engine.consolidate()


def three_steps_of_torch(optimizer: Any, scheduler: Any = None, grouped: bool = False) -> dict[str, torch.Tensor]:
    alone = model()
    named = list(alone.named_parameters())
    made = optimizer([{"params": [p], **decay_matrices(n, p)} for n, p in named] if grouped else alone.parameters())
    schedule = scheduler(made) if scheduler else None
    for step in range(3):
        (sum(loss_of(alone(rows(rank, step))) for rank in (0, 1)) / 2).backward()
        made.step()
        made.zero_grad()
        if schedule:
            schedule.step()
    return {name: p.detach() for name, p in named}


def test_any_elementwise_optimizer_updates_shards_as_it_would_the_whole() -> None:
    def every_optimizer(comm: Collectives) -> dict[tuple[str, int], dict[str, torch.Tensor]]:
        return {(name, stage): three_steps(comm, stage, ELEMENTWISE[name]) for name in ELEMENTWISE for stage in (0, 3)}

    optimized = lockstep(every_optimizer)[0]
    for name in ELEMENTWISE:
        expected = three_steps_of_torch(ELEMENTWISE[name])
        assert digest(optimized[name, 0]) == digest(optimized[name, 3]), name
        # Rprop looks at signs only, and a sum in another order may have another one where it is almost zero.
        assert largest_difference(optimized[name, 0], expected) < (2e-3 if name == "rprop" else 1e-5), name


NOT_ELEMENTWISE = {
    "lbfgs": partial(O.LBFGS, lr=0.1),
    "adafactor": partial(O.Adafactor, lr=0.1),
    "sparse adam": partial(O.SparseAdam, lr=0.1),
    **({"muon": partial(O.Muon, lr=0.1)} if hasattr(O, "Muon") else {}),
}


class NormedSGD(O.SGD):
    """Not of torch: steps by the gradient over its norm."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= group["lr"] * parameter.grad / parameter.grad.norm()


@pytest.mark.parametrize("name", [*NOT_ELEMENTWISE, "of one's own"])
def test_an_optimizer_that_looks_at_whole_tensors_is_refused_before_anything_moves(name: str) -> None:
    whole = model()
    before = whole[0].up.weight.data_ptr()
    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"use .* AdamW"):
        ZeroEngine(whole, LocalCollectives(), 1, optimizer=NOT_ELEMENTWISE.get(name, partial(NormedSGD, lr=0.1)))
    assert whole[0].up.weight.data_ptr() == before
    ZeroEngine(whole, LocalCollectives(), 1, lr=0.1)


@pytest.mark.parametrize("align", [1, 16])
def test_groups_give_each_parameter_its_own_options(align: int) -> None:
    def run(comm: Collectives) -> list[tuple[dict[str, torch.Tensor], list[float]]]:
        found = []
        for stage in STAGES:
            # Leave some ranks without a bias of their own: their groups must be there all the same.
            engine = ZeroEngine(model(), comm, stage, optimizer=sgd(), groups=decay_matrices, align=align)
            decays = [group["weight_decay"] for group in engine.optimizer.param_groups]
            for step in range(3):
                engine.backward(loss_of(engine(rows(comm.rank, step))))
                engine.step()
            found.append((engine.consolidate(), decays))
        return found

    by_rank = lockstep(run)
    assert {tuple(decays) for of_rank in by_rank for _, decays in of_rank} == {(0.1, 0.0)}
    assert len({digest(state) for of_rank in by_rank for state, _ in of_rank}) == 1
    assert largest_difference(by_rank[0][0][0], three_steps_of_torch(sgd(), grouped=True)) < 1e-6


@pytest.mark.filterwarnings("error:Detected call of:UserWarning")
def test_a_scheduler_of_torch_sets_every_groups_rate_on_every_rank_even_one_that_owns_nothing() -> None:
    schedule = partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: 1 / (1 + step))

    def rate(name: str, parameter: nn.Parameter) -> dict[str, float]:
        return {"lr": 0.1 if name == "weight" else 0.2}

    def three(made: O.Optimizer, one: Callable[[], None]) -> list[list[float]]:
        scheduler, rates = schedule(made), []
        for _ in range(3):
            one()
            scheduler.step()
            rates.append(scheduler.get_last_lr())
        return rates

    def run(comm: Collectives, stage: int) -> tuple[list[float], list[list[float]], int]:
        torch.manual_seed(0)
        engine = ZeroEngine(nn.Linear(2, 1), comm, stage, optimizer=sgd(), groups=rate)

        def one() -> None:
            engine.backward(loss_of(engine(torch.ones(2, 2))))
            engine.step()

        rates = three(engine.optimizer, one)
        state = engine.consolidate()
        return (
            [*state["weight"][0].tolist(), *state["bias"].tolist()],
            rates,
            sum(o.tensor.numel() for o in engine.optimizer_step.segments),
        )

    torch.manual_seed(0)
    small = nn.Linear(2, 1)
    made = sgd()([{"params": [p], **rate(name, p)} for name, p in small.named_parameters()])

    def alone() -> None:
        made.zero_grad()
        loss_of(small(torch.ones(2, 2))).backward()
        made.step()

    expected = three(made, alone)
    for stage in STAGES:
        ended = lockstep(run, stage, ranks=4)
        for parameters, rates, _ in ended:
            assert parameters == pytest.approx([*small.weight[0].tolist(), *small.bias.tolist()], abs=1e-6)
            assert rates == expected
        assert stage == 0 or min(owned for _, _, owned in ended) == 0


class Looking(torch.optim.AdamW):
    """Notes how many parameters it looks at in each step."""

    looked: tuple[int, ...] = ()

    def step(self, closure: Any = None) -> Any:
        self.looked += (sum(len(options["params"]) for options in self.param_groups),)
        return super().step(closure)


def test_a_sub_group_is_stepped_without_a_look_at_the_parameters_of_others() -> None:
    """A rank that keeps all states of a large model has thousands of them."""

    def run(comm: Collectives) -> None:
        found = set[str]()
        for optimizer in (torch.optim.AdamW, Looking):
            factory = partial(optimizer, lr=0.1)
            offload = Offload(sub_group_numel=64)
            engine = ZeroEngine(
                model(), comm, 2, optimizer=factory, groups=decay_matrices, precision="bf16", offload=offload
            )
            for step in range(2):
                engine.backward(loss_of(engine(rows(comm.rank, step).bfloat16())))
                engine.step()
            found.add(digest(engine.consolidate()))
            sizes = [len(group) for group in engine.optimizer_step.groups]
            assert sum(len(options["params"]) for options in engine.optimizer.param_groups) == sum(sizes)
            assert not engine.optimizer_step.transient(), "nothing is at hand between steps"
        assert len(sizes) > 3 and engine.optimizer.looked == (*sizes, *sizes) and len(found) == 1

    lockstep(run)


class CountsInOptions(torch.optim.Optimizer):
    """Counts its steps in a group's options, as some do, and moves by one step more in each; `fussy`: it passes over a
    group without parameters."""

    def __init__(self, groups: Any, fussy: bool = False) -> None:
        super().__init__(groups, {"lr": 1.0, "weights": [0.0]})
        self.fussy = fussy

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if self.fussy and not group["params"]:
                continue
            group["step"] = group.get("step", 0) + 1
            group["weights"][0] += 0.5
            for parameter in group["params"]:
                parameter -= group["step"] * group["weights"][0] * torch.ones_like(parameter.grad)


class CountsInItself(CountsInOptions):
    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= self.steps * torch.ones_like(parameter.grad)


@pytest.mark.parametrize("fussy", [False, True])
def test_an_optimizer_that_counts_in_its_options_counts_a_step_once(fussy: bool) -> None:
    """However many sub-groups a rank has, and whichever group's are the last."""

    def run(comm: Collectives, stage: int) -> tuple[list[float], list[Any], list[bool]]:
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        before = {name: value.detach().clone() for name, value in net.named_parameters()}
        offload = Offload(optimizer="host", sub_group_numel=16)
        engine = ZeroEngine(
            net, comm, stage, optimizer=partial(CountsInOptions, fussy=fussy), groups=decay_matrices, offload=offload
        )
        assert len(engine.optimizer_step.groups) > 2
        for _ in range(3):
            engine.backward(engine(torch.ones(2, 8)).sum())
            engine.step()
        moved = [(before[name] - value).mean().item() for name, value in engine.consolidate().items()]
        groups = engine.optimizer.param_groups
        counted = [(options.get("step", 0), options["weights"]) for options in groups]
        return moved, counted, [bool(options["params"]) for options in groups]

    for moved, counted, owned in [*lockstep(run, 0), *lockstep(run, 2)]:
        assert moved == pytest.approx([0.5 + 2 * 1.0 + 3 * 1.5] * 4, rel=1e-5)
        # A rank with nothing of a group passes over it, if the optimizer does.
        assert counted == [(3, [1.5]) if mine or not fussy else (0, [0.0]) for mine in owned]


def test_an_optimizer_that_counts_in_itself_is_refused_where_a_step_takes_several_calls() -> None:
    at_once = ZeroEngine(nn.Linear(8, 8), LocalCollectives(), 1, optimizer=CountsInItself)
    at_once.close()
    with pytest.raises(InputError, match=r"CountsInItself keeps something of a step in itself.*several calls"):
        ZeroEngine(nn.Linear(8, 8), LocalCollectives(), 1, optimizer=CountsInItself, offload=Offload(optimizer="host"))


@pytest.mark.parametrize(
    ("dtype", "norm_type"), [(torch.complex64, 1.0), (torch.complex128, 2.0), (torch.complex64, float("inf"))]
)
def test_complex_gradients_are_clipped_by_their_absolute_values(norm_type: float, dtype: torch.dtype) -> None:
    def grow() -> nn.ParameterDict:
        return nn.ParameterDict({"z": torch.tensor([3 + 4j, 1 - 1j], dtype=dtype), "x": torch.tensor([2.0, -1.0])})

    def loss_of_all(model: Any) -> torch.Tensor:
        return (model["z"] * model["z"].conj()).real.sum() + model["x"].square().sum()

    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = grow()

        def forward(self) -> torch.Tensor:
            return loss_of_all(self.all)

    alone = Waves()
    loss_of_all(alone.all).backward()
    # torch's own function takes no mixed dtypes on all versions: by hand.
    every = torch.cat([p.grad.abs().double().view(-1) for p in alone.parameters() if p.grad is not None])
    expected = every.norm(norm_type).item()

    def run(comm: Collectives, stage: int) -> tuple[float | None, dict[str, torch.Tensor]]:
        engine = ZeroEngine(Waves(), comm, stage, optimizer=sgd(), clip_norm=1.0, norm_type=norm_type)
        engine.backward(engine())
        return engine.step().norm, engine.consolidate()

    for stage in STAGES:
        for norm, state in lockstep(run, stage):
            assert norm == pytest.approx(expected, rel=1e-5)
            for (name, value), parameter in zip(state.items(), alone.parameters(), strict=True):
                lr = 0.1
                assert torch.allclose(value, parameter.detach() - lr * parameter.grad / expected, rtol=1e-4), name


# Writes to the optimizer's own tensors between steps


class ScheduleFree(torch.optim.SGD):
    """SGD that is evaluated at an average of where it was, as schedule-free optimizers are: `eval()` and `train()`
    write to the parameters."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for parameter in self._parameters():
            state = self.state[parameter]
            average = state.setdefault("average", parameter.clone())
            average.lerp_(parameter, 0.5)

    @torch.no_grad()
    def eval(self) -> None:
        for parameter in self._parameters():
            self.state[parameter]["kept"] = parameter.clone()
            parameter.copy_(self.state[parameter]["average"])

    @torch.no_grad()
    def train(self) -> None:
        for parameter in self._parameters():
            parameter.copy_(self.state[parameter]["kept"])

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def schedule_free(parameters: Any) -> ScheduleFree:
    return ScheduleFree(parameters, lr=0.1)


def evaluated_and_trained_on(comm: Collectives, engine: ZeroEngine) -> list[dict[str, torch.Tensor]]:
    ended = []
    for at in (0, 1):
        engine.backward(loss_of(engine(rows(comm.rank, at)).float()))
        engine.step()
        engine.optimizer.eval()  # type: ignore[attr-defined]
        engine.publish()
        ended.append(engine.state_dict())
        engine.optimizer.train()  # type: ignore[attr-defined]
        engine.publish()
    return [*ended, engine.state_dict()]


@pytest.mark.parametrize("options", [{"overlap_gather": True}, {"precision": "bf16"}], ids=str)
def test_what_is_written_to_the_optimizers_tensors_is_published_to_all_ranks(options: dict[str, Any]) -> None:
    def alone() -> list[dict[str, torch.Tensor]]:
        whole, ended = model(), []
        optimizer = schedule_free(whole.parameters())
        for at in (0, 1):
            optimizer.zero_grad()
            (sum(loss_of(whole(rows(rank, at))) for rank in (0, 1)) / 2).backward()
            optimizer.step()
            optimizer.eval()
            ended.append({name: value.clone() for name, value in whole.state_dict().items()})
            optimizer.train()
        return [*ended, whole.state_dict()]

    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> list[dict[str, torch.Tensor]]:
        return evaluated_and_trained_on(comm, new_engine())

    found = at_every_stage(run, optimizer=schedule_free, **options)
    assert len({tuple(map(digest, states)) for states in found}) == 1
    for state, expected in zip(found[0], alone(), strict=True):
        named = {name: value.float() for name, value in state.items()}
        assert largest_difference(named, expected) < (1e-2 if "precision" in options else 1e-5)


ASKS = ("forward", "backward", "state_dict", "summon_full_params", "save")


@pytest.mark.parametrize(
    ("ask", "options", "remedy"),
    [
        *((ask, {}, r"AdamW.*engine\.publish\(\)") for ask in ASKS),
        ("forward", {"precision": "bf16"}, r"AdamW.*engine\.publish\(\)"),
        ("state_dict", {"precision": Precision(exp_avg="fp8")}, r"AdamW.*leave out offload and dtypes"),
    ],
    ids=str,
)
def test_a_write_to_the_optimizers_tensors_is_refused_until_it_is_published(
    ask: str, options: dict[str, Any], remedy: str, tmp_path: Path
) -> None:
    def write(tensor: torch.Tensor) -> None:
        """By habit, in one of three ways."""
        if ask in ("forward", "save"):
            tensor.data.mul_(0.5)
        elif ask == "backward":
            tensor.data = tensor.data * 0.5
        else:
            with torch.no_grad():
                tensor.mul_(0.5)

    def asked(engine: ZeroEngine, loss: torch.Tensor, rank: int) -> None:
        if ask == "forward":
            engine(rows(rank, 0))
        elif ask == "backward":
            engine.backward(loss)
        elif ask == "state_dict":
            engine.state_dict()
        elif ask == "summon_full_params":
            with engine.summon_full_params():
                pass
        else:
            Checkpoints(str(tmp_path / str(engine.stage))).save(engine, step=1)

    def run(comm: Collectives) -> None:
        # At stage 0, in the model's dtype, the optimizer's tensors are the model's own.
        for stage in (0, 3) if options else (1, 3):
            engine = ZeroEngine(model(), comm, stage, optimizer=adamw(), **options)
            engine.backward(loss_of(engine(rows(comm.rank, 0)).float()))
            engine.step()
            loss = loss_of(engine(rows(comm.rank, 0)).float())
            for group in engine.optimizer.param_groups:
                for tensor in group["params"]:
                    write(tensor)
            with pytest.raises(StateError, match=remedy):
                asked(engine, loss, comm.rank)

    lockstep(run)


@pytest.mark.ranks
@pytest.mark.parametrize("training", [True, False], ids=["gradients of inputs", "a loss of validation"])
def test_what_no_reduction_ends_has_no_value_that_a_peer_wrote_to_its_shard_after_it(training: bool) -> None:
    def run(comm: Collectives) -> list[float]:
        found = []
        for _ in range(4):
            torch.manual_seed(0)
            layers = nn.Sequential(*[nn.Linear(700, 700, bias=False) for _ in range(6)])
            engine = ZeroEngine(layers, comm, 3, optimizer=sgd())
            engine.model.train(training)
            inputs = torch.ones(2, 700, requires_grad=training)
            comm.barrier()
            result = engine(inputs)
            if training:
                comm.barrier()
                (result,) = torch.autograd.grad(result.sum(), inputs)
            for group in engine.optimizer.param_groups:
                torch._foreach_zero_(group["params"])
            found.append(result.double().sum().item())
            engine.publish()
        return found

    right = lockstep(run, ranks=3)[0]
    assert launch(run, ranks=3, timeout=100) == [right] * 3


@pytest.mark.ranks
def test_a_state_dict_has_no_value_that_a_peer_wrote_to_its_shard_after_it() -> None:
    """A rank that is done may write to its shard while slower ones still read it, unless it waits for them."""

    def run(comm: Collectives) -> float:
        torch.manual_seed(0)
        layers = nn.Sequential(*[nn.Linear(700, 700, bias=False) for _ in range(4)])
        engine = ZeroEngine(layers, comm, 3, optimizer=sgd())
        before, most = engine.state_dict(), 0.0
        for _ in range(8):
            comm.barrier()
            with torch.no_grad():
                engine(torch.ones(2, 700))
            state = engine.state_dict()
            for group in engine.optimizer.param_groups:
                torch._foreach_zero_(group["params"])
            most = max(most, largest_difference(state, before))
            engine.publish()
            engine.load_state_dict(before)
        return most

    assert launch(run, ranks=3, timeout=100) == [0.0] * 3
