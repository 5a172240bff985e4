"""The two language models: their sizes, their numbers, and what they promise to ZeRO."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from zerolab.models import (
    SIZES,
    GPT2Config,
    LanguageModel,
    Llama,
    LlamaConfig,
    build,
    config_of,
    parameter_count,
    unit_parameters,
)
from zerolab.models.gpt2 import GPT2
from zerolab.models.llama import FeedForward, rotary_tables, rotate

NAMES = sorted(SIZES)


def on_meta(config: LlamaConfig | GPT2Config) -> LanguageModel:
    with torch.device("meta"):
        return Llama(config) if isinstance(config, LlamaConfig) else GPT2(config)


def numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def batch(seed: int = 0, shape: tuple[int, int] = (3, 16), vocab_size: int = 256) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    stream = torch.randint(vocab_size, (shape[0], shape[1] + 1), generator=generator)
    return stream[:, :-1], stream[:, 1:]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert len(found) == len(list(model.parameters()))
    return found


# Sizes


@pytest.mark.parametrize(
    ("name", "size", "vocab_size", "parameters"),
    [
        ("llama", "tiny", 8_192, 7_539_520),
        ("llama", "tiny", 128_256, 45_960_000),
        ("llama", "small", 128_256, 317_649_024),
        ("llama", "medium", 128_256, 1_344_899_072),
        ("llama", "nano", 256, 32_928),
        ("gpt2", "nano", 256, 65_696),
        ("gpt2", "124m", 50_304, 124_373_760),
        ("gpt2", "124m", 50_257, 124_337_664),
    ],
)
def test_sizes_have_the_quoted_parameter_counts(name: str, size: str, vocab_size: int, parameters: int) -> None:
    config = config_of(name, size, vocab_size=vocab_size)
    assert numel(on_meta(config)) == parameters == parameter_count(config)


def test_gpt2_124m_counts_of_the_literature() -> None:
    def count(vocab_size: int, bias: bool = False) -> int:
        return parameter_count(GPT2Config(vocab_size, dim=768, layers=12, heads=12, bias=bias))

    position_table = 1024 * 768
    assert count(50_257, bias=True) == 124_439_808  # OpenAI's release
    assert count(50_304) == 124_373_760  # biases off, vocabulary rounded up to a multiple of 128
    assert count(50_304) - position_table == 123_587_328
    assert count(50_304) - count(50_257) == 47 * 768


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_counted_unit_by_unit(tied_head: bool, bias: bool) -> None:
    for config in (
        LlamaConfig(300, 48, 3, 6, 2, 80, tied_head=tied_head),
        LlamaConfig(300, 48, 3, 5, 1, 80, tied_head=tied_head, head_size=12, qkv_bias=bias, qk_norm=True),
        GPT2Config(300, 48, 3, 6, bias=bias, tied_head=tied_head),
    ):
        counted, seen = [], set()
        for unit in on_meta(config).units():
            fresh = [parameter for parameter in unit.parameters() if parameter not in seen]
            seen.update(fresh)
            counted.append(sum(parameter.numel() for parameter in fresh))
        assert counted == list(unit_parameters(config))


# Numbers


@pytest.mark.parametrize("name", NAMES)
def test_weights_depend_on_the_global_seed_alone(name: str) -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(build(name, "nano").state_dict())
    same = [torch.equal(first, again) for first, again in zip(states[0].values(), states[1].values(), strict=True)]
    assert all(same)
    assert not torch.equal(states[0]["embedding.weight" if name == "llama" else "embedding.tokens.weight"],
                           states[2]["embedding.weight" if name == "llama" else "embedding.tokens.weight"])  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_model_guesses_evenly(name: str) -> None:
    torch.manual_seed(0)
    loss = build(name, "nano")(*batch())
    assert loss.shape == () and loss.dtype == torch.float32
    assert abs(loss.item() - torch.tensor(256.0).log().item()) < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_the_mean_cross_entropy_of_the_logits(name: str) -> None:
    torch.manual_seed(0)
    model, (tokens, targets) = build(name, "nano"), batch()
    logits = model(tokens)
    assert logits.shape == (3, 16, 256)
    chosen = torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1))
    torch.testing.assert_close(model(tokens, targets), -chosen.mean())


ODD_SHAPES: list[LlamaConfig | GPT2Config] = [
    LlamaConfig(64, dim=140, layers=1, heads=14, kv_heads=2, ffn_dim=64),
    LlamaConfig(64, dim=10, layers=1, heads=1, kv_heads=1, ffn_dim=16),
    LlamaConfig(64, dim=32, layers=1, heads=3, kv_heads=1, ffn_dim=64, head_size=16, qkv_bias=True, qk_norm=True),
    GPT2Config(64, dim=140, layers=1, heads=14),
    GPT2Config(64, dim=10, layers=1, heads=1),
]


@pytest.mark.parametrize("length", [1, 2, 16])
@pytest.mark.parametrize(
    "config", ODD_SHAPES, ids=lambda config: f"{type(config).__name__}-{config.dim}-{config.heads}"
)
def test_gradients_of_odd_heads_are_those_of_double_precision(config: LlamaConfig | GPT2Config, length: int) -> None:
    """A single token attends to itself alone, whatever query and key are: their gradients are zero, and what fp32
    leaves of them is noise. It is small beside the largest gradient of the model, not beside their own."""
    torch.manual_seed(0)
    model = Llama(config) if isinstance(config, LlamaConfig) else GPT2(config)
    data = batch(shape=(2, length), vocab_size=64)
    model(*data).backward()
    found = gradients(model)
    model.zero_grad()
    model.double()(*data).backward()
    exact = gradients(model)
    largest = max(gradient.abs().max().item() for gradient in exact.values())
    for name, gradient in found.items():
        room = max(1e-5 * exact[name].abs().max().item(), 1e-6 * largest)
        torch.testing.assert_close(gradient.double(), exact[name], rtol=1e-4, atol=room)
    if length == 1 and isinstance(config, LlamaConfig):
        assert exact["blocks.0.attention.q_proj.weight"].abs().max() < 1e-12 * largest


@pytest.mark.parametrize("name", NAMES)
def test_no_position_sees_a_later_token(name: str) -> None:
    torch.manual_seed(0)
    model, (tokens, _) = build(name, "nano"), batch()
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("model", [Llama(LlamaConfig(64, 32, 1, 4, 2, 64)), GPT2(GPT2Config(64, 32, 1, 4))])
def test_one_layer_tells_the_order_of_the_past(model: LanguageModel) -> None:
    """Without positions, one layer of attention would read its past as a bag of words."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    one, other = (model(torch.tensor([[*past, 7]]))[0, -1] for past in ([1, 2, 3], [3, 2, 1]))
    assert (one - other).abs().max() > 1e-2


