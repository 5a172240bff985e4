"""Language models to shard: LLaMA-style and GPT-2, in sizes from a test's to a GPU's.

    model = build("llama", "tiny", vocab_size=256)
    loss = model(tokens, targets)
    for unit in model.units(): ...          # what ZeRO shards one by one

| name  | size   | vocabulary | parameters    |
|-------|--------|------------|---------------|
| llama | nano   | 256        | 32,928        |
| llama | tiny   | 8,192      | 7,539,520     |
| llama | tiny   | 128,256    | 45,960,000    |
| llama | small  | 128,256    | 317,649,024   |
| llama | medium | 128,256    | 1,344,899,072 |
| gpt2  | nano   | 256        | 65,696        |
| gpt2  | tiny   | 256        | 3,475,712     |
| gpt2  | 124m   | 50,304     | 124,373,760   |
"""

from __future__ import annotations

from dataclasses import replace

from zerolab.errors import InputError
from zerolab.models.gpt2 import GPT2, GPT2Config, gpt2_unit_parameters
from zerolab.models.llama import Llama, LlamaConfig, llama_unit_parameters

Config = LlamaConfig | GPT2Config
LanguageModel = Llama | GPT2

BYTE_VOCABULARY = 256  # what the byte tokenizer knows; `config_of` puts another number in its place
SIZES: dict[str, dict[str, Config]] = {
    "llama": {
        "nano": LlamaConfig(BYTE_VOCABULARY, dim=32, layers=2, heads=4, kv_heads=2, ffn_dim=96),
        "tiny": LlamaConfig(BYTE_VOCABULARY, dim=320, layers=4, heads=10, kv_heads=2, ffn_dim=1024),
        "small": LlamaConfig(BYTE_VOCABULARY, dim=1152, layers=12, heads=18, kv_heads=6, ffn_dim=3072),
        "medium": LlamaConfig(BYTE_VOCABULARY, dim=2048, layers=24, heads=32, kv_heads=8, ffn_dim=5632),
    },
    "gpt2": {
        "nano": GPT2Config(BYTE_VOCABULARY, dim=32, layers=2, heads=4),
        "tiny": GPT2Config(BYTE_VOCABULARY, dim=256, layers=4, heads=8),
        "124m": GPT2Config(BYTE_VOCABULARY, dim=768, layers=12, heads=12),
        "355m": GPT2Config(BYTE_VOCABULARY, dim=1024, layers=24, heads=16),
        "774m": GPT2Config(BYTE_VOCABULARY, dim=1280, layers=36, heads=20),
        "1558m": GPT2Config(BYTE_VOCABULARY, dim=1600, layers=48, heads=25),
        "gpt3-1.3b": GPT2Config(BYTE_VOCABULARY, dim=2048, layers=24, heads=16, bias=True),
        "gpt3-2.7b": GPT2Config(BYTE_VOCABULARY, dim=2560, layers=32, heads=32, bias=True),
        "gpt3-6.7b": GPT2Config(BYTE_VOCABULARY, dim=4096, layers=32, heads=32, bias=True),
        "gpt3-13b": GPT2Config(BYTE_VOCABULARY, dim=5120, layers=40, heads=40, bias=True),
        "gpt3-175b": GPT2Config(BYTE_VOCABULARY, dim=12288, layers=96, heads=96, bias=True),
    },
}
"""GPT-3's are for worlds without values (`world="virtual"`) and for plans; with its own tokens their vocabulary is
50257 (arXiv 2005.14165, table 2.1; the 1.3B and the 13B as in `zerolab.apps.plan.shapes`)."""


def config_of(name: str, size: str, *, vocab_size: int = BYTE_VOCABULARY, max_seq_len: int = 1024) -> Config:
    """The shape of a named model, for a vocabulary and a longest sequence.

    Raises:
        InputError: an unknown name or size, or a number below 1.
    """
    if name not in SIZES:
        raise InputError(f"there is no model {name!r}; choose one of {', '.join(SIZES)}.")
    if size not in SIZES[name]:
        raise InputError(f"{name} has no size {size!r}; choose one of {', '.join(SIZES[name])}.")
    return replace(SIZES[name][size], vocab_size=vocab_size, max_seq_len=max_seq_len)


def build(
    name: str, size: str, *, vocab_size: int = BYTE_VOCABULARY, max_seq_len: int = 1024, checkpoint: bool = False
) -> LanguageModel:
    """A named model with weights drawn from torch's global seed, on the default device and dtype.

    Under `with torch.device("meta")` it has shapes and no storage, which is how the large sizes are counted.

    Raises:
        InputError: see `config_of`.
    """
    return build_model(config_of(name, size, vocab_size=vocab_size, max_seq_len=max_seq_len), checkpoint=checkpoint)


def build_model(config: Config, *, checkpoint: bool = False, dropout: float = 0.0) -> LanguageModel:
    """A model of a shape, as `build` makes one.

    Raises:
        InputError: dropout that is not in [0, 1), or for a Llama, which has none.
    """
    if isinstance(config, GPT2Config):
        return GPT2(config, checkpoint=checkpoint, dropout=dropout)
    if dropout:
        raise InputError(f"dropout is {dropout} and a Llama has none; leave it out, or take a GPT-2.")
    return Llama(config, checkpoint=checkpoint)


def unit_parameters(config: Config) -> list[int]:
    """Parameters of each unit, by formula and without building the model; tied weights count once."""
    if isinstance(config, LlamaConfig):
        return llama_unit_parameters(config)
    return gpt2_unit_parameters(config)


def parameter_count(config: Config) -> int:
    """All parameters, by formula and without building the model; tied weights count once."""
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
