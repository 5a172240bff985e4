"""The probe: optimizers that cannot be cut into slices are refused before training, and all others pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from zerolab.collectives import LocalCollectives
from zerolab.errors import InputError
from zerolab.offload.places import NO_OFFLOAD, Offload
from zerolab.zero import ZeroEngine
from zerolab.zero.start import default_factory, probe

O = torch.optim  # noqa: E741


class Own(O.Optimizer):
    """One of somebody's own: `update` returns what is subtracted from a parameter."""

    def __init__(self, groups: Any, lr: float = 0.1) -> None:
        super().__init__(groups, {"lr": lr})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        self.begin()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                parameter.sub_(group["lr"] * self.update(parameter, parameter.grad, state))

    def begin(self) -> None:
        pass

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g


class Signs(Own):
    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        state["mean"] = 0.9 * state.get("mean", torch.zeros_like(p)) + 0.1 * g
        return state["mean"].sign() + 0.01 * p


class ShampooLike(Own):
    """Preconditions matrices; a vector is stepped as by SGD."""

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        if g.dim() != 2:
            return g
        state["left"] = state.get("left", torch.eye(len(g))) + g @ g.T
        values, vectors = torch.linalg.eigh(state["left"])
        return vectors @ (values.clamp_min(1e-6) ** -0.5).diag() @ vectors.T @ g


class DecaysMatrices(Own):
    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g + (0.1 * p if p.ndim > 1 else 0.0)


class OfThreeDimensions(Own):
    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g / g.norm() if p.ndim == 3 else g


class LateBySteps(Own):
    """SGD for 200 steps, then by the norm; the step is counted in the state."""

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g if state["step"] < 200 else g / g.norm()


class LateByItsOwnCount(Own):
    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g if self.steps < 9 else g / g.norm()


class KeepsANorm(Own):
    """So far it only watches a norm, which it keeps as a number; it would use it after a thousand steps."""

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        state["seen"] = state.get("seen", 0.0) + float(g.norm())
        return g if self.steps < 1000 else g / state["seen"]


class KeepsANormAsATensor(Own):
    """The same as a tensor of one element."""

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        state["seen"] = state.get("seen", torch.zeros(())) + g.norm()
        return g if self.steps < 1000 else g / state["seen"]


class KeepsRows(Own):
    """So far it only sums over rows."""

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        state["rows"] = state.get("rows", 0.0) + g.sum(-1)
        return g


class InBlocks(Own):
    """Normed in blocks of as many elements as a register has."""

    width = 16

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        flat = g.reshape(-1)
        blocks = [block / block.norm().clamp_min(1e-3) for block in flat.split(self.width)]
        return torch.cat(blocks).view_as(g)


class InBlocksOf4(InBlocks):
    width = 4


class InBlocksOf32(InBlocks):
    width = 32


class ByAllItHolds(Own):
    """Scales by the norm of all gradients that this optimizer has: on a rank, of its slices."""

    def begin(self) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        self.norm = torch.stack([grad.norm() for grad in grads]).norm().clamp_min(1e-6)

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g / self.norm


class TrustRatio(Own):
    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g * p.norm() / (g.norm() + 1e-6)


class ClipsLargeGradients(Own):
    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g / max(1.0, float(g.norm()) / 100)


class SkipsWithoutGradient(Own):
    """Where a whole gradient is zero nothing decays."""

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g + 0.1 * p if g.any() else g


class Noisy(Own):
    """What it draws is other noise on every rank."""

    def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        return g + torch.randn_like(g)


WRONG = [
    ShampooLike, DecaysMatrices, OfThreeDimensions, LateBySteps, LateByItsOwnCount, KeepsANorm, InBlocks, InBlocksOf4,
    InBlocksOf32, ByAllItHolds, TrustRatio, ClipsLargeGradients, SkipsWithoutGradient, Noisy, O.Adafactor,
    KeepsANormAsATensor, KeepsRows,
]  # fmt: skip
WHY: dict[Any, str] = {
    InBlocks: r"a parameter of shape \(6, 16\) and flat slices of it differ in values",
    KeepsANormAsATensor: "differ in state 'seen'",
    KeepsRows: r"of shape \(2, 3, 16\) and flat slices of it differ in state 'rows'",
}
"""What a parameter and its slices do not have alike, of some."""


