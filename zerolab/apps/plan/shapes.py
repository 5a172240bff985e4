"""Models under the names that titles and errors have for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerolab.apps.plan.mixture_config import MixtureConfig
from zerolab.models import SIZES, Config, GPT2Config


@dataclass(frozen=True)
class Shape:
    """A model, and what titles and errors call it, such as "llama tiny"."""

    config: Config
    name: str

    @property
    def parameters(self) -> int:
        """All of them; a tied head is the embedding once more."""
        from zerolab.apps.plan.mixture import parameter_count

        return parameter_count(self.config)


def make_gpt(name: str, layers: int, hidden: int, heads: int, vocabulary: int = 50257, context: int = 2048) -> Shape:
    """A GPT: feed-forwards of width 4 `hidden`, biases, a tied head, learned positions."""
    return Shape(GPT2Config(vocabulary, hidden, layers, heads, context, bias=True), name)


def name_published() -> dict[str, Shape]:
    """The published ones of `zerolab.models.SIZES`, and Mixtral, which is only planned."""
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
    return {name: Shape(config, name) for name, config in found.items()}


SHAPES = name_published()
