"""GPT-2: learned positions, LayerNorm, full attention, GELU.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. Biases are off by default: they
make the model slower, not better, and OpenAI's own count returns with `bias=True`.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerolab.errors import InputError
from zerolab.models.common import Block, LanguageModel, drop
from zerolab.models.sizes import GPT2Config


class Embedding(nn.Module):
    """Token vector plus position vector: int64 [batch, seq] -> [batch, seq, dim]."""

    def __init__(self, config: GPT2Config, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(config.vocab_size, config.dim)
        self.positions = nn.Embedding(config.max_seq_len, config.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return drop(hidden, self.dropout, self.training)


class Attention(nn.Module):
    """Causal self-attention; one matrix computes queries, keys and values."""

    def __init__(self, config: GPT2Config, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = dropout
        self.qkv_proj = nn.Linear(config.dim, 3 * config.dim, bias=config.bias)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [batch, heads, seq, head_dim]
            for part in self.qkv_proj(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Widen to 4 · dim, GELU (GPT-2's tanh form), narrow again."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.dim, 4 * config.dim, bias=config.bias)
        self.down_proj = nn.Linear(4 * config.dim, config.dim, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))


class GPT2(LanguageModel):
    """The whole model; see `LanguageModel`."""

    def __init__(self, config: GPT2Config, checkpoint: bool = False, dropout: float = 0.0) -> None:
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout}, but must be at least 0 and below 1; change it.")
        norm = partial(nn.LayerNorm, config.dim, eps=config.norm_eps, bias=config.bias)
        super().__init__(
            config,
            Embedding(config, dropout),
            lambda: Block(norm, Attention(config, dropout), FeedForward(config), dropout),
            norm,
            checkpoint,
            dropout,
        )
