"""Shapes of known transformers, from which their parameters and activations follow."""

from __future__ import annotations

from dataclasses import dataclass

from zerolab.apps.plan.mixture import MixtureConfig, parameter_count, unit_parameters
from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.models import Config, GPT2Config, LlamaConfig


@dataclass(frozen=True)
class Shape:
    """A GPT: `layers` blocks of attention and a feed-forward of width 4 `hidden`, a tied head, learned positions."""

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50257
    context: int = 2048

    def __post_init__(self) -> None:
        for what in ("layers", "hidden", "heads", "vocabulary", "context"):
            check_count(what, getattr(self, what))
        if self.hidden % self.heads:
            raise InputError(f"hidden is {self.hidden}, which {self.heads} heads do not divide; change one of the two")

    @property
    def config(self) -> Config:
        """The model of `zerolab.models` that has this shape."""
        return GPT2Config(self.vocabulary, self.hidden, self.layers, self.heads, self.context, bias=True)

    @property
    def layer_parameters(self) -> int:
        """12 h^2 in matrices (4 in attention, 8 in the feed-forward) and 13 h in biases and norms."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self) -> int:
        """All layers, both embeddings and the last norm; the head is the embedding once more."""
        return self.layers * self.layer_parameters + (self.vocabulary + self.context + 2) * self.hidden

    def activation_bytes(self, batch: int, tokens: int, checkpointing: bool) -> float:
        """What the layers keep for backward, in 16 bits: s b h (34 + 5 a s / h) bytes a layer for b sequences of s
        tokens; with checkpointing each layer's input, 2 s b h, and one layer whole (Korthikanti et al., arXiv
        2205.05198, sections 4 and 5). Embedding, head and loss are not in it."""
        check_count("batch", batch)
        check_count("tokens", tokens)
        entry = tokens * batch * self.hidden
        whole = entry * (34 + 5 * self.heads * tokens / self.hidden)
        return self.layers * 2 * entry + whole if checkpointing else self.layers * whole


@dataclass(frozen=True)
class BuiltShape(Shape):
    """The shape of a model of `zerolab.models`, whose parameters are counted unit by unit. The formula of
    `activation_bytes` is that of a GPT of the same width."""

    built: Config | None = None

    @property
    def config(self) -> Config:
        assert self.built is not None
        return self.built

    @property
    def layer_parameters(self) -> int:
        return unit_parameters(self.config)[1]

    @property
    def parameters(self) -> int:
        return parameter_count(self.config)


def shape_of(config: Config, name: str) -> Shape:
    """The shape of a model of `zerolab.models`, under a name for errors and titles, such as "llama tiny"."""
    return BuiltShape(name, config.layers, config.dim, config.heads, config.vocab_size, config.max_seq_len, config)


def gpt3(size: str, layers: int, hidden: int, heads: int) -> Shape:
    return Shape(f"GPT-3 {size}", layers, hidden, heads)


def llama(
    name: str, layers: int, dim: int, heads: int, kv_heads: int, ffn_dim: int, vocabulary: int, context: int
) -> Shape:
    return shape_of(LlamaConfig(vocabulary, dim, layers, heads, kv_heads, ffn_dim, context, tied_head=False), name)


# GPT-2's four: its paper (2019, table 2). GPT-3's: arXiv 2005.14165, table 2.1; its 13B and 1.3B have a width there
# that the heads do not divide, so here they have 5120, and 16 heads. Llama 2: arXiv 2307.09288, table 1, and
# the models' config.json. Llama 3: arXiv 2407.21783, table 3. Mixtral: arXiv 2401.04088, table 1.
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("GPT-2 124M", 12, 768, 12, context=1024),
        Shape("GPT-2 355M", 24, 1024, 16, context=1024),
        Shape("GPT-2 774M", 36, 1280, 20, context=1024),
        Shape("GPT-2 1.5B", 48, 1600, 25, context=1024),
        gpt3("125M", 12, 768, 12),
        gpt3("350M", 24, 1024, 16),
        gpt3("760M", 24, 1536, 16),
        gpt3("1.3B", 24, 2048, 16),
        gpt3("2.7B", 32, 2560, 32),
        gpt3("6.7B", 32, 4096, 32),
        gpt3("13B", 40, 5120, 40),
        gpt3("175B", 96, 12288, 96),
        llama("Llama 2 7B", 32, 4096, 32, 32, 11008, 32000, 4096),
        llama("Llama 2 13B", 40, 5120, 40, 40, 13824, 32000, 4096),
        llama("Llama 2 70B", 80, 8192, 64, 8, 28672, 32000, 4096),
        llama("Llama 3 8B", 32, 4096, 32, 8, 14336, 128256, 8192),
        llama("Llama 3 70B", 80, 8192, 64, 8, 28672, 128256, 8192),
        llama("Llama 3 405B", 126, 16384, 128, 8, 53248, 128256, 131072),
        shape_of(
            MixtureConfig(32000, 4096, 32, 32, 8, 14336, 32768, tied_head=False, experts=8, active=2), "Mixtral 8x7B"
        ),
    )
}
