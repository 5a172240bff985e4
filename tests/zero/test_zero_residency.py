"""Stage 3 holds two units at most, stage 2 few whole gradients; and no timing whatever changes a bit."""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zero_cases import Case, Late, adamw, digest, llama, train
from zero_models import WIDTH, Residual, loss_of

from zerolab.collectives import Collectives, LocalCollectives, build
from zerolab.collectives.call import Call
from zerolab.collectives.transport import Transport, WrappedTransport
from zerolab.memory import Stage3Limits
from zerolab.ranks import launch
from zerolab.zero import Unit, ZeroEngine
from zerolab.zero.reducer import IN_FLIGHT
from zerolab.zero.units import Presence

pytestmark = pytest.mark.timeout(150)

BLOCKS = 6


class Blocks(nn.Module):
    def __init__(self, recompute: bool = False, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Residual() for _ in range(BLOCKS))
        self.recompute = recompute
        for block in self.blocks[1::2]:
            block.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x


def here(engine: ZeroEngine) -> list[str]:
    """Units of which this rank has whole parameters, by the bytes that their storages hold."""
    return [
        unit.name for unit in engine.units if any(bucket.whole.untyped_storage().nbytes() for bucket in unit.buckets)
    ]


def on_their_way(engine: ZeroEngine) -> list[str]:
    """Units whose new parameters a step has published and nobody has awaited."""
    return [unit.name for unit in engine.units if unit.arriving]


class Watched:
    """Notes which units are here whenever a unit comes or goes."""

    def __init__(self, engine: ZeroEngine) -> None:
        self.seen: list[list[str]] = []
        for unit in engine.units:
            for name in ("start_gather", "gather", "release"):
                method = getattr(unit, name)

                def noted(method: Any = method) -> None:
                    self.seen.append(here(engine))
                    method()
                    self.seen.append(here(engine))

                setattr(unit, name, noted)

    @property
    def most(self) -> int:
        return max(map(len, self.seen))


@pytest.mark.parametrize("options", [{}, {"recompute": True}, {"frozen": True}], ids=str)
@pytest.mark.parametrize(("prefetch", "most"), [(True, 2), (False, 1)])
def test_stage_3_holds_the_unit_at_hand_and_one_fetched_ahead(
    options: dict[str, bool], prefetch: bool, most: int
) -> None:
    def watch(comm: Collectives) -> list[Any]:
        engine = ZeroEngine(Blocks(**options), comm, 3, optimizer=adamw(), prefetch=prefetch)
        found = []
        for step in range(3):
            watched = Watched(engine)
            loss = loss_of(engine(torch.ones(4, WIDTH)))
            found += [watched.most if step else most, here(engine)]
            watched = Watched(engine)
            engine.backward(loss)
            found += [watched.most, here(engine)]
            engine.step()
        return found

    for world in ("lockstep", "processes"):
        assert launch(watch, ranks=2, world=world, timeout=60) == [[most, [], most, []] * 3] * 2


def test_a_released_unit_is_empty_before_the_next_but_one_is_gathered() -> None:
    def watch(comm: Collectives) -> list[bool]:
        engine = ZeroEngine(Blocks(), comm, 3, optimizer=adamw())
        names = [unit.name for unit in engine.units]
        neighbours = []
        for _ in range(2):
            watched = Watched(engine)
            engine.backward(loss_of(engine(torch.ones(4, WIDTH))))
            engine.step()
            at = [sorted(names.index(name) for name in seen) for seen in watched.seen]
            neighbours.append(all(len(one) < 2 or one[1] - one[0] == 1 for one in at))
            # Each was here in turn: the claim is not about units that never came.
            neighbours.append({index for one in at for index in one} == set(range(BLOCKS)))
        return neighbours

    assert launch(watch, ranks=3, world="lockstep", timeout=60) == [[True] * 4] * 3


def test_each_unit_is_gathered_once_in_forward_and_once_in_backward() -> None:
    """Recomputation finds its unit here; nothing fetched ahead is fetched again or for nothing."""

    def count(comm: Collectives, recompute: bool) -> list[dict[str, int]]:
        engine = ZeroEngine(Blocks(recompute), comm, 3, optimizer=adamw())
        assert comm.meter is not None
        counted = []
        for _ in range(3):
            comm.meter.reset()
            engine.backward(loss_of(engine(torch.ones(4, WIDTH))))
            engine.step()
            counted.append(
                {name: comm.meter.calls_by_collective(name)["all_gather"] for name in ("forward", "backward")}
            )
        return counted

    for recompute in (False, True):
        counted = launch(count, recompute, ranks=2, world="lockstep", timeout=60)
        assert counted == [[{"forward": BLOCKS, "backward": BLOCKS}] * 3] * 2


