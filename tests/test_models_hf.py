"""LLaMA's logits are Hugging Face's on shared weights. Needs transformers (the `bench` extra)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from zerolab.models import Llama, LlamaConfig

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
]


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


def peer_of(model: Llama) -> torch.nn.Module:
    config = model.config
    peer = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.dim,
            intermediate_size=config.ffn_dim,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=config.max_seq_len,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tied_head,
        )
    )
    peer.load_state_dict({hugging_face_name(name): tensor for name, tensor in model.state_dict().items()})
    return peer.eval()


def far_from_initial(model: Llama) -> None:
    """Make weights large and norms uneven: at the initial values many mistakes would hide in the tolerance."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.dim() == 1 else 0.05))


@pytest.mark.parametrize("config", SHAPES, ids=["tiny", "untied", "one-kv-head", "fourteen-heads", "one-head"])
def test_logits_and_gradients_equal_hugging_face(config: LlamaConfig) -> None:
    torch.manual_seed(0)
    model = Llama(config)
    far_from_initial(model)
    peer = peer_of(model)
    stream = torch.randint(config.vocab_size, (2, 129))
    tokens, targets = stream[:, :-1], stream[:, 1:]

    logits, expected = model(tokens), peer(tokens).logits
    difference = (logits - expected).abs().max().item()
    print(f"largest difference of logits {difference:.2e}, of logits of size {expected.abs().max().item():.2f}")
    assert expected.abs().max() > 1
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
