"""Logits are Hugging Face's on shared weights, and in folders that one writes and the other reads. Needs transformers
(the `bench` extra)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from zerolab.apps.interop.huggingface import export, from_pretrained, save_folder
from zerolab.models import GPT2, Config, GPT2Config, LanguageModel, Llama, LlamaConfig

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[bench]'")

LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "attention": "self_attn",
    "ffn_norm": "post_attention_layernorm",
    "ffn": "mlp",
}
SHAPES = [
    LlamaConfig(vocab_size=256, dim=320, layers=4, heads=10, kv_heads=2, ffn_dim=1024),  # size tiny
    LlamaConfig(vocab_size=97, dim=64, layers=2, heads=4, kv_heads=4, ffn_dim=176, tied_head=False),
    LlamaConfig(vocab_size=97, dim=64, layers=2, heads=8, kv_heads=1, ffn_dim=176, rope_theta=1e4, norm_eps=1e-6),
    LlamaConfig(vocab_size=97, dim=140, layers=2, heads=14, kv_heads=2, ffn_dim=176),
    LlamaConfig(vocab_size=97, dim=10, layers=1, heads=1, kv_heads=1, ffn_dim=16),
    LlamaConfig(vocab_size=97, dim=64, layers=2, heads=4, kv_heads=2, ffn_dim=176, head_size=32),
    LlamaConfig(vocab_size=97, dim=64, layers=2, heads=4, kv_heads=2, ffn_dim=176, qkv_bias=True),
    LlamaConfig(vocab_size=97, dim=64, layers=2, heads=4, kv_heads=2, ffn_dim=176, head_size=24, qk_norm=True),
]
KINDS = [*["Llama"] * 5, "Mistral", "Qwen2", "Qwen3"]


def hugging_face_name(name: str) -> str:
    """Our parameter's name in a LlamaForCausalLM."""
    if name.startswith("blocks."):
        _, layer, part, rest = name.split(".", 3)
        return f"model.layers.{layer}.{LAYER_NAMES[part]}.{rest}"
    return {
        "embedding.weight": "model.embed_tokens.weight",
        "head.norm.weight": "model.norm.weight",
        "head.lm_head.weight": "lm_head.weight",
    }[name]


def peer_of(model: Llama, kind: str) -> torch.nn.Module:
    config = model.config
    peer = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(
            vocab_size=config.vocab_size,
            hidden_size=config.dim,
            intermediate_size=config.ffn_dim,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_seq_len,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tied_head,
        )
    )
    peer.load_state_dict({hugging_face_name(name): tensor for name, tensor in model.state_dict().items()})
    return peer.eval()


