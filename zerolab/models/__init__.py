"""Language models to shard: LLaMA-style and GPT-2, in sizes from a test's to a GPU's.

model = build("llama", "tiny", vocab_size=256)
loss = model(tokens, targets)
for unit in model.units(): ...          # what ZeRO shards one by one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch

from zerolab.errors import InputError
from zerolab.models.common import LanguageModel
from zerolab.models.gpt2 import GPT2, GPT2Config
from zerolab.models.llama import Llama, LlamaConfig

Config = LlamaConfig | GPT2Config

BYTE_VOCABULARY = 256  # what the byte tokenizer knows


def _llama2(dim: int, layers: int, heads: int, kv_heads: int, ffn_dim: int) -> LlamaConfig:
    return LlamaConfig(32_000, dim, layers, heads, kv_heads, ffn_dim, 4096, rope_theta=1e4, tied_head=False)


def _llama3(dim: int, layers: int, heads: int, ffn_dim: int, max_seq_len: int = 8192) -> LlamaConfig:
    return LlamaConfig(128_256, dim, layers, heads, 8, ffn_dim, max_seq_len, tied_head=False)


def _gpt3(dim: int, layers: int, heads: int) -> GPT2Config:
    return GPT2Config(50_257, dim, layers, heads, max_seq_len=2048, bias=True)


SIZES: dict[str, dict[str, Config]] = {
    "llama": {
        "nano": LlamaConfig(BYTE_VOCABULARY, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=96),
        "tiny": LlamaConfig(BYTE_VOCABULARY, dim=320, layers=4, heads=10, kv_heads=2, ffn_dim=1024),
        "small": LlamaConfig(BYTE_VOCABULARY, dim=1152, layers=12, heads=18, kv_heads=6, ffn_dim=3072),
        "medium": LlamaConfig(BYTE_VOCABULARY, dim=2048, layers=24, heads=32, kv_heads=8, ffn_dim=5632),
        "2-7b": _llama2(4096, 32, 32, 32, 11008),
        "2-13b": _llama2(5120, 40, 40, 40, 13824),
        "2-70b": _llama2(8192, 80, 64, 8, 28672),
        "3-8b": _llama3(4096, 32, 32, 14336),
        "3-70b": _llama3(8192, 80, 64, 28672),
        "3-405b": _llama3(16384, 126, 128, 53248, 131_072),
    },
    "gpt2": {
        "nano": GPT2Config(BYTE_VOCABULARY, dim=32, layers=2, heads=4),
        "tiny": GPT2Config(BYTE_VOCABULARY, dim=256, layers=4, heads=8),
        "124m": GPT2Config(50_257, dim=768, layers=12, heads=12),
        "355m": GPT2Config(50_257, dim=1024, layers=24, heads=16),
        "774m": GPT2Config(50_257, dim=1280, layers=36, heads=20),
        "1558m": GPT2Config(50_257, dim=1600, layers=48, heads=25),
        "gpt3-125m": _gpt3(768, 12, 12),
        "gpt3-350m": _gpt3(1024, 24, 16),
        "gpt3-760m": _gpt3(1536, 24, 16),
        "gpt3-1.3b": _gpt3(2048, 24, 16),
        "gpt3-2.7b": _gpt3(2560, 32, 32),
        "gpt3-6.7b": _gpt3(4096, 32, 32),
        "gpt3-13b": _gpt3(5120, 40, 40),
        "gpt3-175b": _gpt3(12288, 96, 96),
    },
}
"""Models by name and size, those that were published with their own vocabulary and context; `config_of` puts other
numbers in the place of both. GPT-2: its paper (2019, table 2), whose models have biases. GPT-3: arXiv 2005.14165, table
2.1, where the heads do not divide the width of 1.3B and 13B; here they have 16 heads, and 5120. Llama 2: arXiv
2307.09288, table 1. Llama 3: arXiv 2407.21783, table 3. The largest are for plans and for `world="virtual"`."""


def config_of(name: str, size: str, *, vocab_size: int = BYTE_VOCABULARY, max_seq_len: int = 1024) -> Config:
    """The shape of a named model, for a vocabulary and a longest sequence."""
    if name not in SIZES:
        raise InputError(f"there is no model {name!r}; choose one of {', '.join(SIZES)}.")
    if size not in SIZES[name]:
        raise InputError(f"{name} has no size {size!r}; choose one of {', '.join(SIZES[name])}.")
    return replace(SIZES[name][size], vocab_size=vocab_size, max_seq_len=max_seq_len)


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


__all__ = [
    "BYTE_VOCABULARY",
    "GPT2",
    "SIZES",
    "Config",
    "GPT2Config",
    "LanguageModel",
    "Llama",
    "LlamaConfig",
    "build",
    "build_model",
    "config_of",
    "parameter_count",
    "unit_parameters",
]