def test_row_23_a_unit_has_no_parameters_outside_its_forward_and_its_memory_is_given_back() -> None:
    def outside(comm: Collectives) -> list[Any]:
        engine = ZeroEngine(Blocks(), comm, 3, optimizer=adamw())
        model, found = engine.model, []
        for _ in range(2):
            with torch.no_grad():
                engine(torch.ones(2, WIDTH))
            elements = sum(p.untyped_storage().nbytes() for p in model.parameters())
            found.append([elements, sum(p.numel() for p in model.parameters()), here(engine)])
        whole = sum(bucket.layout.numel for bucket in engine.buckets)
        kept = sum(bucket.shard.untyped_storage().nbytes() for bucket in engine.buckets)
        return [*found, kept * comm.size == whole * 4]

    assert launch(outside, ranks=2, world="lockstep", timeout=60) == [[[0, 426, []], [0, 426, []], True]] * 2


class Visiting(Blocks):
    """Asks for its blocks' weights from outside, one after the other or, by views, all at once."""

    def forward(self, x: torch.Tensor, how: str) -> torch.Tensor:  # type: ignore[override]
        if how == "in turn":
            for block in self.blocks:
                inside = F.linear(x, block.up.weight, block.up.bias)
                x = x + F.linear(torch.tanh(inside), block.down.weight, block.down.bias)
            return x
        if how == "by views":
            views = [weight.t() for block in self.blocks for weight in (block.up.weight, block.down.weight)]
            for view in views:
                x = torch.tanh(x @ view)
            return x
        return super().forward(x)


def test_units_that_are_asked_for_from_outside_go_again() -> None:
    def watch(comm: Collectives, training: bool) -> list[Any]:
        engine = ZeroEngine(Visiting(), comm, 3, optimizer=adamw(), prefetch=False)
        found = []
        for how in ("in turn", "by views", "not at all", "in turn"):
            watched = Watched(engine)
            with torch.set_grad_enabled(training):
                loss = loss_of(engine(torch.ones(4, WIDTH), how))
            found += [watched.most, here(engine)]
            if training:
                watched = Watched(engine)
                engine.backward(loss)
                found += [watched.most, here(engine)]
                engine.step()
        return found

    one, all_ = [1, []], [BLOCKS, []]
    assert launch(watch, False, ranks=2, world="lockstep", timeout=60) == [[*one, *all_, *one, *one]] * 2
    # With gradients the graph has the views, so the units stay until its backward.
    stay = [BLOCKS, [f"blocks.{at}" for at in range(BLOCKS)]]
    expected = [*one, *one, *stay, *all_, *one, *one, *one, *one]
    assert launch(watch, True, ranks=2, world="lockstep", timeout=60) == [expected] * 2


class Delayed(WrappedTransport):
    """Each message leaves after a random while, so that whoever writes its buffer too early is found out."""

    def __init__(self, inner: Transport, seed: int, longest: float) -> None:
        super().__init__(inner)
        self.random = random.Random(f"{seed} {inner.rank}")
        self.longest = longest

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Any:
        self.sleep()
        return super().isend(tensor, dst, tag)

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        self.sleep()
        super().exchange(outgoing, dst, incoming, src, tag)

    def left(self, call: Call) -> None:
        self.sleep()
        super().left(call)

    def sleep(self) -> None:
        if self.random.random() < 0.5:
            time.sleep(self.random.random() * self.longest)


SEEDS = 10
RACES = [
    (0, Case(steps=2, engine={"bucket_numel": 400})),
    (1, Case(steps=2, micro_batches=2, engine={"overlap_gather": True})),
    (2, Case(steps=2, micro_batches=2, clip_norm=0.2, engine={"overlap_gather": True})),
    (3, Case(steps=2, micro_batches=2)),
    (3, Case(steps=2, checkpoint=True, clip_norm=0.2)),
]


@pytest.mark.ranks
def test_no_delay_anywhere_changes_a_bit() -> None:
    def race(transport: Transport) -> list[set[str]]:
        digests: list[set[str]] = [set() for _ in RACES]
        for seed in range(SEEDS + 1):
            at = seed % len(RACES)
            stage, case = RACES[at]
            # Without any delay once for each case, then with another pattern of delays on each rank and seed.
            quiet, slow = build(transport), build(Delayed(transport, seed, 2e-3))
            for comm in (quiet, slow) if seed < len(RACES) else (slow,):
                digests[at].add(train(comm, case, stage).digest)
                comm.close()
        return digests

    for digests in launch(race, ranks=2, collectives="transport", timeout=120):
        assert [len(found) for found in digests] == [1] * len(RACES)


