"""Training in 16 bits: overflows are seen by all ranks alike, norms and sums lose nothing, padding never counts."""

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cover import covering, pairs
from test_zero_optimizers import poison_padding
from torch import nn
from zero_cases import adamw, digest, sgd
from zero_models import MODELS, build, lockstep, loss_of, model, rows

from zerolab.collectives import Collectives
from zerolab.collectives import build as build_comm
from zerolab.collectives.call import Call
from zerolab.collectives.transport import Transport, WrappedTransport
from zerolab.errors import InputError
from zerolab.offload import Offload
from zerolab.offload.places import NO_OFFLOAD
from zerolab.precision import LossScaler, Precision
from zerolab.precision.scaler import ScaleError
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine, stored_step
from zerolab.zero.step import gradient_norm

pytestmark = pytest.mark.timeout(100)

STAGES = (0, 2, 3)
REDUCED: tuple[tuple[int, dict[str, Any]], ...] = ((0, {}), (1, {"reduction": "all_reduce"}), (2, {}), (3, {}))
"""Where sums are kept whole, by either call, and where they are shards."""

# Overflows

SICK = 1
"""The rank, and the step, in which a gradient is no number."""


def states_of(engine: ZeroEngine) -> str:
    """A digest of all that a step changes on this rank: parameters, main parameters and moments, as they rest."""
    kept = [bucket.shard if engine.shards_parameters else bucket.whole for bucket in engine.buckets]
    tensors = [*kept, *engine.optimizer_step.resting()]
    return digest({str(at): tensor.detach().clone() for at, tensor in enumerate(tensors)})


def spoiled(bad: float, gradient: torch.Tensor) -> torch.Tensor:
    """One element of a gradient."""
    gradient = gradient.clone()
    gradient.view(-1)[-1] = bad
    return gradient


def overflow(
    comm: Collectives, stage: int, clip: float | None, micro_batches: int, bad: float, offload: Offload = NO_OFFLOAD
) -> list[Any]:
    """Of each step: skipped, its scale, the next one's, whether the norm is a number, whether a state changed."""
    engine = ZeroEngine(
        model(), comm, stage, optimizer=adamw(1e-2), precision="fp16", bucket_numel=30, clip_norm=clip,
        scaler=LossScaler(initial_power=8, hysteresis=1), offload=offload,
    )  # fmt: skip
    first = engine.reducer.order[-1].parameters[0]
    assert first is engine.model[0].up.weight, "its bucket is reduced last"
    said: list[Any] = []
    for step in range(3):
        before = states_of(engine)
        for micro in range(micro_batches):
            sick = step == SICK and comm.rank == SICK and micro == 0
            hook = first.register_hook(partial(spoiled, bad)) if sick else None
            engine.backward(loss_of(engine(rows(comm.rank, 2 * step + micro))) / micro_batches)
            if hook is not None:
                hook.remove()
        result = engine.step()
        number = None if result.norm is None else 0 < result.norm < 100
        said.append((result.skipped, result.loss_scale, engine.loss_scale, number, states_of(engine) != before))
    said.append(digest(engine.consolidate()))
    engine.close()
    return said


CASES = covering(list(product((None, 0.5), (1, 2), (float("inf"), float("nan")))), lambda case: pairs(*case))


def all_overflows(comm: Collectives) -> list[list[Any]]:
    return [overflow(comm, stage, *case) for case in CASES for stage in STAGES]


@pytest.mark.ranks
def test_one_ranks_overflow_makes_all_skip_that_step_and_halve_the_scale_once() -> None:
    by_rank = list(launch(all_overflows, ranks=2, timeout=60))
    for said in zip(*by_rank, strict=True):
        assert all(one == said[0] for one in said)
    for case, at in zip(CASES, range(0, len(by_rank[0]), len(STAGES)), strict=True):
        of_stages = by_rank[0][at : at + len(STAGES)]
        assert len({ended for *_, ended in of_stages}) == 1
        number = None if case[0] is None else True
        for *steps, _ in of_stages:
            assert steps == [
                (False, 256.0, 256.0, number, True),
                (True, 256.0, 128.0, None if case[0] is None else False, False),
                (False, 128.0, 128.0, number, True),
            ]


