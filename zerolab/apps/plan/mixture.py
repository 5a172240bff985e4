"""A Mixtral-like model, to plan with: a Llama with several feed-forwards a layer, of which each token takes some.

Each expert takes an equal share of the tokens, as with a balancing loss. Which those are is not learned, so it is no
model to train. Jiang et al., arXiv 2401.04088.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zerolab import models
from zerolab.apps.plan.mixture_config import MixtureConfig
from zerolab.models import Config, LanguageModel, Llama
from zerolab.models.llama import FeedForward


class Experts(nn.Module):
    """A router and its experts; hidden states [batch, seq, dim] in and out."""

    def __init__(self, config: MixtureConfig) -> None:
        super().__init__()
        self.active = config.active
        self.router = nn.Linear(config.dim, config.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).float().softmax(-1).topk(self.active)
        # Equal runs of (token, choice), in the order of the experts that were chosen.
        order = chosen.flatten().argsort()
        out = torch.zeros_like(flat)
        for expert, run in zip(self.experts, order.tensor_split(len(self.experts)), strict=True):
            rows = run // self.active
            share = expert(flat[rows]) * weights.flatten()[run].unsqueeze(-1).to(flat.dtype)
            out = out.index_add(0, rows, share)
        return out.view_as(x)


class Mixture(Llama):
    """The model: `Llama` with `Experts` in the place of each feed-forward."""

    def __init__(self, config: MixtureConfig, checkpoint: bool = False) -> None:
        super().__init__(config, checkpoint=checkpoint)
        for block in self.blocks:
            block.ffn = Experts(config)


def build_model(config: Config, checkpoint: bool = False, dropout: float = 0.0) -> LanguageModel:
    """The model of a config; a GPT-2 may have dropout."""
    if isinstance(config, MixtureConfig):
        return Mixture(config, checkpoint)
    return models.build_model(config, checkpoint=checkpoint, dropout=dropout)


def parameter_count(config: Config) -> int:
    return sum(models.unit_parameters(config, build_model))