class Changing(Blocks):
    """Takes another way through its blocks in every forward, so that what was fetched ahead is not used."""

    def forward(self, x: torch.Tensor, skip: int) -> torch.Tensor:  # type: ignore[override]
        for at, block in enumerate(self.blocks):
            x = x if at % 3 == skip else block(x)
        return x


@pytest.mark.ranks
def test_a_unit_fetched_for_nothing_stays_until_it_has_come() -> None:
    def change(transport: Transport) -> list[Any]:
        digests, early = set(), []
        for comm in (build(transport), build(Delayed(transport, 0, 5e-3))):
            engine = ZeroEngine(Changing(), comm, 3, optimizer=adamw())

            def watched(unit: Unit, release: Any) -> None:
                handles = unit.gathering if unit.presence is Presence.GATHERING else []
                release()
                early.append(any(not handle._pending.waited for handle in handles))

            for unit in engine.units:
                unit.release = partial(watched, unit, unit.release)  # type: ignore[method-assign]
            for step in range(6):
                engine.backward(loss_of(engine(torch.ones(4, WIDTH), step % 3)))
                assert not here(engine)
                with torch.no_grad():
                    engine(torch.ones(4, WIDTH), (step + 1) % 3)
                assert not here(engine)
                engine.step()
            digests.add(digest(engine.consolidate()))
            assert comm.meter is not None
            wasted = comm.meter.calls_by_collective("forward")["all_gather"] - 6 * 2 * BLOCKS * 2 // 3
            comm.close()
        return [len(digests), wasted > 0, any(early)]

    assert launch(change, ranks=2, collectives="transport", timeout=60) == [[1, True, False]] * 2


@pytest.mark.ranks
@pytest.mark.parametrize("stage", [2, 3])
def test_whole_gradients_do_not_pile_up_when_the_network_is_slow(stage: int) -> None:
    """One bucket fills while at most IN_FLIGHT are under reduction."""

    def most_at_once(transport: Transport) -> int:
        comm = build(Delayed(transport, 0, 5e-3))
        engine = ZeroEngine(Blocks(), comm, stage, optimizer=adamw())
        most = 0
        on_gradient = engine.reducer.on_gradient

        def watched(*args: Any) -> None:
            nonlocal most
            on_gradient(*args)
            most = max(most, sum(bucket.gradients.local is not None for bucket in engine.buckets))

        engine.reducer.on_gradient = watched  # type: ignore[method-assign]
        for _ in range(2):
            for _ in range(2):
                engine.backward(loss_of(engine(torch.ones(4, WIDTH))))
            engine.step()
        comm.close()
        return most

    assert launch(most_at_once, ranks=2, collectives="transport", timeout=60) == [IN_FLIGHT + 1] * 2


@pytest.mark.ranks
def test_overlap_lets_collectives_run_beside_compute_and_its_absence_does_not() -> None:
    """Told by what is under way when backward hands over the last gradient, not by a clock."""

    def under_way(transport: Transport, overlap: bool) -> int:
        comm = build(Delayed(transport, 0, 5e-3))
        engine = ZeroEngine(llama(), comm, 2, optimizer=adamw(), overlap=overlap)
        tokens = torch.zeros(2, 4, dtype=torch.int64)
        calls: list[int] = []
        lane = comm._issuer
        on_gradient = engine.reducer.on_gradient

        def watched(*args: Any) -> None:
            on_gradient(*args)
            calls.append(lane._last is not None and not lane._last.waited)

        engine.reducer.on_gradient = watched  # type: ignore[method-assign]
        engine.backward(engine(tokens, tokens))
        comm.close()
        return sum(calls)

    assert min(launch(under_way, True, ranks=2, collectives="transport", timeout=60)) > 0
    assert launch(under_way, False, ranks=2, collectives="transport", timeout=60) == [0, 0]


def test_an_overlapped_update_is_awaited_by_whoever_reads_it() -> None:
    def read(comm: Collectives) -> list[bool]:
        digests = []
        for overlap_gather in (False, True):
            engine = ZeroEngine(Blocks(), comm, 2, optimizer=adamw(1e-2), overlap_gather=overlap_gather)
            engine.backward(loss_of(engine(torch.ones(4, WIDTH))))
            engine.step()
            waiting = len(on_their_way(engine))
            engine.synchronize()
            direct = digest({name: p.detach().clone() for name, p in engine.model.named_parameters()})
            # A step whose forward used only part of the model meets updates that nobody has waited for.
            engine.backward(loss_of(engine.model.blocks[0](torch.ones(4, WIDTH))))
            engine.step()
            engine.backward(loss_of(engine.model.blocks[1](torch.ones(4, WIDTH))))
            engine.step()
            digests.append((direct, digest(engine.consolidate()), waiting == BLOCKS * overlap_gather))
        return [digests[0][:2] == digests[1][:2], digests[0][2], digests[1][2]]

    for world in ("lockstep", "processes"):
        assert launch(read, ranks=3, world=world, timeout=60) == [[True] * 3] * 3