class Slow(WrappedTransport):
    """A wire on which every message takes a while."""

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Any:
        time.sleep(1e-3)
        return super().isend(tensor, dst, tag)

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        time.sleep(1e-3)
        super().exchange(outgoing, dst, incoming, src, tag)

    def left(self, call: Call) -> None:
        time.sleep(1e-3)
        super().left(call)


@pytest.mark.ranks
def test_an_overflow_in_the_bucket_that_arrives_last_over_a_slow_wire_is_seen() -> None:
    """The check comes after the end of the asynchronous reduction, not after backward has left the last layer."""

    def slowly(transport: Transport) -> list[list[Any]]:
        comm = build_comm(Slow(transport))
        found = [overflow(comm, stage, None, 1, float("inf")) for stage in STAGES]
        comm.close()
        return found

    for of_rank in launch(slowly, ranks=2, collectives="transport", timeout=60):
        assert [[one[0] for one in steps[:3]] for steps in of_rank] == [[False, True, False]] * len(STAGES)
        assert len({steps[-1] for steps in of_rank}) == 1


def test_a_skipped_step_leaves_states_off_the_device_alone(tmp_path: Path) -> None:
    def run(comm: Collectives) -> list[Any]:
        places = [NO_OFFLOAD, *(Offload(of, path=tmp_path, sub_group_numel=40) for of in ("host", "disk"))]
        return [overflow(comm, 2, 0.5, 2, float("nan"), place) for place in places]

    for device, *others in lockstep(run):
        for elsewhere in others:
            assert [steps[:4] for steps in device[:3]] == [steps[:4] for steps in elsewhere[:3]]
            assert device[-1] == elsewhere[-1] and elsewhere[1][0]


def test_a_scale_that_is_too_high_at_first_comes_down_until_training_goes_on() -> None:
    def run(comm: Collectives) -> list[Any]:
        ended = []
        for stage in STAGES:
            scaler = LossScaler(initial_power=24, hysteresis=1)
            engine = ZeroEngine(model(), comm, stage, optimizer=sgd(), precision="fp16", scaler=scaler)
            results = []
            for _ in range(24):
                engine.backward(loss_of(engine(rows(comm.rank, 0))))
                results.append(engine.step())
            ended.append(([(one.skipped, one.loss_scale) for one in results], digest(engine.consolidate())))
        return ended

    by_rank = lockstep(run)
    steps = by_rank[0][0][0]
    skipped = [skip for skip, _ in steps]
    assert 0 < sum(skipped) < 20 and skipped == sorted(skipped, reverse=True), "it is skipped first, then never"
    assert [scale for _, scale in steps] == [2.0 ** (24 - min(at, sum(skipped))) for at in range(24)]
    assert all(one == by_rank[0][0] for of_rank in by_rank for one in of_rank)


def test_an_overflow_at_the_smallest_scale_says_what_to_do_on_every_rank() -> None:
    def run(comm: Collectives) -> list[Any]:
        said = []
        for stage in STAGES:
            scaler = LossScaler(initial_power=1, hysteresis=1)
            engine = ZeroEngine(model(), comm, stage, optimizer=sgd(), precision="fp16", scaler=scaler)
            before = digest(engine.consolidate())
            for _ in range(2):
                engine.backward(loss_of(engine(rows(comm.rank, 0))) * (1e30 if comm.rank == SICK else 1.0))
                if scaler.scale > 1:
                    assert engine.step().skipped
            with pytest.raises(ScaleError) as error:
                engine.step()
            said.append((str(error.value), digest(engine.consolidate()) == before))
            # It is not the end: with smaller losses the run goes on.
            engine.backward(loss_of(engine(rows(comm.rank, 0))))
            assert not engine.step().skipped
        return said

    for said, same in [one for of_rank in lockstep(run) for one in of_rank]:
        assert same and "smallest loss scale, 1" in said and "bf16" in said


