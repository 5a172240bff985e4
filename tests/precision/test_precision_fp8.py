"""Linear layers in emulated fp8: what is rounded and how, which scales, what is kept, and the same bits at every stage
and with checkpointing."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cover import NIGHTLY
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from zero_cases import VARIANTS, batches, digest, gpt2, llama, part_of

from zerolab.collectives import Collectives
from zerolab.data import load_corpus
from zerolab.errors import InputError
from zerolab.models import Llama, LlamaConfig
from zerolab.precision.fp8 import (
    E4M3,
    E5M2,
    GRADIENT,
    INPUT,
    WEIGHT,
    Fp8Linear,
    dequantise,
    fp8_layers,
    fp8_linears,
    largest_of,
    quantise,
    update_amax_history,
)
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

LARGEST = {E4M3: 448.0, E5M2: 57344.0}
# Half a unit in the last place: 3 bits of mantissa, and 2.
HALF_ULP = {E4M3: 2**-4, E5M2: 2**-3}
# The step of the smallest numbers, which have no leading 1.
SMALLEST = {E4M3: 2**-9, E5M2: 2**-16}
FORMATS = [E4M3, E5M2]
INF, NAN = float("inf"), float("nan")


def grid(dtype: torch.dtype) -> torch.Tensor:
    """Every finite number of a format, from all its bit patterns."""
    values = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    return values[values.isfinite()].unique()


def layer(inputs: int = 16, outputs: int = 12, bias: bool = True, dtype: Any = torch.float32, **options: Any) -> Any:
    torch.manual_seed(0)
    return fp8_linears(nn.Linear(inputs, outputs, bias=bias, dtype=dtype), **options)


def randn(*shape: int, seed: int = 1, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The nearest number of the grid that is scaled to the tensor's own maximum, found by looking at all of them."""
    scale = LARGEST[dtype] / tensor.abs().max()
    points = grid(dtype)
    nearest = (tensor.reshape(-1, 1) * scale - points).abs().argmin(1)
    return (points[nearest] / scale).view(tensor.shape)


# Rounding


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
def test_values_lie_on_the_grid_and_are_the_nearest_there(dtype: torch.dtype, source: torch.dtype) -> None:
    tensor = randn(4000, dtype=source)
    scale = LARGEST[dtype] / largest_of(tensor)
    values = quantise(tensor, dtype, scale)
    assert values.dtype is dtype and torch.isin(values.float(), grid(dtype)).all()
    off = (values.float() - tensor.float() * scale).abs()
    nearest = (tensor.float()[:, None] * scale - grid(dtype)).abs().amin(1)
    assert torch.equal(off, nearest)
    # Scaled back, a value is still the grid's: it is found again without loss.
    again = quantise(dequantise(values, scale, source), dtype, scale)
    assert torch.equal(again.float(), values.float())


@pytest.mark.parametrize("dtype", FORMATS)
def test_each_element_is_off_by_half_a_unit_in_the_last_place_at_most(dtype: torch.dtype) -> None:
    tensor = randn(4000) * torch.logspace(-12, 3, 4000)
    scale = LARGEST[dtype] / largest_of(tensor)
    back = dequantise(quantise(tensor, dtype, scale), scale, torch.float32)
    allowed = torch.maximum(tensor.abs() * HALF_ULP[dtype], SMALLEST[dtype] / 2 / scale) * (1 + 1e-6)
    assert ((back - tensor).abs() <= allowed).all()
    # The bound is met, not merely kept: a finer format would not come near it.
    large = tensor.abs() * scale > SMALLEST[dtype] * 16
    assert ((back - tensor).abs() / tensor.abs())[large].max() > 0.8 * HALF_ULP[dtype]


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_too_large_becomes_the_largest_of_the_format(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, 1.04, 2.0, -3.0, 1e30, -3e38])
    values = quantise(tensor, dtype, torch.tensor(LARGEST[dtype]))
    assert values.float().tolist() == [LARGEST[dtype] * sign for sign in (1, 1, 1, -1, 1, -1)]


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_not_finite_stays_so(dtype: torch.dtype) -> None:
    values = quantise(torch.tensor([INF, -INF, NAN, 1.0]), dtype, torch.tensor(1.0))
    assert values.float().isnan().tolist() == [True, True, True, False]


