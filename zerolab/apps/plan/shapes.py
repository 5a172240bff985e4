"""Shapes of known transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerolab.apps.plan.mixture import MixtureConfig, parameter_count
from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.models import SIZES, Config, GPT2Config


@dataclass(frozen=True)
class Shape:
    """A GPT: `layers` blocks of attention and a feed-forward of width 4 `hidden`, a tied head, learned positions; or
    another model that is `built` already."""

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int = 50257
    context: int = 2048
    built: Config | None = None

    def __post_init__(self) -> None:
        for what in ("layers", "hidden", "heads", "vocabulary", "context"):
            check_count(what, getattr(self, what))
        if self.built is None and self.hidden % self.heads:
            raise InputError(f"hidden is {self.hidden}, which {self.heads} heads do not divide; change one of the two")

    @property
    def config(self) -> Config:
        """The model of `zerolab.models` that has this shape."""
        if self.built is not None:
            return self.built
        return GPT2Config(self.vocabulary, self.hidden, self.layers, self.heads, self.context, bias=True)

    @property
    def parameters(self) -> int:
        """All of them; a tied head is the embedding once more."""
        return parameter_count(self.config)


def shape_of(config: Config, name: str) -> Shape:
    """The shape of a model of `zerolab.models`, under a name for errors and titles, such as "llama tiny"."""
    return Shape(name, config.layers, config.dim, config.heads, config.vocab_size, config.max_seq_len, config)


def named_shapes() -> dict[str, Shape]:
    """The models of `zerolab.models.SIZES` that were published, as the world calls them, and Mixtral (arXiv 2401.04088,
    table 1), which is only planned."""
    gpt2, found = {"124m": "124M", "355m": "355M", "774m": "774M", "1558m": "1.5B"}, dict[str, Config]()
    for size, config in SIZES["gpt2"].items():
        if size in gpt2:
            assert isinstance(config, GPT2Config)
            found[f"GPT-2 {gpt2[size]}"] = replace(config, bias=True)
        elif size.startswith("gpt3-"):
            found[f"GPT-3 {size.removeprefix('gpt3-').upper()}"] = config
    for size, config in SIZES["llama"].items():
        if size[0].isdecimal():
            found[f"Llama {size.replace('-', ' ').upper()}"] = config
    found["Mixtral 8x7B"] = MixtureConfig(32000, 4096, 32, 32, 8, 14336, 32768, tied_head=False, experts=8, active=2)
    return {name: shape_of(config, name) for name, config in found.items()}


SHAPES = named_shapes()