def far_from_initial(model: torch.nn.Module) -> None:
    """Make weights large and norms uneven: at the initial values many mistakes would hide in the tolerance."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.dim() == 1 else 0.05))


@pytest.mark.parametrize(
    ("config", "kind"),
    list(zip(SHAPES, KINDS, strict=True)),
    ids=["tiny", "untied", "one-kv-head", "fourteen-heads", "one-head", "mistral", "qwen2", "qwen3"],
)
def test_logits_and_gradients_equal_hugging_face(config: LlamaConfig, kind: str) -> None:
    torch.manual_seed(0)
    model = Llama(config)
    far_from_initial(model)
    peer = peer_of(model, kind)
    stream = torch.randint(config.vocab_size, (2, 129))
    tokens, targets = stream[:, :-1], stream[:, 1:]

    logits, expected = model(tokens), peer(tokens).logits
    difference = (logits - expected).abs().max().item()
    print(f"largest difference of logits {difference:.2e}, of logits of size {expected.abs().max().item():.2f}")
    assert expected.abs().max() > 0.5
    assert difference <= 1e-5 * expected.abs().max().item()

    model(tokens, targets).backward()
    torch.nn.functional.cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    theirs: dict[str, Tensor | None] = {name: parameter.grad for name, parameter in peer.named_parameters()}
    largest = max(grad.abs().max().item() for grad in theirs.values() if grad is not None)
    for name, parameter in model.named_parameters():
        grad, peer_grad = parameter.grad, theirs[hugging_face_name(name)]
        assert grad is not None and peer_grad is not None
        # Where a gradient is zero but for rounding (queries and keys of heads that choose nothing), its own size says
        # nothing.
        room = max(1e-5 * peer_grad.abs().max().item(), 1e-7 * largest)
        torch.testing.assert_close(grad, peer_grad, rtol=1e-4, atol=room)


# Folders


FOLDERS: dict[str, Config] = {
    "llama-tiny": SHAPES[0],
    "llama-untied": SHAPES[1],
    "llama-one-kv-head": SHAPES[2],
    "llama-fourteen-heads": SHAPES[3],
    "llama-wide-heads": SHAPES[5],
    "qwen2": SHAPES[6],
    "qwen3": SHAPES[7],
    "gpt2-tiny": GPT2Config(vocab_size=256, dim=256, layers=4, heads=8),
    "gpt2-bias": GPT2Config(vocab_size=97, dim=64, layers=2, heads=4, max_seq_len=128, bias=True),
    "gpt2-untied": GPT2Config(vocab_size=97, dim=64, layers=3, heads=4, norm_eps=1e-3, bias=True, tied_head=False),
}


def differs(model: LanguageModel, peer: torch.nn.Module, dtype: torch.dtype = torch.float32) -> float:
    """The largest difference of logits, as a part of the largest of theirs."""
    assert {parameter.dtype for parameter in [*model.parameters(), *peer.parameters()]} == {dtype}
    tokens = torch.randint(model.config.vocab_size, (2, 128), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits, expected = model(tokens).float(), peer.eval()(tokens).logits.float()
    largest = expected.abs().max().item()
    difference = (logits - expected).abs().max().item()
    print(f"largest difference of logits {difference:.2e}, of logits of size {largest:.2f}")
    assert largest > 0.1
    return difference / largest


def saved(config: Config, folder: Path, **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    model = Llama(config) if isinstance(config, LlamaConfig) else GPT2(config)
    far_from_initial(model)
    save_folder(folder, config, export(config, model.state_dict().__getitem__), **options)
    return model


@pytest.mark.parametrize("config", FOLDERS.values(), ids=list(FOLDERS))
def test_transformers_reads_what_we_save(config: Config, tmp_path: Path) -> None:
    model = saved(config, tmp_path / "out", max_shard_bytes=200_000)
    kind = transformers.GPT2LMHeadModel
    if isinstance(config, LlamaConfig):
        kind = getattr(
            transformers, f"{'Qwen2' if config.qkv_bias else 'Qwen3' if config.qk_norm else 'Llama'}ForCausalLM"
        )
    peer, heard = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(heard.values()), heard
    # Measured: at most 3.2e-6, and 0 for some.
    assert differs(model, peer) < 1e-5
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")) is kind


@pytest.mark.parametrize("config", FOLDERS.values(), ids=list(FOLDERS))
def test_we_read_back_what_transformers_saves_of_ours(config: Config, tmp_path: Path) -> None:
    """The same bits and the same config: its own field for biases travels with it."""
    model = saved(config, tmp_path / "out")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "again")
    back = from_pretrained(tmp_path / "again")
    assert back.config == config
    theirs = dict(back.named_parameters())
    assert all(torch.equal(theirs[name], parameter) for name, parameter in model.named_parameters())


SMALL = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "initializer_range": 0.2}
THEIRS = {
    "llama": transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=176, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, initializer_range=0.2,
    ),
    "llama-tied": transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": 123456.0}, rms_norm_eps=1e-3, tie_word_embeddings=True,
        initializer_range=0.2,
    ),
    "mistral": transformers.MistralConfig(**SMALL, num_key_value_heads=2, head_dim=32, sliding_window=None),
    "mistral-window": transformers.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=128),
    "qwen2": transformers.Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SMALL, num_key_value_heads=2),
    "gpt2": transformers.GPT2Config(
        vocab_size=97, n_embd=64, n_layer=3, n_head=4, n_positions=128, initializer_range=0.2,
        bos_token_id=0, eos_token_id=0,
    ),
    "gpt2-untied": transformers.GPT2Config(
        vocab_size=97, n_embd=64, n_layer=2, n_head=8, n_positions=256, initializer_range=0.2,
        activation_function="gelu_pytorch_tanh", tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("shard", ["20KB", "5GB"])
@pytest.mark.parametrize("name", THEIRS)
def test_we_read_what_transformers_saves(name: str, shard: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    peer = transformers.AutoModelForCausalLM.from_config(THEIRS[name])
    far_from_initial(peer)
    peer.save_pretrained(tmp_path / "theirs", max_shard_size=shard)
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists() == (shard == "20KB")
    model = from_pretrained(tmp_path / "theirs")
    assert model.config.tied_head == THEIRS[name].tie_word_embeddings
    assert differs(model, peer) < 1e-5


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_dtype_of_a_folder_is_that_of_both_models(name: str, tmp_path: Path) -> None:
    """In 16 bits our rotary positions are computed in fp32 and theirs are not, so logits are near and not equal."""
    config = FOLDERS[f"{name}-untied"]
    saved(config, tmp_path / "out", dtype=torch.bfloat16)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert differs(from_pretrained(tmp_path / "out"), peer, torch.bfloat16) < 0.05


def test_a_model_without_a_head_is_read_where_the_head_is_tied(tmp_path: Path) -> None:
    peer = transformers.GPT2LMHeadModel(THEIRS["gpt2"])
    peer.transformer.save_pretrained(tmp_path / "theirs")
    assert differs(from_pretrained(tmp_path / "theirs"), peer) < 1e-5