@pytest.mark.parametrize(
    ("precision", "scaler", "scale"), [("bf16", None, 1.0), ("fp16", LossScaler(static=32.0), 32.0)]
)
def test_bf16_scales_no_loss_and_a_static_scale_stays(precision: str, scaler: LossScaler | None, scale: float) -> None:
    def run(comm: Collectives, stage: int) -> list[Any]:
        engine = ZeroEngine(model(), comm, stage, optimizer=sgd(), precision=precision, scaler=scaler, clip_norm=1.0)
        said: list[Any] = []
        for step in range(3):
            bad = float("inf") if step == SICK and comm.rank == SICK else 1.0
            engine.backward(loss_of(engine(rows(comm.rank, step))) * bad)
            result = engine.step()
            said.append((result.skipped, result.loss_scale, engine.loss_scale))
        return said

    for stage in (0, 3):
        assert lockstep(run, stage) == [[(step == SICK, scale, scale) for step in range(3)]] * 2


@pytest.mark.parametrize("precision", [None, "fp32", "bf16", "bf16_fp32_grads"])
def test_a_scaler_that_nothing_needs_is_refused(precision: str | None) -> None:
    def run(comm: Collectives) -> None:
        with pytest.raises(InputError, match=r"no state is fp16; leave it out"):
            ZeroEngine(model(), comm, 2, lr=0.1, precision=precision, scaler=LossScaler())

    lockstep(run)


def test_the_norm_of_a_step_is_that_of_the_gradients_without_their_scale() -> None:
    def run(comm: Collectives, precision: str, power: int) -> float:
        scaler = LossScaler(initial_power=power) if precision == "fp16" else None
        engine = ZeroEngine(model(), comm, 2, optimizer=sgd(), precision=precision, scaler=scaler, clip_norm=1e-3)
        engine.backward(loss_of(engine(rows(comm.rank, 0))))
        return engine.step().norm or 0.0

    expected = lockstep(run, "fp32", 0)[0]
    for power in (4, 10):
        assert lockstep(run, "fp16", power) == [pytest.approx(expected, rel=1e-2)] * 2


# Norms and sums


@pytest.mark.parametrize("precision", ["fp16", "bf16_fp32_grads"])
def test_the_norm_over_16_bit_shards_is_the_norm_of_the_whole(precision: str) -> None:
    def run(comm: Collectives) -> list[Any]:
        found = []
        for stage in STAGES:
            engine = ZeroEngine(model(), comm, stage, optimizer=sgd(), precision=precision)
            engine.backward(loss_of(engine(rows(comm.rank, 0))))
            own = []
            for bucket in engine.buckets:
                reduced = bucket.gradients.reduced
                assert reduced is not None
                offset = 0 if reduced.numel() == bucket.layout.numel else bucket.layout.shard(comm.rank)[0]
                pieces = bucket.layout.pieces(comm.rank)
                own += [reduced[piece.start - offset : piece.stop - offset].double() for piece in pieces]
            norms = [gradient_norm(comm, engine.buckets, p) for p in (1.0, 2.0, float("inf"))]
            found.append((torch.cat(own), norms))
        return found

    by_rank = lockstep(run, ranks=3)
    whole = sum(p.numel() for p in model().parameters())
    for of_stage in zip(*by_rank, strict=True):
        gradients = torch.cat([own for own, _ in of_stage])
        assert gradients.numel() == whole
        for at, p in enumerate((1.0, 2.0, float("inf"))):
            expected = torch.linalg.vector_norm(gradients, p).item()
            assert {norms[at] for _, norms in of_stage} == {of_stage[0][1][at]}
            assert of_stage[0][1][at] == pytest.approx(expected, rel=1e-6)
    assert len({tuple(norms) for of_rank in by_rank for _, norms in of_rank}) == 1


RECIPES = ("fp16", "bf16_fp32_grads", "pure_bf16", "bf16_fp8_moments")


