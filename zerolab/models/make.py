"""Models by name or by shape, and how many parameters they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch

from zerolab.errors import InputError
from zerolab.models.common import LanguageModel
from zerolab.models.gpt2 import GPT2
from zerolab.models.llama import Llama
from zerolab.models.sizes import BYTE_VOCABULARY, Config, GPT2Config, config_of


def build(
    name: str, size: str, *, vocab_size: int = BYTE_VOCABULARY, max_seq_len: int = 1024, checkpoint: bool = False
) -> LanguageModel:
    """A named model with weights drawn from torch's global seed, on the default device and dtype: under
    `with torch.device("meta")` it has shapes and no storage."""
    return build_model(config_of(name, size, vocab_size=vocab_size, max_seq_len=max_seq_len), checkpoint=checkpoint)


def build_model(config: Config, *, checkpoint: bool = False, dropout: float = 0.0) -> LanguageModel:
    """A model of a shape, as `build` makes one; a GPT-2 may have dropout."""
    if isinstance(config, GPT2Config):
        return GPT2(config, checkpoint=checkpoint, dropout=dropout)
    if dropout:
        raise InputError(f"dropout is {dropout} and a Llama has none; leave it out, or take a GPT-2.")
    return Llama(config, checkpoint=checkpoint)


@lru_cache(maxsize=256)
def unit_parameters(config: Config, build: Callable[[Config], LanguageModel] = build_model) -> tuple[int, ...]:
    """Parameters of each unit of a model, in the order of its `units()`; a tied head counts only its norm.

    >>> sum(unit_parameters(GPT2Config(50257, 768, 12, 12, bias=True)))
    124439808
    """
    with torch.device("meta"):
        model = build(replace(config, layers=1))
    table, block, head = (sum(parameter.numel() for parameter in unit.parameters()) for unit in model.units())
    if config.tied_head:
        head -= config.vocab_size * config.dim
    return table, *[block] * config.layers, head


def parameter_count(config: Config) -> int:
    """All parameters; tied weights count once."""
    return sum(unit_parameters(config))
