"""A step is right whatever led to it: several forwards or backwards, failures and repeats, clipping, any optimizer."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from zero_cases import digest, largest_difference, sgd
from zero_models import STAGES, ReentrantCheckpoint, at_every_stage, lockstep, loss_of, model, rows

from zerolab.collectives import Collectives
from zerolab.errors import DeadlockError, MismatchError, StateError
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = pytest.mark.timeout(150)


def step_of_torch(losses: Callable[[nn.Module], torch.Tensor], optimizer: Any = None) -> dict[str, torch.Tensor]:
    alone = model()
    made = (optimizer or sgd())(alone.parameters())
    losses(alone).backward()
    made.step()
    return {name: p.detach() for name, p in alone.named_parameters()}


# Forwards and backwards in other numbers than one


def both_rows(alone: nn.Module, times: int = 2) -> torch.Tensor:
    """The loss of two ranks and of two inputs each, added over inputs and averaged over ranks."""
    return sum(loss_of(alone(rows(rank, at))) for at in range(times) for rank in (0, 1)) / 2


def two_forwards_one_backward(comm: Collectives, engine: ZeroEngine) -> None:
    engine.backward(loss_of(engine(rows(comm.rank, 0))) + loss_of(engine(rows(comm.rank, 1))))


def two_backwards(comm: Collectives, engine: ZeroEngine) -> None:
    for at in (0, 1):
        engine.backward(loss_of(engine(rows(comm.rank, at))))


def two_forwards_two_backwards(comm: Collectives, engine: ZeroEngine) -> None:
    losses = [loss_of(engine(rows(comm.rank, at))) for at in (0, 1)]
    for loss in losses:
        engine.backward(loss)


def first_backward_deferred(comm: Collectives, engine: ZeroEngine) -> None:
    for at in (0, 1):
        engine.backward(loss_of(engine(rows(comm.rank, at))), reduce=at == 1)


def a_forward_that_nobody_wanted(comm: Collectives, engine: ZeroEngine) -> None:
    for at in (0, 1):
        engine(rows(comm.rank, 7))
        loss = loss_of(engine(rows(comm.rank, at)))
        engine(rows(comm.rank, 8))
        engine.backward(loss)


@pytest.mark.parametrize(
    "passes",
    [
        two_forwards_one_backward,
        two_backwards,
        two_forwards_two_backwards,
        first_backward_deferred,
        a_forward_that_nobody_wanted,
    ],
)
def test_gradients_of_any_order_of_passes_add_up(passes: Callable[[Collectives, ZeroEngine], None]) -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> dict[str, torch.Tensor]:
        engine = new_engine()
        passes(comm, engine)
        engine.step()
        return engine.consolidate()

    ended = at_every_stage(run)
    assert len({digest(state) for state in ended}) == 1
    assert largest_difference(ended[0], step_of_torch(both_rows)) < 1e-5


def test_a_step_needs_reduced_gradients_and_forgets_them() -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> list[str]:
        engine, said = new_engine(), []

        def refused() -> None:
            with pytest.raises(StateError) as error:
                engine.step()
            said.append(str(error.value))

        refused()
        engine.backward(loss_of(engine(rows(0, 0))), reduce=False)
        refused()
        engine.backward(loss_of(engine(rows(0, 0))))
        engine.step()
        refused()
        engine.backward(loss_of(engine(rows(0, 0))))
        engine.zero_grad()
        refused()
        return said

    nothing, unreduced = "call backward(loss) first", "reduce=True"
    for said in at_every_stage(run):
        assert [hint in one for hint, one in zip((nothing, unreduced, nothing, nothing), said, strict=True)] == [
            True
        ] * 4


# Failures


class BreakError(Exception):
    pass


def break_forward(engine: ZeroEngine, x: torch.Tensor) -> None:
    def fail(*_: Any) -> None:
        raise BreakError

    with_hook = engine.model[2].register_forward_pre_hook(fail)
    try:
        engine(x)
    finally:
        with_hook.remove()


def break_backward(engine: ZeroEngine, x: torch.Tensor, by_engine: bool = True) -> None:
    """Fail half-way: the last layers have their gradients, and reductions are under way."""

    def spoil(_module: nn.Module, _args: Any, output: torch.Tensor) -> None:
        output.register_hook(fail)

    def fail(_: torch.Tensor) -> None:
        raise BreakError

    with_hook = engine.model[1].register_forward_hook(spoil)
    try:
        loss = loss_of(engine(x))
    finally:
        with_hook.remove()
    engine.backward(loss) if by_engine else loss.backward()


@pytest.mark.parametrize("reduce_first", [True, False])
@pytest.mark.parametrize("fail", [break_forward, break_backward])
def test_an_accumulation_that_failed_and_is_repeated_leaves_no_trace(
    fail: Callable[[ZeroEngine, torch.Tensor], None], reduce_first: bool
) -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> tuple[str, str]:
        ended = []
        for failing in (False, True):
            engine = new_engine()
            for at in (0, 1):
                if failing:
                    engine.backward(loss_of(engine(rows(comm.rank, at))), reduce=reduce_first)
                    with pytest.raises(BreakError):
                        fail(engine, rows(comm.rank, 9))
                    if fail is break_backward:
                        with pytest.raises(StateError, match="zero_grad"):
                            engine.step()
                        with pytest.raises(StateError, match="zero_grad"):
                            engine.backward(loss_of(engine(rows(comm.rank, at))))
                    engine.zero_grad()
                for micro in (0, 1):
                    engine.backward(loss_of(engine(rows(comm.rank, 2 * at + micro))), reduce=reduce_first or micro == 1)
                engine.step()
            ended.append(digest(engine.consolidate()))
        return ended[0], ended[1]

    assert len({one for pair in at_every_stage(run, clip_norm=0.5) for one in pair}) == 1


@pytest.mark.parametrize("reduce_first", [True, False])
def test_a_forward_that_failed_is_tried_again_alone_and_the_micro_batches_before_it_count(reduce_first: bool) -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> dict[str, torch.Tensor]:
        engine = new_engine()
        engine.backward(loss_of(engine(rows(comm.rank, 0))), reduce=reduce_first)
        with pytest.raises(BreakError):
            break_forward(engine, rows(comm.rank, 1))
        engine.backward(loss_of(engine(rows(comm.rank, 1))))
        engine.step()
        return engine.consolidate()

    ended = at_every_stage(run)
    assert len({digest(state) for state in ended}) == 1
    assert largest_difference(ended[0], step_of_torch(both_rows)) < 1e-5


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_rank_with_a_micro_batch_more_than_the_others_is_named(stage: int, clip_norm: float | None) -> None:
    def run(comm: Collectives) -> None:
        engine = ZeroEngine(model(), comm, stage, optimizer=sgd(), clip_norm=clip_norm)
        for micro_batches in (1, 2 if comm.rank == 0 else 1):
            for at in range(micro_batches):
                engine.backward(loss_of(engine(rows(comm.rank, at))))
            engine.step()

    with pytest.raises((MismatchError, DeadlockError), match=r"(?s)(?=.*rank 0 )(?=.*rank 1 )"):
        lockstep(run)


# loss.backward()


@pytest.mark.parametrize("precision", [None, "bf16"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_loss_backward_has_the_bits_and_the_bytes_of_engine_backward(micro_batches: int, precision: str | None) -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> list[Any]:
        ended = []
        for own in (False, True):
            engine, before = new_engine(), sum(comm.meter.bytes_by_collective().values())
            for step in range(2):
                for at in range(micro_batches):
                    with engine.no_sync() if at < micro_batches - 1 else nullcontext():
                        loss = loss_of(engine(rows(comm.rank, micro_batches * step + at)).float())
                        loss.backward() if own else engine.backward(loss)
                engine.step()
            ended.append((digest(engine.consolidate()), sum(comm.meter.bytes_by_collective().values()) - before))
        return ended

    for by_engine, by_loss in at_every_stage(run, precision=precision, clip_norm=0.5):
        assert by_engine == by_loss


def test_a_loss_backward_that_failed_is_repeated_after_zero_grad_and_leaves_no_trace() -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine], fails: bool) -> str:
        engine = new_engine()
        if fails:
            with pytest.raises(BreakError):
                break_backward(engine, rows(comm.rank, 9), by_engine=False)
            with pytest.raises(StateError, match="zero_grad"):
                engine.step()
            with pytest.raises(StateError, match="zero_grad"):
                loss_of(engine(rows(comm.rank, 0))).backward()
            engine.zero_grad()
        loss_of(engine(rows(comm.rank, 0))).backward()
        engine.step()
        return digest(engine.consolidate())

    assert len({*at_every_stage(partial(run, fails=True)), *at_every_stage(partial(run, fails=False))}) == 1


def test_fp16_refuses_a_loss_backward_that_would_not_be_scaled() -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> str:
        engine = new_engine()
        with pytest.raises(StateError, match=r"call engine\.backward\(loss\)") as refused:
            loss_of(engine(rows(comm.rank, 0)).float()).backward()
        engine.backward(loss_of(engine(rows(comm.rank, 0)).float()))
        engine.step()
        return str(refused.value)

    assert all("fp16" in said for said in at_every_stage(run, precision="fp16"))


def test_gradients_of_inputs_are_no_backward_and_a_penalty_on_them_trains() -> None:
    """`torch.autograd.grad` brings no gradient to a parameter; with create_graph=True its result is part of a loss."""

    def penalized(model: Any, rank: int) -> torch.Tensor:
        x = rows(rank, 0).clone().requires_grad_()
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return (gradient.norm(dim=1) - 1).square().mean() + loss_of(out)

    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> dict[str, torch.Tensor]:
        engine = new_engine()
        before, x = comm.meter.bytes_by_collective(), rows(comm.rank, 1).clone().requires_grad_()
        torch.autograd.grad(engine(x).sum(), x)
        now = comm.meter.bytes_by_collective()
        assert {name for name in now if now[name] != before.get(name)} <= {"all_gather"}
        engine.backward(penalized(engine, comm.rank))
        engine.step()
        return engine.consolidate()

    ended = at_every_stage(run)
    assert len({digest(state) for state in ended}) == 1
    alone = step_of_torch(lambda model: (penalized(model, 0) + penalized(model, 1)) / 2)
    assert largest_difference(ended[0], alone) < 1e-5


@pytest.mark.parametrize("stage", range(4))
def test_a_graph_of_before_a_step_is_refused_after_it_as_in_plain_torch(stage: int) -> None:
    def run(comm: Collectives) -> bool:
        layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        engine = ZeroEngine(layers, comm, stage, lr=0.1)
        first, second = (engine(torch.full((2, 4), at)).square().sum() for at in (1.0, 2.0))
        engine.backward(first)
        engine.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            engine.backward(second)
        engine.zero_grad()
        for _ in range(2):
            engine.backward(engine(torch.ones(2, 4)).sum())
            engine.step()
        with engine.summon_full_params():
            layers[0].weight.data.fill_(1.0)
        return bool((engine.state_dict()["0.weight"] == 1.0).all())

    assert launch(run, ranks=2, world="lockstep", timeout=60) == [True] * 2


def test_a_second_gradient_after_the_reduction_is_refused_and_leaves_no_trace() -> None:
    """A reentrant checkpoint around a layer called twice brings its gradients one by one."""

    def run(comm: Collectives, stage: int, fails: bool) -> str:
        torch.manual_seed(0)
        model = ReentrantCheckpoint(times=2)
        engine = ZeroEngine(model, comm, stage, optimizer=sgd())
        model.reentrant = fails
        if fails:
            with pytest.raises(StateError, match=r"layers\.1\.up.*use_reentrant=False"):
                engine.backward(loss_of(engine(rows(comm.rank, 0))))
            engine.zero_grad()
        # Where nothing is reduced yet they may come one by one.
        engine.backward(loss_of(engine(rows(comm.rank, 0))), reduce=False)
        model.reentrant = False
        engine.backward(loss_of(engine(rows(comm.rank, 1))))
        engine.step()
        return digest(engine.consolidate())

    ended = [one for stage in STAGES for fails in (True, False) for one in lockstep(run, stage, fails)]
    assert len(set(ended)) == 1


@pytest.mark.parametrize(("bad", "norm_type"), [(float("nan"), 2.0), (float("inf"), 1.0), (float("nan"), float("inf"))])
def test_one_ranks_bad_gradient_makes_all_ranks_skip_the_same_step(bad: float, norm_type: float) -> None:
    def run(comm: Collectives, new_engine: Callable[[], ZeroEngine]) -> list[Any]:
        engine, said = new_engine(), []
        for step in range(3):
            before = digest(engine.consolidate())
            x = rows(comm.rank, step)
            if step == 1 and comm.rank == 1:
                x[0, 0] = bad
            engine.backward(loss_of(engine(x)))
            result = engine.step()
            said.append((result.skipped, digest(engine.consolidate()) != before))
        return said

    assert (
        at_every_stage(run, clip_norm=1.0, norm_type=norm_type) == [[(False, True), (True, False), (False, True)]] * 10
    )