@pytest.mark.parametrize("of", WRONG)
def test_what_is_not_elementwise_is_refused(of: Callable[..., O.Optimizer]) -> None:
    with pytest.raises(InputError, match=f"{of.__name__} is not elementwise .*{WHY.get(of, '')}.* use AdamW"):
        probe(of)


OPTIONS: list[dict[str, Any]] = [
    {}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"maximize": True}, {"weight_decay": 0.1},
    {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.1}, {"amsgrad": True},
    {"amsgrad": True, "fused": True}, {"centered": True, "momentum": 0.5}, {"initial_accumulator_value": 0.3},
    {"lr_decay": 0.1}, {"decoupled_weight_decay": True, "weight_decay": 0.1}, {"t0": 3}, {"lr": 1e-8}, {"lr": 10.0},
    {"eps": 0.0},
]  # fmt: skip
TORCH = [O.SGD, O.Adam, O.AdamW, O.RMSprop, O.Adagrad, O.Adadelta, O.Adamax, O.NAdam, O.RAdam, O.ASGD, O.Rprop]


def settings_of(of: Callable[..., O.Optimizer]) -> list[dict[str, Any]]:
    """The options that an optimizer of torch knows."""
    known = []
    for options in OPTIONS:
        try:
            of([torch.zeros(2, 2)], **{"lr": 1e-2, **options})
        except (TypeError, ValueError):
            continue
        known.append({"lr": 1e-2, **options})
    return known


@pytest.mark.parametrize("of", [*TORCH, Own, Signs])
def test_every_elementwise_optimizer_passes_in_all_its_settings(of: Callable[..., O.Optimizer]) -> None:
    found = settings_of(of)
    assert len(found) >= 3
    for options in found:
        # `Own` counts its steps in an attribute, on which nothing depends.
        assert probe(partial(of, **options))[0].complete


def test_a_rule_that_sees_a_matrix_from_some_size_on_is_refused_as_one() -> None:
    """As AdafactorBigVision of timm: from 128 rows and columns on it keeps a mean by row and one by column."""

    class Factored(Own):
        def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
            return g / g.square().mean(1, keepdim=True).sqrt() if g.dim() == 2 and min(g.shape) >= 128 else g

    with pytest.raises(InputError, match=r"not elementwise \(a parameter of shape \(160, 144\)"):
        probe(Factored)