@pytest.mark.parametrize("magnitude", [1e-44, 1e-38, 1e-20, 1e20, 1e38])
def test_a_tensor_of_any_magnitude_is_multiplied_without_an_overflow(magnitude: float) -> None:
    fp8 = layer(bias=False)
    out = fp8(torch.full((2, 16), magnitude) * torch.eye(16)[:2])
    assert (out.isfinite()).all() and fp8.fp8_scale.isfinite().all()


# The three products


@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 16), (2, 1, 3, 16), (0, 16)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_and_gradients_have_the_shapes_and_dtypes_of_a_linear_layer(
    shape: tuple[int, ...], bias: bool, dtype: torch.dtype
) -> None:
    fp8, plain = layer(bias=bias, dtype=dtype), nn.Linear(16, 12, bias=bias, dtype=dtype)
    for module in (fp8, plain):
        x = randn(*shape, dtype=dtype).requires_grad_()
        out = module(x)
        out.sum().backward()
        assert out.shape == (*shape[:-1], 12) and out.dtype == dtype
        assert x.grad is not None and x.grad.shape == shape and x.grad.dtype == dtype
        assert all(p.grad.shape == p.shape and p.grad.dtype == dtype for p in module.parameters())


def test_forward_multiplies_the_rounded_input_and_weight() -> None:
    fp8, x = layer(), randn(7, 16)
    expected = F.linear(rounded(x, E4M3), rounded(fp8.weight.detach(), E4M3), fp8.bias)
    torch.testing.assert_close(fp8(x), expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(fp8(x), F.linear(x, fp8.weight, fp8.bias), atol=1e-3)


def test_backward_multiplies_the_rounded_gradient_with_the_rounded_weight_and_input() -> None:
    fp8, x, g = layer(), randn(2, 7, 16).requires_grad_(), randn(2, 7, 12, seed=2) * 1e-6
    fp8(x).backward(g)
    g8 = rounded(g, E5M2)
    of_input = g8 @ rounded(fp8.weight.detach(), E4M3)
    of_weight = g8.flatten(0, 1).T @ rounded(x.detach(), E4M3).flatten(0, 1)
    torch.testing.assert_close(x.grad, of_input, rtol=1e-5, atol=1e-11)
    torch.testing.assert_close(fp8.weight.grad, of_weight, rtol=1e-5, atol=1e-11)
    # The bias takes no part in a product.
    torch.testing.assert_close(fp8.bias.grad, g.sum((0, 1)))
    unrounded = g.flatten(0, 1).T @ x.detach().flatten(0, 1)
    assert (fp8.weight.grad - unrounded).norm() > 0.01 * unrounded.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_fp32_to_a_few_percent(dtype: torch.dtype) -> None:
    """Errors of single elements, up to 1/16 and 1/8, average out; what is left is about their rms."""
    x, g = randn(256, 64), randn(256, 48, seed=2)
    plain = nn.Linear(64, 48)
    fp8 = fp8_linears(copy.deepcopy(plain).to(dtype))
    found = {}
    for module, kind in ((plain, torch.float32), (fp8, dtype)):
        own = x.to(kind).detach().requires_grad_()
        out = module(own)
        out.backward(g.to(kind))
        found[kind if module is fp8 else "exact"] = [out, own.grad, module.weight.grad, module.bias.grad]
    for tolerance, exact, ours in zip((0.05, 0.08, 0.08, 0.005), found["exact"], found[dtype], strict=True):
        assert (ours.float() - exact).norm() < tolerance * exact.norm()


def test_frozen_tensors_get_no_gradient_and_keep_nothing() -> None:
    fp8, x = layer(bias=False), randn(4, 16).requires_grad_()
    fp8.weight.requires_grad_(False)
    fp8(x).sum().backward()
    assert fp8.weight.grad is None and x.grad is not None
    kept = saved(lambda: fp8(x))
    assert not any(tensor.dtype is E4M3 for tensor in kept)


# Scales


def feed(fp8: Any, largest: float, gradient: float = 1.0) -> None:
    """One micro-batch whose input and gradient have these maxima."""
    x, g = randn(3, 16), randn(3, 12, seed=2)
    x, g = x * largest / x.abs().max(), g * gradient / g.abs().max()
    fp8(x.requires_grad_()).backward(g)


def test_the_first_use_takes_the_current_maximum() -> None:
    fp8 = layer()
    feed(fp8, 7.0, 0.25)
    expected = [448 / 7, 448 / fp8.weight.abs().max().item(), 57344 / 0.25]
    assert fp8.fp8_scale.tolist() == pytest.approx(expected)


def test_a_scale_follows_the_largest_of_the_last_maxima() -> None:
    fp8 = layer(history=3)
    maxima = [1.0, 8.0, 2.0, 0.5, 4.0, 3.0, 1.0, 1.0, 1.0]
    used = []
    for largest in maxima:
        feed(fp8, largest, largest / 100)
        used.append(fp8.fp8_scale[[INPUT, GRADIENT]].tolist())
        update_amax_history(fp8)
    # Of the three steps before this one; the first step is scaled by itself.
    windows = [max(maxima[max(0, step - 3) : step] or [maxima[0]]) for step in range(len(maxima))]
    for (of_input, of_gradient), largest in zip(used, windows, strict=True):
        assert of_input == pytest.approx(448 / largest)
        assert of_gradient == pytest.approx(57344 / largest * 100)
    assert fp8.fp8_history[INPUT].tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_scales_are_constants_until_advance_which_takes_the_largest_of_all_micro_batches() -> None:
    orders = []
    for order in ([2.0, 5.0, 1.0], [1.0, 2.0, 5.0]):
        fp8 = layer(history=4)
        feed(fp8, 3.0)
        update_amax_history(fp8)
        before = fp8.fp8_scale.clone()
        for largest in order:
            feed(fp8, largest)
            assert torch.equal(fp8.fp8_scale, before)
        assert fp8.fp8_amax[INPUT] == pytest.approx(5.0)
        update_amax_history(fp8)
        assert fp8.fp8_scale[INPUT] == pytest.approx(448 / 5)
        assert fp8.fp8_history[INPUT].tolist() == pytest.approx([5.0, 3.0, 0.0, 0.0])
        assert fp8.fp8_amax.tolist() == [0, 0, 0]
        orders.append(fp8.state_dict())
    assert all(torch.equal(orders[0][name], orders[1][name]) for name in orders[0])


def test_a_step_without_a_use_changes_no_history() -> None:
    fp8 = layer()
    feed(fp8, 2.0)
    update_amax_history(fp8)
    before = copy.deepcopy(fp8.state_dict())
    update_amax_history(fp8)
    assert all(torch.equal(before[name], value) for name, value in fp8.state_dict().items())


def test_evaluation_changes_no_scale_and_no_history() -> None:
    fp8 = layer()
    with torch.no_grad():
        first = fp8(randn(3, 16))
    assert not any(fp8.state_dict()[name].any() for name in ("fp8_scale", "fp8_amax", "fp8_history"))
    torch.testing.assert_close(first, fp8(randn(3, 16)).detach(), rtol=0, atol=0)


def test_an_outlier_is_clamped_and_not_nan() -> None:
    fp8 = layer(bias=False)
    feed(fp8, 1.0)
    update_amax_history(fp8)
    x = torch.zeros(1, 16)
    x[0, 3] = 1000.0
    out = fp8(x.requires_grad_())
    # As if it had been the largest that the history knows.
    torch.testing.assert_close(out, rounded(fp8.weight.detach(), E4M3)[:, 3][None] * 1.0, rtol=1e-5, atol=1e-7)
    out.backward(torch.full_like(out, 1e30))
    assert fp8.weight.grad.isfinite().all() and x.grad is not None and x.grad.isfinite().all()
    update_amax_history(fp8)
    assert fp8.fp8_scale[INPUT] == pytest.approx(448 / 1000)


@pytest.mark.parametrize("poison", [INF, -INF, NAN])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_finite_passes_through_and_the_history_survives(poison: float, first: bool) -> None:
    fp8 = layer(bias=False)
    if not first:
        feed(fp8, 2.0)
        update_amax_history(fp8)
    before = fp8.fp8_history[[INPUT, GRADIENT]].clone()
    x, g = randn(3, 16), randn(3, 12)
    x[1, 4] = g[2, 5] = poison
    out = fp8(x.requires_grad_())
    assert out[1].isnan().all() and out[[0, 2]].isfinite().all()
    out.backward(g)
    assert x.grad is not None and not x.grad[2].isfinite().any() and x.grad[:2].isfinite().all()
    update_amax_history(fp8)
    assert torch.equal(fp8.fp8_history[[INPUT, GRADIENT]], before)
    feed(fp8, 4.0)
    update_amax_history(fp8)
    assert fp8.fp8_history[INPUT, 0] == pytest.approx(4.0) and fp8.fp8_scale.isfinite().all()
    assert fp8(randn(3, 16)).isfinite().all()


def test_scales_are_buffers_that_travel_with_the_model_and_stay_fp32() -> None:
    fp8 = layer(history=5)
    feed(fp8, 2.0)
    update_amax_history(fp8)
    other = layer(history=5)
    other.load_state_dict(fp8.state_dict())
    assert torch.equal(other.fp8_history, fp8.fp8_history) and torch.equal(other.fp8_scale, fp8.fp8_scale)
    fp8.bfloat16()
    assert fp8.weight.dtype is torch.bfloat16 and torch.equal(other.fp8_scale, fp8.fp8_scale)
    assert {buffer.dtype for buffer in fp8.buffers()} == {torch.float32}


# What is kept


def saved(run: Callable[[], Any]) -> list[torch.Tensor]:
    """What autograd keeps of a forward, one tensor for each memory."""
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return list(kept.values())


def saved_bytes(module: nn.Module, run: Callable[[], Any]) -> int:
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = [tensor for tensor in saved(run) if tensor.untyped_storage().data_ptr() not in weights]
    return sum(tensor.nbytes for tensor in kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_saved_activation_takes_one_byte_an_element(dtype: torch.dtype) -> None:
    x = randn(32, 16, dtype=dtype).requires_grad_()
    plain, fp8 = nn.Linear(16, 12, dtype=dtype), layer(dtype=dtype)
    assert saved_bytes(plain, lambda: plain(x)) == x.numel() * dtype.itemsize
    # And the scales of input and weight.
    assert saved_bytes(fp8, lambda: fp8(x)) == x.numel() + 8
    weights = [t for t in saved(lambda: fp8(x)) if t.data_ptr() == fp8.weight.data_ptr()]
    assert len(weights) == 1, "the weight itself is kept, not a copy"


def test_layers_that_read_one_tensor_keep_one_copy_of_it() -> None:
    model = fp8_linears(nn.ModuleList(nn.Linear(16, 12) for _ in range(3)))
    leaf = randn(32, 16).requires_grad_()

    def run() -> torch.Tensor:
        x = leaf + 1
        return sum((part(x) for part in model), torch.zeros(()))

    assert saved_bytes(model, run) == leaf.numel() + 3 * 8
    run().sum().backward()
    update_amax_history(model)
    assert saved_bytes(model, run) == leaf.numel() + 3 * 8


def test_a_tensor_that_was_overwritten_is_rounded_anew() -> None:
    first, second = (nn.Linear(16, 12) for _ in range(2))
    model = fp8_linears(nn.ModuleList([first, second]))
    x = randn(3, 16).requires_grad_() * 1.0
    model[0](x)
    with torch.no_grad():
        x.mul_(3.0)
    out = model[1](x)
    expected = F.linear(rounded(x.detach(), E4M3), rounded(second.weight.detach(), E4M3), second.bias)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_layers_that_read_one_tensor_each_keep_their_own_scale() -> None:
    first, second = (layer() for _ in range(2))
    for fp8, largest in ((first, 1.0), (second, 50.0)):
        feed(fp8, largest)
        update_amax_history(fp8)
    x = torch.tanh(randn(3, 16).requires_grad_())
    first(x)
    alone = copy.deepcopy(second)(x.detach())
    assert torch.equal(second(x).detach(), alone.detach())


# In models

SHAPE = LlamaConfig(31, max_seq_len=16, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=64)


def small_llama(checkpoint: bool = False, dtype: torch.dtype = torch.float32, tied: bool = True) -> Any:
    torch.manual_seed(0)
    shape = LlamaConfig(**{**vars(SHAPE), "tied_head": tied})
    return fp8_linears(Llama(shape, checkpoint=checkpoint).to(dtype))


def fit(model: Any, steps: int = 3) -> dict[str, torch.Tensor]:
    """A few steps of two micro-batches, in plain torch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for micro_batches in batches(steps, micro_batches=2):
        for rows in micro_batches:
            model(rows[:, :-1], rows[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        update_amax_history(model)
    return {name: value.detach() for name, value in model.state_dict().items()}


def test_checkpointing_gives_the_same_bits() -> None:
    """Parameters, scales and histories: the recomputation counts nothing twice."""
    plain, recomputed = (fit(small_llama(checkpoint=recompute, dtype=torch.bfloat16)) for recompute in (False, True))
    assert digest(plain) == digest(recomputed)


def test_a_recomputation_after_other_micro_batches_uses_the_scales_of_its_forward() -> None:
    """As in a pipeline: forward, forward, backward, backward, in the very first step."""
    found = []
    for recompute in (False, True):
        fp8 = nn.Sequential(nn.Tanh(), layer(16, 16), nn.Tanh(), layer(16, 16))
        parts = [randn(3, 16, seed=seed).mul(seed).requires_grad_() for seed in (1, 2, 3)]
        outs = [checkpoint(fp8, part, use_reentrant=False) if recompute else fp8(part) for part in parts]
        for out in outs:
            out.sum().backward()
        found.append([part.grad for part in parts] + [p.grad for p in fp8.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_names_modules_ties_and_hooks_stay() -> None:
    torch.manual_seed(0)
    model = Llama(SHAPE)
    names = [name for name, _ in model.named_parameters()]
    modules, parameters, units = list(model.modules()), list(model.parameters()), model.units()
    seen: list[str] = []
    model.head.lm_head.register_forward_hook(lambda *_: seen.append("head"))
    assert fp8_linears(model) is model
    assert all(one is other for one, other in zip(modules, model.modules(), strict=True))
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert all(one is other for one, other in zip(units, model.units(), strict=True))
    assert names == [name for name, _ in model.named_parameters()]
    assert model.head.lm_head.weight is model.embedding.weight
    (rows,) = next(iter(batches(1)))
    model(rows[:, :-1], rows[:, 1:]).backward()
    assert seen == ["head"]
    assert all(isinstance(module, Fp8Linear) for module in modules if isinstance(module, nn.Linear))


def test_a_tied_weight_is_rounded_where_it_multiplies_and_read_as_it_is_where_it_embeds() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(10, 8)
    head = nn.Linear(8, 10, bias=False)
    head.weight = table.weight
    fp8_linears(head)
    tokens, g = torch.tensor([1, 4, 4]), randn(3, 10)
    hidden = table(tokens)
    assert torch.equal(hidden, table.weight[tokens])
    head(hidden).backward(g)
    g8, exact = rounded(g, E5M2), table.weight.detach()
    expected = g8.T @ rounded(exact[tokens], E4M3)
    expected.index_add_(0, tokens, g8 @ rounded(exact, E4M3))
    torch.testing.assert_close(table.weight.grad, expected, rtol=1e-5, atol=1e-5)


def test_layers_that_are_skipped_stay_as_they_are() -> None:
    model = fp8_linears(llama(), skip=lambda name, _: name.endswith("lm_head"))
    assert type(model.head.lm_head) is nn.Linear
    assert len(fp8_layers(model)) == 2 * 7
    assert not any("lm_head" in name for name, _ in model.named_buffers())


def test_a_llama_keeps_half_the_bytes_of_its_linear_inputs() -> None:
    """Per block in bf16: the inputs of query, key and value, of the output's, of gate and up, and of down."""
    torch.manual_seed(0)
    plain = Llama(SHAPE).bfloat16()
    fp8 = fp8_linears(copy.deepcopy(plain))
    tokens = torch.zeros(4, 16, dtype=torch.int64)
    saving = saved_bytes(plain, lambda: plain(tokens)) - saved_bytes(fp8, lambda: fp8(tokens))
    inputs = tokens.numel() * (SHAPE.layers * (3 * SHAPE.dim + SHAPE.ffn_dim) + SHAPE.dim)
    # What autograd keeps besides is the scales of input and weight.
    assert saving == inputs - 8 * len(fp8_layers(fp8))


# Under ZeRO


def train(comm: Collectives, stage: int, options: dict[str, Any], model: Any) -> tuple[str, str]:
    """Digests of the parameters after three steps, and of this rank's scales and histories."""
    engine = ZeroEngine(fp8_linears(model), comm, stage, lr=1e-2, **options)
    for micro_batches in batches(3, micro_batches=2):
        for rows in micro_batches:
            own = part_of(rows, comm)
            engine.backward(engine(own[:, :-1], own[:, 1:]) / 2)
        engine.step()
        update_amax_history(model)
    scales = digest({name: buffer.clone() for name, buffer in model.named_buffers()})
    parameters = {name: value for name, value in engine.consolidate().items() if "fp8" not in name}
    assert digest(parameters) != digest(dict(engine.parameters_of(engine.units[0])))
    engine.close()
    return digest(parameters), scales


MODELS = {
    "checkpointed": lambda: llama(checkpoint=True),
    "bf16": lambda: llama().bfloat16(),
    "gpt2": gpt2,
}


@pytest.mark.ranks
@pytest.mark.parametrize("name", MODELS)
def test_every_stage_ends_with_the_same_bits(name: str) -> None:
    # All for one model; for the others by day what whole gradients give, and shards.
    variants = VARIANTS if NIGHTLY or name == "checkpointed" else VARIANTS[::4]

    def all_stages(comm: Collectives) -> list[tuple[str, str]]:
        return [train(comm, stage, options, MODELS[name]()) for stage, options in variants]

    by_rank = list(launch(all_stages, ranks=2, world="lockstep", collectives="ring", device="cpu"))
    assert len({parameters for rank in by_rank for parameters, _ in rank}) == 1
    for rank in by_rank:
        assert len({scales for _, scales in rank}) == 1
    # Each rank has seen its own data, and scales by that.
    assert by_rank[0][0][1] != by_rank[1][0][1]


@pytest.mark.ranks
def test_checkpointing_under_zero_3_changes_no_bit() -> None:
    def both(comm: Collectives) -> list[tuple[str, str]]:
        return [train(comm, 3, {}, llama(checkpoint=recompute)) for recompute in (False, True)]

    for plain, recomputed in launch(both, ranks=2, world="lockstep", collectives="ring", device="cpu"):
        assert plain == recomputed


# Learning


def test_a_model_learns_in_fp8_what_it_learns_in_fp32() -> None:
    corpus = load_corpus("embedded", seq_len=32)
    losses = {}
    for name in ("fp32", "fp8"):
        torch.manual_seed(0)
        model = Llama(LlamaConfig(256, max_seq_len=32, dim=48, layers=2, heads=4, kv_heads=2, ffn_dim=96))
        if name == "fp8":
            fp8_linears(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(0)
        seen = []
        for _ in range(120):
            starts = torch.randint(0, len(corpus.train) - 33, (16,), generator=generator)
            rows = torch.stack([corpus.train[at : at + 33] for at in starts.tolist()]).long()
            loss = model(rows[:, :-1], rows[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if name == "fp8":
                update_amax_history(model)
            seen.append(loss.item())
        losses[name] = (seen[0], sum(seen[-10:]) / 10)
    assert losses["fp8"][0] == pytest.approx(math.log(256), abs=0.3)
    assert losses["fp8"][1] < 3.2
    assert losses["fp8"][1] == pytest.approx(losses["fp32"][1], abs=0.1)


# Refusals


class Own(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (lambda: fp8_linears(nn.Linear(2, 2)), {}, "already"),
        (lambda: nn.Sequential(nn.Linear(2, 2), fp8_linears(nn.Linear(2, 2))), {}, "already"),
        (lambda: nn.LayerNorm(2), {}, "0 linear layers"),
        (lambda: nn.Linear(2, 2), {"skip": lambda *_: True}, "1 linear layers"),
        (lambda: nn.Sequential(nn.Linear(2, 2), Own(2, 2)), {}, "1 is a Own"),
        (lambda: nn.MultiheadAttention(4, 2), {}, "out_proj is a NonDynamicallyQuantizableLinear"),
        (lambda: nn.Linear(2, 2), {"history": 0}, "history is 0"),
        (lambda: nn.Linear(2, 2), {"history": 2.0}, "history is 2.0"),
        (lambda: nn.Linear(2, 2), {"history": True}, "history is True"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_is_changed(
    model: Callable[[], Any], options: dict[str, Any], said: str
) -> None:
    given = model()
    before = [type(module) for module in given.modules()] if isinstance(given, nn.Module) else []
    with pytest.raises(InputError, match=said):
        fp8_linears(given, **options)
    assert before == ([type(module) for module in given.modules()] if isinstance(given, nn.Module) else [])


@pytest.mark.parametrize(
    ("weight", "input"),
    [(torch.float32, torch.int64), (torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)],
    ids=str,
)
def test_an_input_that_a_linear_layer_refuses_is_refused_in_fp8_and_leaves_no_trace(
    weight: torch.dtype, input: torch.dtype
) -> None:
    plain = nn.Linear(4, 4, dtype=weight)
    with pytest.raises(RuntimeError):
        plain(torch.ones(2, 4, dtype=input))
    fp8 = fp8_linears(plain)
    with pytest.raises(InputError, match=rf"the input is {input} and the weight {weight}; give the layer input.to"):
        fp8(torch.ones(2, 4, dtype=input))
    assert not fp8.fp8_amax.any()


def test_under_autocast_an_fp8_layer_takes_another_dtype_as_a_linear_layer_does() -> None:
    fp8 = fp8_linears(nn.Linear(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        assert fp8(torch.ones(2, 4, dtype=torch.bfloat16)).dtype is torch.bfloat16
        with pytest.raises(InputError, match=r"the input is torch\.int64"):
            fp8(torch.ones(2, 4, dtype=torch.int64))


def test_advancing_a_model_without_fp8_is_refused() -> None:
    with pytest.raises(InputError, match="call fp8_linears"):
        update_amax_history(nn.Linear(2, 2))


def test_a_converted_model_can_be_copied_and_sent() -> None:
    model = small_llama()
    twin = copy.deepcopy(model)
    assert digest(fit(model)) == digest(fit(twin))
    assert twin.head.lm_head.weight is twin.embedding.weight


def test_the_weights_scale_is_delayed_too() -> None:
    fp8 = layer(bias=False)
    feed(fp8, 1.0)
    update_amax_history(fp8)
    before = fp8.weight.abs().max().item()
    with torch.no_grad():
        fp8.weight.mul_(2)
    feed(fp8, 1.0)
    assert fp8.fp8_scale[WEIGHT] == pytest.approx(448 / before)
    update_amax_history(fp8)
    assert fp8.fp8_scale[WEIGHT] == pytest.approx(448 / before / 2)