def test_feed_forward_gates_with_silu() -> None:
    torch.manual_seed(0)
    ffn = FeedForward(LlamaConfig(64, 32, 1, 4, 2, 64))
    x = torch.randn(3, 32)
    gate = ffn.gate_proj(x)
    torch.testing.assert_close(ffn(x), ffn.down_proj(gate * torch.sigmoid(gate) * ffn.up_proj(x)))


@pytest.mark.parametrize("name", NAMES)
def test_matrices_into_the_residual_stream_start_narrower(name: str) -> None:
    torch.manual_seed(0)
    weights = build(name, "nano").state_dict()
    narrow = 0.02 / (2 * 2) ** 0.5  # two matrices a layer write into the stream, over two layers
    for layer, std in (("ffn.up_proj", 0.02), ("ffn.down_proj", narrow), ("attention.o_proj", narrow)):
        assert abs(weights[f"blocks.0.{layer}.weight"].std().item() / std - 1) < 0.1


def test_rotation_keeps_lengths_and_only_knows_distances() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16, generator=generator)
    cos, sin = rotary_tables(32, 16, 10_000.0, torch.device("cpu"))
    turned_query, turned_key = rotate(query.expand(1, 1, 32, 16), cos, sin), rotate(key.expand(1, 1, 32, 16), cos, sin)
    torch.testing.assert_close(turned_query.norm(dim=-1), query.norm(dim=-1).expand(1, 1, 32))
    scores = (turned_query @ turned_key.transpose(-1, -2))[0, 0]
    for distance in (-5, 0, 3):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-5)


