"""The shapes of the language models, and the named ones among them; in numbers alone, without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from zerolab.errors import InputError


def check_sizes(config: Any) -> None:
    """Raise an InputError for a config of which a whole number is below 1, or whose width the heads do not divide."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.type == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InputError(f"{field.name} is {value!r}, but must be a whole number of at least 1; change it.")
    if getattr(config, "head_size", None) is None and config.dim % config.heads:
        raise InputError(f"dim {config.dim} is not a multiple of heads {config.heads}; change one of them.")


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a `Llama`. `heads` query heads share `kv_heads` key and value heads.

    `head_size` is the width of a head (None: dim / heads), `qkv_bias` says that queries, keys and values have biases,
    and `qk_norm` that queries and keys are normed head by head.
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
    head_size: int | None = None
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.heads % self.kv_heads:
            raise InputError(
                f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}, so they cannot be shared "
                "evenly; change one of them."
            )
        if self.head_dim < 2 or self.head_dim % 2:
            named = "dim / heads" if self.head_size is None else "head_size"
            raise InputError(
                f"{named} is {self.head_dim}, but rotary positions turn pairs and need an even head size; change it."
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads if self.head_size is None else self.head_size


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a `GPT2`; the feed-forward layer is 4 · dim wide."""

    vocab_size: int
    dim: int
    layers: int
    heads: int
    max_seq_len: int = 1024
    norm_eps: float = 1e-5
    bias: bool = False
    tied_head: bool = True

    def __post_init__(self) -> None:
        check_sizes(self)


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
