"""A LLaMA-style language model: RMSNorm, rotary positions, grouped-query attention, SwiGLU; and its relatives Mistral,
Qwen2 and Qwen3, which differ by the last three fields of `LlamaConfig`.

The model holds no buffer: the rotary tables are computed anew in each forward (they cost one outer product), so nothing
but parameters ever needs a place or a message.

Touvron et al., arXiv 2302.13971; grouped queries: Ainslie et al., arXiv 2305.13245; Qwen: arXiv 2407.10671, 2505.09388.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerolab.models.common import Block, LanguageModel
from zerolab.models.sizes import LlamaConfig


def rotary_tables(seq: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [seq, head_dim / 2], fp32: position p turns pair i by the angle p · theta^(-2i/head_dim)."""
    pairs = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(seq, device=device, dtype=torch.float32), theta**-pairs)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + head_dim/2]) of x [batch, heads, seq, head_dim] by its position's angle.

    Pairs lie half a head apart, as in Hugging Face's checkpoints; the paper's own code pairs neighbours.
    """
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, squared in fp32 whatever the dtype of x.

    Torch's own (nn.RMSNorm) computes the same, with a slower backward on a CPU. Zhang and Sennrich,
    arXiv 1910.07467.
    """

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


class Attention(nn.Module):
    """Causal attention whose query heads share key and value heads in groups."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.group = config.heads // config.kv_heads
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, width, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.dim, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.dim, kv_width, bias=config.qkv_bias)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.o_proj = nn.Linear(width, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # [batch, heads, seq, head_dim]
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        key, value = self._share(key), self._share(value)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _share(self, x: Tensor) -> Tensor:
        """Repeat each of the kv_heads for its group. Backward is a plain sum, the same bits in every run."""
        return x.unsqueeze(2).expand(-1, -1, self.group, -1, -1).flatten(1, 2)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)) (Shazeer, arXiv 2002.05202)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Llama(LanguageModel):
    """The whole model; see `LanguageModel`."""

    def __init__(self, config: LlamaConfig, checkpoint: bool = False) -> None:
        norm = partial(RMSNorm, config.dim, config.norm_eps)
        super().__init__(
            config,
            nn.Embedding(config.vocab_size, config.dim),
            lambda: Block(norm, Attention(config), FeedForward(config)),
            norm,
            checkpoint,
        )

    def context(self, tokens: Tensor) -> tuple[Tensor, ...]:
        return rotary_tables(tokens.shape[1], self.config.head_dim, self.config.rope_theta, tokens.device)