@pytest.mark.parametrize("precision", RECIPES)
def test_what_memory_held_before_changes_nothing(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(comm: Collectives) -> list[str]:
        ended, allocate = [], comm.allocate
        for stage, held in product(STAGES, (0, 0x7E)):
            comm.allocate = lambda *args, held=held: bytes_of(allocate(*args), held)  # type: ignore[method-assign]
            # Records of encoded states, too.
            empty = {"empty": lambda *of, held=held, **as_: bytes_of(torch.empty(*of, **as_), held)}
            monkeypatch.setattr(stored_step, "torch", SimpleNamespace(**(vars(torch) | empty)))
            engine = ZeroEngine(model(), comm, stage, optimizer=adamw(1e-2), precision=precision)
            for step in range(3):
                for micro in (0, 1):
                    engine.backward(loss_of(engine(rows(comm.rank, 2 * step + micro))))
                engine.step()
            ended.append(digest(engine.consolidate()))
            del comm.allocate
        return ended

    assert len({one for of_rank in lockstep(run) for one in of_rank}) == 1


def bytes_of(tensor: torch.Tensor, held: int) -> torch.Tensor:
    tensor.view(torch.uint8).fill_(held)
    return tensor


@pytest.mark.parametrize("precision", RECIPES)
def test_poisoned_padding_changes_no_norm_and_no_parameter(precision: str) -> None:
    def run(comm: Collectives) -> list[Any]:
        found = []
        for stage, poison in product(STAGES, (0.0, 7777.0)):
            engine = ZeroEngine(model(), comm, stage, optimizer=adamw(1e-2), precision=precision, clip_norm=0.05)
            norms, poisoned = [], 0
            for step in range(3):
                engine.backward(loss_of(engine(rows(comm.rank, step))))
                poisoned += poison_padding(comm.rank, engine, poison)
                norms.append(engine.step().norm)
            found.append((digest(engine.consolidate()), norms, poisoned > 0))
        return found

    found = [one for of_rank in lockstep(run) for one in of_rank]
    assert all(one == found[0] for one in found) and found[0][2]
    assert min(found[0][1]) > 0.1, "gradients are clipped"


class Weights(nn.Module):
    """Its gradient is what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def all_sums(comm: Collectives) -> list[list[list[float]]]:
    return [sums(comm, reduce) for reduce in ("all fp32", "fp32", "bf16")]


def sums(comm: Collectives, reduce: str) -> list[list[float]]:
    """Of 256, 1 and 1: bf16 has no 257."""
    found = []
    narrow = "fp32" if reduce == "all fp32" else "bf16"
    recipe = Precision(params=narrow, grads=narrow, main_grads="fp32", reduce="fp32" if narrow == "fp32" else reduce)
    for stage, variant in REDUCED:
        engine = ZeroEngine(Weights(), comm, stage, optimizer=sgd(), precision=recipe, **variant)
        engine.backward(engine(torch.full((64,), 256.0 if comm.rank == 0 else 1.0)))
        found.append(engine.buckets[0].for_step().tolist())
    return found


@pytest.mark.parametrize(("world", "collectives"), [("lockstep", "ring"), ("processes", "shared")])
def test_16_bit_gradients_added_in_fp32_lose_nothing_and_those_added_in_16_bits_do(
    world: str, collectives: str
) -> None:
    found = launch(all_sums, ranks=3, world=world, collectives=collectives, timeout=30)
    exact, wide, narrow = map(list, zip(*found, strict=True))
    assert wide == exact
    assert {value for of_rank in exact for of_stage in of_rank for value in of_stage} <= {86.0, 0.0}
    for at in range(len(REDUCED)):
        assert [of_rank[at] for of_rank in narrow] != [of_rank[at] for of_rank in exact]


# Models and optimizers

UNABLE = {
    "two dtypes": "a dtype of its own in forward",
    "image": "running statistics in fp32",
}
"""What torch does not run when parameters change their dtype."""


def test_any_model_trains_in_16_bits_to_the_same_bits_at_every_stage() -> None:
    def run(comm: Collectives) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in MODELS.keys() - UNABLE}
        for name, (stage, variant) in product(sorted(found), REDUCED):
            given = {"optimizer": adamw(1e-2), "precision": "bf16", "clip_norm": 0.5, **variant}
            engine = ZeroEngine(build(name), comm, stage, **given)
            for step in range(2):
                engine.backward(loss_of(engine(rows(comm.rank, step))))
                engine.step()
            found[name].add(digest(engine.consolidate()))
            engine.close()
        return found

    of_ranks = lockstep(run)
    assert {name for name in of_ranks[0] if len(set.union(*(of[name] for of in of_ranks))) > 1} == set()


O = torch.optim  # noqa: E741
OPTIMIZERS: dict[str, Callable[..., O.Optimizer]] = {
    "sgd with momentum": sgd(momentum=0.9),
    "adam with a third state": partial(O.Adam, lr=1e-2, amsgrad=True),
    "adagrad from a sum above 0": partial(O.Adagrad, lr=1e-2, initial_accumulator_value=0.3),
}


@pytest.mark.parametrize("precision", ["bf16", "pure_bf16", "bf16_fp8_moments"])
def test_any_optimizer_ends_with_the_same_bits_at_every_stage_and_tier(tmp_path: Path, precision: str) -> None:
    places: list[tuple[int, dict[str, Any]]] = [
        (0, {}), (1, {"optimizer": "host"}), (2, {"optimizer": "disk"}),
        (3, {"optimizer": "disk", "parameters": "disk"}),
    ]  # fmt: skip

    def run(comm: Collectives) -> dict[str, set[str]]:
        ended: dict[str, set[str]] = {name: set() for name in OPTIMIZERS}
        for name, (stage, where) in product(OPTIMIZERS, places):
            given = Offload(path=tmp_path, sub_group_numel=300, **where)
            engine = ZeroEngine(model(), comm, stage, optimizer=OPTIMIZERS[name], precision=precision, offload=given)
            for step in range(3):
                engine.backward(loss_of(engine(rows(comm.rank, step))))
                engine.step()
            ended[name].add(digest(engine.consolidate()))
            engine.close()
        return ended

    by_rank = lockstep(run)
    assert {name: len(set.union(*(of_rank[name] for of_rank in by_rank))) for name in OPTIMIZERS} == dict.fromkeys(
        OPTIMIZERS, 1
    )
    assert len(set.union(*by_rank[0].values())) == len(OPTIMIZERS)


def test_parameters_of_other_kinds_keep_theirs_or_are_cast() -> None:
    """Whole numbers, frozen complex ones and buffers stay; float64 becomes what the recipe says."""

    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Parameter(torch.ones(3, dtype=torch.float64))
            self.whole = nn.Parameter(torch.arange(3), requires_grad=False)
            self.waves = nn.Parameter(torch.full((3,), 1 + 2j), requires_grad=False)
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.wide * x[0, :3] * self.whole).float().sum() + self.waves.abs().square().sum()

    def run(comm: Collectives, precision: str | None, stage: int) -> dict[str, torch.Tensor]:
        engine = ZeroEngine(Kinds(), comm, stage, optimizer=sgd(lr=0.125), precision=precision)
        engine.backward(engine(torch.ones(1, 6)))
        engine.step()
        state = engine.consolidate()
        engine.close()
        return state

    plain = lockstep(run, None, 0)[0]
    for stage in range(4):
        for state in lockstep(run, "bf16", stage):
            assert {name: value.dtype for name, value in state.items()} == {
                "wide": torch.bfloat16, "whole": torch.int64, "waves": torch.complex64, "seen": torch.float32
            }  # fmt: skip
            assert torch.equal(state["waves"], plain["waves"])
            assert torch.equal(state["wide"].double(), plain["wide"])


def test_complex_parameters_for_which_no_recipe_has_a_form_are_refused_by_name() -> None:
    def run(comm: Collectives) -> None:
        for stage in range(4):
            waves = nn.ParameterList([nn.Parameter(torch.full((3,), 1 + 2j))])
            with pytest.raises(InputError, match="0 is complex, and a precision says noth"):
                ZeroEngine(waves, comm, stage, lr=0.1, precision="bf16")
            ZeroEngine(waves, comm, stage, lr=0.1).close()

    lockstep(run)


def test_a_model_that_was_closed_in_fp8_goes_into_another_engine() -> None:
    def run(comm: Collectives) -> None:
        made = model()
        for _ in range(2):
            engine = ZeroEngine(made, comm, 2, lr=0.1, precision="fp8")
            engine.backward(loss_of(engine(rows(comm.rank, 0))))
            engine.step()
            engine.close()

    lockstep(run)
