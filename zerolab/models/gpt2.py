"""GPT-2: learned positions, LayerNorm, full attention, GELU; the units are those of `zerolab.models.llama`.

    tokens -> embedding (token table + position table) -> block 0 .. block L-1 -> head (norm, projection) -> logits

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. Biases are off by default: they
make the model slower, not better, and OpenAI's own count returns with `bias=True`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerolab.errors import InputError
from zerolab.models.common import check_batch, initialize, logits_or_loss, require_positive, run_block


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a `GPT2`; the feed-forward layer is 4 · dim wide.

    Raises:
        InputError: a size below 1, or dim that is not a multiple of heads.
    """

    vocab_size: int
    dim: int
    layers: int
    heads: int
    max_seq_len: int = 1024
    norm_eps: float = 1e-5
    bias: bool = False
    tied_head: bool = True

    def __post_init__(self) -> None:
        require_positive(
            vocab_size=self.vocab_size, dim=self.dim, layers=self.layers, heads=self.heads, max_seq_len=self.max_seq_len
        )
        if self.dim % self.heads:
            raise InputError(f"dim {self.dim} is not a multiple of heads {self.heads}; change one of them.")
        if not self.norm_eps > 0:
            raise InputError(f"norm_eps is {self.norm_eps}, but must be positive; change it.")


def gpt2_unit_parameters(config: GPT2Config) -> list[int]:
    """Parameters of each unit in the order of `GPT2.units()`; a tied head counts only its norm.

    The well-known 124,373,760 belongs to the vocabulary rounded up to 50,304 = 393 · 128:

    >>> sum(gpt2_unit_parameters(GPT2Config(50304, 768, 12, 12)))
    124373760
    >>> sum(gpt2_unit_parameters(GPT2Config(50257, 768, 12, 12)))
    124337664
    """
    dim, with_bias = config.dim, int(config.bias)
    norm = dim + with_bias * dim
    attention = 4 * dim * dim + with_bias * 4 * dim
    feed_forward = 8 * dim * dim + with_bias * 5 * dim
    tokens, positions = config.vocab_size * dim, config.max_seq_len * dim
    block = attention + feed_forward + 2 * norm
    return [tokens + positions, *[block] * config.layers, norm + (0 if config.tied_head else tokens)]


def drop(x: Tensor, dropout: float, training: bool) -> Tensor:
    """In training a share of `x` is 0, and the rest as much larger; else, and where the share is 0, x itself."""
    return F.dropout(x, dropout) if training and dropout else x


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


class Block(nn.Module):
    """One transformer layer; hidden states [batch, seq, dim] in and out."""

    def __init__(self, config: GPT2Config, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(config.dim, eps=config.norm_eps, bias=config.bias)
        self.attention = Attention(config, dropout)
        self.ffn_norm = nn.LayerNorm(config.dim, eps=config.norm_eps, bias=config.bias)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + drop(self.attention(self.attention_norm(x)), self.dropout, self.training)
        return x + drop(self.ffn(self.ffn_norm(x)), self.dropout, self.training)


class Head(nn.Module):
    """Final norm and the projection to logits."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps, bias=config.bias)
        # A tied weight is put in place by the model, so do not spend memory on one of its own.
        device = "meta" if config.tied_head else None
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.norm(x))


class GPT2(nn.Module):
    """The whole model. Its initial weights depend on torch's global seed alone.

    Attributes:
        checkpoint: keep only the blocks' inputs and compute their activations anew in backward; may be
            switched at any time.
        dropout: the share of the embedding's, the attention's and the blocks' outputs that training sets to 0.
    """

    def __init__(self, config: GPT2Config, checkpoint: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(f"dropout is {dropout}, but must be at least 0 and below 1; change it.")
        self.config = config
        self.checkpoint, self.dropout = checkpoint, dropout
        self.embedding = Embedding(config, dropout)
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.layers))
        self.head = Head(config)
        if config.tied_head:
            self.head.lm_head.weight = self.embedding.tokens.weight
        self._initialize(self)

    def units(self) -> list[nn.Module]:
        """The modules that ZeRO shards one by one, in the order of forward."""
        return [self.embedding, *self.blocks, self.head]

    def init_module(self, module: nn.Module) -> None:
        """First values of a unit: of a model on the meta device, whose constructor has drawn none, an engine asks for
        them unit by unit."""
        if any(module is unit for unit in self.units()):
            self._initialize(module)

    def _initialize(self, module: nn.Module) -> None:
        initialize(module, self.config.layers, residual=("o_proj.weight", "down_proj.weight"))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [batch, seq, vocab] of int64 tokens [batch, seq]; with targets, their mean cross-entropy (fp32).

        Raises:
            InputError: see `check_batch`.
        """
        check_batch(tokens, targets, self.config.vocab_size, self.config.max_seq_len)
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = run_block(block, hidden, checkpoint=self.checkpoint, draws=self.dropout > 0)
        return logits_or_loss(self.head(hidden), targets)
