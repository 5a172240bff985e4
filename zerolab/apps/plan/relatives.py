"""Relatives of the Llama, to plan with: heads of a width of their own, biases of queries, keys and values, norms of
queries and keys. Mistral, Qwen2 and Qwen3 differ by these. Qwen: arXiv 2407.10671 and 2505.09388.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from zerolab.models import Llama, LlamaConfig
from zerolab.models.llama import Attention, RMSNorm, rotate


@dataclass(frozen=True)
class RelativeConfig(LlamaConfig):
    """A Llama whose heads are `head_size` wide (None: dim / heads), whose queries, keys and values have biases
    (`qkv_bias`), and whose queries and keys are normed head by head (`qk_norm`)."""

    head_size: int | None = None
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def head_dim(self) -> int:
        return self.head_size or self.dim // self.heads

    @property
    def more_parameters(self) -> int:
        """How many more a block has than a Llama's whose keys and values are as wide."""
        wider = 2 * self.dim * (self.heads * self.head_dim - self.dim)
        biases = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        return wider + biases + (2 * self.head_dim if self.qk_norm else 0)


class RelativeAttention(Attention):
    def __init__(self, config: RelativeConfig) -> None:
        super().__init__(config)
        width = config.heads * config.head_dim
        kv_width = config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, width, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.dim, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.dim, kv_width, bias=config.qkv_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.normed = config.qk_norm
        self.o_proj = nn.Linear(width, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (projection(x).unflatten(-1, (-1, self.head_dim)) for projection in projections)
        if self.normed:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, self._share(key), self._share(value), is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Relative(Llama):
    """The model: `Llama` with `RelativeAttention` in the place of each attention."""

    def __init__(self, config: RelativeConfig, checkpoint: bool = False) -> None:
        super().__init__(config, checkpoint=checkpoint)
        for block in self.blocks:
            block.attention = RelativeAttention(config)