def test_a_rule_that_mixes_the_gradients_of_several_parameters_is_refused() -> None:
    """As one that clips by the norm of all that it has, of which a rank has only its shard."""

    class Clipped(O.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            factor = min(1.0, 1.0 / float(nn.utils.get_total_norm(gradients)))
            torch._foreach_mul_(gradients, factor)
            super().step(closure)

    with pytest.raises(InputError, match="not elementwise"):
        probe(partial(Clipped, lr=0.1))


def test_a_rule_that_needs_the_graph_of_a_gradient_is_refused_before_training() -> None:
    """As AdaHessian and SophiaH of pytorch_optimizer, which find no graph in an engine and give NaN."""

    class Curved(Own):
        def update(self, p: torch.Tensor, g: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
            if p.requires_grad:
                with torch.enable_grad():
                    torch.autograd.grad(g, p, torch.ones_like(g))
            return g * float("nan")

    with pytest.raises(RuntimeError, match=r"(?s)does not require grad.*use an elementwise optimizer"):
        probe(Curved)


def test_muon_is_told_that_a_rank_holds_only_slices() -> None:
    if not hasattr(O, "Muon"):
        pytest.skip("this torch has no Muon")
    with pytest.raises(ValueError, match=r"(?s)Muon only supports 2D.*A rank holds flat slices .* such as AdamW"):
        ZeroEngine(nn.Linear(4, 4), LocalCollectives(), 1, optimizer=partial(O.Muon, lr=0.1))


def test_a_probe_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what it costs: about 0.1 ms each, so some 20 ms."""
    # Whatever this process has probed before.
    monkeypatch.setattr("zerolab.zero.start._found", {})
    steps, step = [], O.AdamW.step

    def counted(self: O.AdamW, *args: Any) -> Any:
        steps.append(self)
        return step(self, *args)

    monkeypatch.setattr(O.AdamW, "step", counted)
    probe(partial(O.AdamW, fused=True))
    assert 0 < len(steps) < 250


def test_the_default_optimizer_passes_the_probe_that_it_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerolab.zero.start._found", {})
    # AdamW's own weight decay, so that nothing but the sparing is another.
    found = probe(partial(O.AdamW, lr=2e-3, fused=True, weight_decay=1e-2))
    steps, step = [], O.AdamW.step

    def counted(self: O.AdamW, *args: Any) -> Any:
        steps.append(self)
        return step(self, *args)

    monkeypatch.setattr(O.AdamW, "step", counted)
    assert probe(default_factory(2e-3)) == found
    assert not steps
    probe(partial(O.AdamW, lr=2e-3, fused=True, eps=1e-7))
    assert len(steps) > 100


@pytest.mark.parametrize("of", [O.AdamW, Noisy])
def test_an_engine_leaves_every_generator_as_it_was(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own of the CPU by its state; those of GPUs, which only `torch.manual_seed` reaches, by its calls."""
    for name in ("manual_seed", "seed"):
        monkeypatch.setattr(torch, name, lambda *_: pytest.fail("all generators were seeded"))
        monkeypatch.setattr(torch.random, name, lambda *_: pytest.fail("all generators were seeded"))
    model = nn.Linear(4, 4)
    before, pythons = torch.get_rng_state(), random.getstate()
    try:
        ZeroEngine(model, LocalCollectives(), 1, optimizer=partial(of, lr=0.1))
    except InputError:
        assert of is Noisy
    assert torch.equal(torch.get_rng_state(), before) and random.getstate() == pythons


def test_what_an_optimizer_draws_when_it_is_made_moves_no_generator_in_the_probe() -> None:
    class Drawn(Own):
        def __init__(self, groups: Any) -> None:
            super().__init__(groups)
            self.seed = torch.rand(())

    before = torch.get_rng_state()
    _, description = probe(Drawn)
    assert torch.equal(torch.get_rng_state(), before)
    assert description == {"optimizer": "Drawn", "optimizer's lr": 0.1}


def test_what_was_found_of_one_setting_is_not_said_of_another_or_of_somebody_elses() -> None:
    class Unhashable:
        """Compared by value, as a dataclass is, it has no hash."""

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, groups: Any) -> O.Optimizer:
            return O.Adam(groups)

    def kept(factory: Any) -> int:
        return probe(factory)[0].tensors_per_element

    assert [kept(partial(O.SGD, lr=0.1, momentum=momentum)) for momentum in (0.0, 0.9, 0.0)] == [0, 1, 0]
    assert kept(partial(O.AdamW, betas=(0.9, 0.99), amsgrad=True)) == 3
    assert kept(Unhashable()) == kept(partial(O.AdamW, betas=(0.9, 0.99))) == 2


class OnGpu(TorchFunctionMode):
    """Says where tensors were moved to, and leaves them where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and len(args) > 1 and isinstance(args[1], torch.device):
            self.moved.append(str(args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("of", [default_factory(0.1), partial(O.Adagrad, lr=0.123)])
def test_an_optimizer_is_probed_where_it_steps(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forked: list[Any] = []

    def fork_rng(devices: list[int]) -> Any:
        forked.append(devices)
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    # Whatever this process has probed before.
    monkeypatch.setattr("zerolab.zero.start._found", {})
    with OnGpu() as gpu:
        probe(of, torch.device("cuda:1"))
    # The generator of that GPU is put back, too.
    assert set(gpu.moved) == {"cuda:1"} and forked == [[1]]
    with OnGpu() as cpu:
        probe(of)
    assert forked[1:] == [[]] and "cuda:1" not in cpu.moved


def test_an_optimizer_of_the_host_is_probed_there() -> None:
    gpu = torch.device("cuda:1")
    assert NO_OFFLOAD.step_device(gpu) == gpu
    places = [Offload("host"), Offload("disk", path="unused")]
    assert {place.step_device(gpu).type for place in places} == {"cpu"}


def test_an_engine_probes_its_optimizer_on_the_rank_s_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    found = probe(default_factory(0.1))
    monkeypatch.setattr(
        "zerolab.zero.zero_engine.probe", lambda factory, device, in_parts: asked.append(device) or found
    )
    ZeroEngine(nn.Linear(4, 4), LocalCollectives(), 1, lr=0.1)
    assert asked == [torch.device("cpu")]