def test_grouped_queries_equal_full_attention_with_repeated_heads() -> None:
    torch.manual_seed(0)
    grouped = Llama(LlamaConfig(64, 48, 2, 6, 2, 64))
    full = Llama(LlamaConfig(64, 48, 2, 6, 6, 64))
    state = grouped.state_dict()
    for name in state:
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            heads = state[name].unflatten(0, (2, 8))
            state[name] = heads.repeat_interleave(3, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    tokens, _ = batch(vocab_size=64)
    torch.testing.assert_close(grouped(tokens), full(tokens))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_run_and_stay_near_fp32(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, data = build(name, "nano"), batch()
    expected = model(*data)
    loss = model.to(dtype)(*data)
    assert model(data[0]).dtype == dtype and loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0, atol=2e-2)


# What ZeRO relies on


@pytest.mark.parametrize(("name", "tied_head"), [(name, tied) for name in NAMES for tied in (True, False)])
def test_units_hold_every_parameter_and_are_called_in_order(name: str, tied_head: bool) -> None:
    config = LlamaConfig(64, 32, 3, 4, 2, 64, tied_head=tied_head) if name == "llama" else GPT2Config(
        64, 32, 3, 4, tied_head=tied_head
    )  # fmt: skip
    model = Llama(config) if isinstance(config, LlamaConfig) else GPT2(config)
    units = model.units()
    assert {id(p) for unit in units for p in unit.parameters()} == {id(p) for p in model.parameters()}
    calls: list[int] = []
    for index, unit in enumerate(units):
        unit.register_forward_pre_hook(lambda module, args, index=index: calls.append(index))
    model(*batch(vocab_size=64))
    assert calls == list(range(len(units)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_units_parameters_are_needed_only_inside_its_forward(name: str, checkpoint: bool) -> None:
    """Hide each unit's parameters outside its forward, as stage 3 does: the loss must not notice.

    Every weight is swapped for NaN when its unit ends and restored when it begins. The tied weight belongs
    to two units, the embedding and the head, and is read in no other.
    """
    torch.manual_seed(0)
    model, data = build(name, "nano", checkpoint=checkpoint), batch()
    expected = model(*data)
    kept = {parameter: parameter.detach().clone() for parameter in model.parameters()}

    def restore(module: nn.Module, *_: object) -> None:
        for parameter in module.parameters():
            parameter.data.copy_(kept[parameter])

    def hide(module: nn.Module, *_: object) -> None:
        for parameter in module.parameters():
            parameter.data.fill_(float("nan"))

    for unit in model.units():
        hide(unit)
        unit.register_forward_pre_hook(restore)
        unit.register_forward_hook(hide)
    assert torch.equal(model(*data), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_holds_no_buffer(name: str) -> None:
    assert list(build(name, "nano").buffers()) == []


@pytest.mark.parametrize("name", NAMES)
def test_tied_head_is_the_embedding_and_gets_one_gradient_from_both(name: str) -> None:
    model = build(name, "nano")
    table = next(model.embedding.parameters())
    assert model.head.lm_head.weight is table
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    model(tokens, tokens).backward()
    assert table.grad is not None and table.grad[255].abs().sum() > 0  # token 255 was never embedded: by the head


@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_changes_no_bit_and_runs_each_block_twice(name: str) -> None:
    torch.manual_seed(0)
    model, data = build(name, "nano"), batch()
    calls: list[nn.Module] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, args: calls.append(module))
    results = []
    for checkpoint in (False, True):
        model.checkpoint = checkpoint
        model.zero_grad()
        calls.clear()
        loss = model(*data)
        loss.backward()
        results.append((loss, gradients(model), len(calls)))
    (loss, plain, once), (again, recomputed, twice) = results
    assert torch.equal(loss, again) and all(torch.equal(plain[key], recomputed[key]) for key in plain)
    assert (once, twice) == (len(model.blocks), 2 * len(model.blocks))


@pytest.mark.parametrize("name", NAMES)
def test_backward_gives_the_same_bits_every_time(name: str) -> None:
    torch.manual_seed(0)
    model, data = build(name, "nano"), batch(shape=(4, 64))
    runs = []
    for _ in range(3):
        model.zero_grad()
        model(*data).backward()
        runs.append({key: gradient.clone() for key, gradient in gradients(model).items()})
    assert all(torch.equal(run[key], runs[0][key]) for run in runs for key in run)
