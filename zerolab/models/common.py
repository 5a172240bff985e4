"""What the two language models share: the model around its blocks, initial values, checks, activation checkpointing.

    tokens [batch, seq]
       |  embedding               unit 0
       |  block 0 .. block L-1    units 1 .. L    x + attention(norm(x)), then x + feed_forward(norm(x))
       |  head: norm, projection  unit L+1        with a tied head the projection's weight is the embedding's
    logits [batch, seq, vocab]

ZeRO shards unit by unit, so a unit's parameters are read only inside that unit's own forward, and every unit is called
as a module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from zerolab.errors import InputError


def drop(x: Tensor, dropout: float, training: bool) -> Tensor:
    """In training a share of `x` is 0, and the rest as much larger; else, and where the share is 0, x itself."""
    return F.dropout(x, dropout) if training and dropout else x


class Block(nn.Module):
    """One transformer layer; hidden states [batch, seq, dim] in and out."""

    def __init__(
        self, norm: Callable[[], nn.Module], attention: nn.Module, ffn: nn.Module, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.attention_norm = norm()
        self.attention = attention
        self.ffn_norm = norm()
        self.ffn = ffn

    def forward(self, x: Tensor, *context: Tensor) -> Tensor:
        x = x + drop(self.attention(self.attention_norm(x), *context), self.dropout, self.training)
        return x + drop(self.ffn(self.ffn_norm(x)), self.dropout, self.training)


class Head(nn.Module):
    """Final norm and the projection to logits."""

    def __init__(self, norm: nn.Module, config: Any) -> None:
        super().__init__()
        self.norm = norm
        # A tied weight is put in place by the model, so do not spend memory on one of its own.
        device = "meta" if config.tied_head else None
        self.lm_head = nn.Linear(config.dim, config.vocab_size, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.norm(x))


class Loss(nn.Module):
    """Mean cross-entropy (fp32) of logits [batch, seq, vocab]; without targets [batch, seq] the logits."""

    def forward(self, logits: Tensor, targets: Tensor | None = None) -> Tensor:
        return logits if targets is None else F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class LanguageModel(nn.Module):
    """The whole model. Its initial weights depend on torch's global seed alone.

    checkpoint  keep only the blocks' inputs and compute their activations anew in backward; may be switched at any time
    dropout     the share of the embedding's, the attention's and the blocks' outputs that training sets to 0
    """

    def __init__(
        self,
        config: Any,
        embedding: nn.Module,
        block: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        checkpoint: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.config, self.checkpoint, self.dropout = config, checkpoint, dropout
        self.embedding = embedding
        self.blocks = nn.ModuleList(block() for _ in range(config.layers))
        self.head = Head(norm(), config)
        self.loss = Loss()
        if config.tied_head:
            self.head.lm_head.weight = next(embedding.parameters())
        self._initialize(self)

    def units(self) -> list[nn.Module]:
        """The modules that ZeRO shards one by one, in the order of forward."""
        return [self.embedding, *self.blocks, self.head]

    def init_module(self, module: nn.Module) -> None:
        """First values of a unit: of a model on the meta device, whose constructor has drawn none, an engine asks for
        them unit by unit."""
        if any(module is unit for unit in self.units()):
            self._initialize(module)

    @torch.no_grad()
    def _initialize(self, module: nn.Module) -> None:
        """Draw every matrix from N(0, 0.02²), from torch's global generator and in the order of the parameters.

        Matrices that write into the residual stream are drawn narrower by sqrt(2 · layers), so that the stream's
        variance does not grow with depth (GPT-2, section 2.3). Vectors keep what their layer gave them: norm weights 1,
        biases are set to 0. A tied matrix is drawn once.
        """
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 * ((2 * self.config.layers) ** -0.5 if residual else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def context(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """What each block reads beside the hidden states."""
        return ()

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [batch, seq, vocab] of int64 tokens [batch, seq]; with targets, their mean cross-entropy (fp32)."""
        check_batch(tokens, targets, self.config.max_seq_len)
        hidden, context = self.embedding(tokens), self.context(tokens)
        for block in self.blocks:
            if self.checkpoint and torch.is_grad_enabled():
                # Called as a module either way, so hooks on a block fire, also in its second forward. (That one stops
                # as soon as it has what backward asked for, so a hook *after* forward may not fire there.)
                hidden = recompute_in_backward(
                    block, hidden, *context, use_reentrant=False, preserve_rng_state=self.dropout > 0
                )
            else:
                hidden = block(hidden, *context)
        return self.loss(self.head(hidden), targets)


def check_batch(tokens: Tensor, targets: Tensor | None, max_seq_len: int) -> None:
    """Raise an InputError for a batch that would pass without a word; torch refuses ids outside the vocabulary."""
    if tokens.shape[1] > max_seq_len:
        raise InputError(
            f"a sequence of {tokens.shape[1]} tokens is longer than the model's max_seq_len of {max_seq_len}; "
            "cut it or build the model with a larger max_seq_len."
        )
    if targets is not None and targets.shape != tokens.shape:
        raise InputError(
            f"targets have shape {list(targets.shape)} and tokens {list(tokens.shape)}; give one target for each token."
        )
