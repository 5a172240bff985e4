"""A LLaMA-style language model: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    tokens [batch, seq]
       |  embedding               unit 0
       |  block 0 .. block L-1    units 1 .. L    x + attention(norm(x)), then x + feed_forward(norm(x))
       |  head: norm, projection  unit L+1        with a tied head the projection's weight is the embedding's
    logits [batch, seq, vocab]

ZeRO shards unit by unit, so a unit's parameters are read only inside that unit's own forward, and every unit
is called as a module. The model holds no buffer: the rotary tables are computed anew in each forward (they
cost one outer product), so nothing but parameters ever needs a place or a message.

Touvron et al., arXiv 2302.13971; grouped queries: Ainslie et al., arXiv 2305.13245.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerolab.errors import InputError
from zerolab.models.common import check_batch, initialize, logits_or_loss, require_positive, run_block


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a `Llama`. `heads` query heads share `kv_heads` key and value heads.

    Raises:
        InputError: a size below 1, or heads that do not divide.
    """

    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    max_seq_len: int = 1024
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5
    tied_head: bool = True

    def __post_init__(self) -> None:
        require_positive(
            vocab_size=self.vocab_size, dim=self.dim, layers=self.layers, heads=self.heads,
            kv_heads=self.kv_heads, ffn_dim=self.ffn_dim, max_seq_len=self.max_seq_len,
        )  # fmt: skip
        if self.dim % self.heads:
            raise InputError(f"dim {self.dim} is not a multiple of heads {self.heads}; change one of them.")
        if self.heads % self.kv_heads:
            raise InputError(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}, so they cannot be shared "
                "evenly; change one of them."
            )
        if self.head_dim % 2:
            raise InputError(
                f"dim / heads is {self.head_dim}, but rotary positions turn pairs and need an even head size; "
                "change dim or heads."
            )
        if not (self.rope_theta > 0 and self.norm_eps > 0):
            raise InputError(
                f"rope_theta is {self.rope_theta} and norm_eps {self.norm_eps}, but both must be positive; change them."
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def llama_unit_parameters(config: LlamaConfig) -> list[int]:
    """Parameters of each unit in the order of `Llama.units()`; a tied head counts only its norm.

    >>> sum(llama_unit_parameters(LlamaConfig(8192, 320, 4, 10, 2, 1024)))
    7539520
    """
    dim, kv_dim = config.dim, config.kv_heads * config.head_dim
    attention = 2 * dim * dim + 2 * dim * kv_dim
    feed_forward = 3 * dim * config.ffn_dim
    norm = dim
    table = config.vocab_size * dim
    block = attention + feed_forward + 2 * norm
    return [table, *[block] * config.layers, norm + (0 if config.tied_head else table)]


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
    """Causal attention whose query heads share key and value heads in groups; no biases."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.group = config.heads // config.kv_heads
        kv_dim = config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.k_proj = nn.Linear(config.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [batch, heads, seq, head_dim]
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
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


class Block(nn.Module):
    """One transformer layer; hidden states [batch, seq, dim] in and out."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Head(nn.Module):
    """Final norm and the projection to logits."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.dim, config.norm_eps)
        # A tied weight is put in place by the model, so do not spend memory on one of its own.
        device = "meta" if config.tied_head else None
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.norm(x))


class Llama(nn.Module):
    """The whole model. Its initial weights depend on torch's global seed alone.

    Attributes:
        checkpoint: keep only the blocks' inputs and compute their activations anew in backward; may be
            switched at any time.
    """

    def __init__(self, config: LlamaConfig, checkpoint: bool = False) -> None:
        super().__init__()
        self.config = config
        self.checkpoint = checkpoint
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        if config.tied_head:
            self.head.lm_head.weight = self.embedding.weight
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
        config = self.config
        check_batch(tokens, targets, config.vocab_size, config.max_seq_len)
        hidden = self.embedding(tokens)
        cos, sin = rotary_tables(tokens.shape[1], config.head_dim, config.rope_theta, tokens.device)
        for block in self.blocks:
            hidden = run_block(block, hidden, cos, sin, checkpoint=self.checkpoint)
        return logits_or_loss(self.head(hidden), targets)