class Apart(Blocks):
    """Reads parameters before a module of their unit runs: of a list, which never does, and of the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(WIDTH) for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x = x + F.linear(x, next(self.blocks[-1].parameters()).square().mean() * torch.eye(WIDTH))
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = block(x) * scale
        return x


READS: dict[str, Callable[[ZeroEngine], list[Any]]] = {
    "nothing": lambda engine: [],
    "state_dict": lambda engine: [value.clone() for value in engine.model.state_dict().values()],
    "detach": lambda engine: [parameter.detach().clone() for parameter in engine.parameters()],
    "data": lambda engine: [parameter.data.clone() for parameter in engine.parameters()],
    "tolist": lambda engine: [parameter.tolist() for parameter in engine.parameters()],
    "numpy": lambda engine: [parameter.detach().numpy().copy() for parameter in engine.parameters()],
    "a list of all": lambda engine: [value.detach() for value in torch._foreach_mul(list(engine.parameters()), 1)],
    "summon_full_params": lambda engine: summoned(engine),
}
"""What somebody reads between a step and the next forward."""


def summoned(engine: ZeroEngine) -> list[torch.Tensor]:
    with engine.summon_full_params():
        return [parameter.detach().clone() for parameter in engine.parameters()]


PUBLISHED: list[tuple[int, Stage3Limits]] = [
    (1, Stage3Limits()),
    (3, Stage3Limits(persistence_numel=10**6)),
]


@pytest.mark.ranks
def test_parameters_read_outside_their_modules_are_those_that_the_step_has_made() -> None:
    """Bit for bit as without `overlap_gather`, whatever reads them first, on a network that is slow."""

    def read(transport: Transport) -> list[str]:
        comm, wrong = build(Delayed(transport, 0, 2e-3)), []
        for stage, limits in PUBLISHED:
            plain, overlapped = (
                ZeroEngine(Apart(), comm, stage, optimizer=adamw(1e-2), limits=limits, overlap_gather=overlap_gather)
                for overlap_gather in (False, True)
            )
            for name, what in READS.items():
                for _ in range(2):
                    found = []
                    for engine in (plain, overlapped):
                        engine.backward(loss_of(engine(torch.ones(4, WIDTH) * (1 + comm.rank))))
                        engine.step()
                        seen = {str(at): torch.as_tensor(value) for at, value in enumerate(what(engine))}
                        found.append(digest(seen))
                    if found[0] != found[1]:
                        wrong.append(f"stage {stage}: {name}")
            if digest(plain.consolidate()) != digest(overlapped.consolidate()):
                wrong.append(f"stage {stage}")
            plain.close()
            overlapped.close()
        comm.close()
        return wrong

    assert launch(read, ranks=2, collectives="transport", timeout=120) == [[], []]


def late_engine(model: nn.Module, monkeypatch: pytest.MonkeyPatch, fails: int = 0) -> ZeroEngine:
    """After a step whose new parameters have not come."""
    engine = ZeroEngine(model, LocalCollectives(), 2, lr=1e-2, overlap_gather=True)
    engine.backward(engine(torch.ones(4, 8)).sum())
    for unit in engine.units:
        # On one rank nothing is published.
        monkeypatch.setattr(unit, "published", unit.buckets)
    for bucket in engine.buckets:
        monkeypatch.setattr(bucket, "publish", partial(Late, bucket, fails))
    engine.step()
    return engine


class Own(nn.Parameter):
    """A parameter of a class that is the user's, and stays."""


def test_a_parameter_whose_class_is_the_users_own_has_come_when_the_step_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].weight = Own(torch.ones(8, 8))
    engine = late_engine(model, monkeypatch)
    assert type(model[0].weight) is Own and model[0].weight.isfinite().all()
    assert on_their_way(engine) == ["1"]
    assert model[1].weight.isfinite().all() and not on_their_way(engine)


def test_what_asks_a_parameter_for_no_value_waits_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = late_engine(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), monkeypatch)
    for parameter in engine.parameters():
        assert parameter.shape and parameter.numel() and parameter.dtype and parameter.stride()
        assert parameter.grad is None and parameter.requires_grad and isinstance(parameter, nn.Parameter)
        hash(parameter)
    assert len(on_their_way(engine)) == 2


def test_a_wait_that_was_interrupted_leaves_parameters_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(8, 8)
    engine = late_engine(model, monkeypatch, fails=2)
    for read in (engine.synchronize, lambda: model.weight.sum()):
        with pytest.raises(KeyboardInterrupt):
            read()
    assert model.weight.isfinite().all()
