"""What people bring to a plan: a model by name, by a config.json or by its sizes."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from zerolab.apps.cost.gpus import normalize_name
from zerolab.apps.interop.huggingface.config import from_huggingface
from zerolab.apps.plan.mixture_config import MixtureConfig
from zerolab.apps.plan.shapes import SHAPES, Shape
from zerolab.errors import InputError
from zerolab.models import SIZES, Config, GPT2Config, LlamaConfig, config_of

HUB = {"gpt2": "GPT-2 124M", "gpt2-medium": "GPT-2 355M", "gpt2-large": "GPT-2 774M", "gpt2-xl": "GPT-2 1.5B"}
FAMILIES = ("gpt2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3")
PASSED_OVER = ("rope_scaling", "rope_parameters", "sliding_window")
"""Fields that change no byte of training: how positions turn, how far a window reaches."""
NOT_OURS = "take a checkpoint of such a model."
INSTEAD = "name a model that is like it, or sizes such as layers=24,hidden=2048,heads=16"
MOST_LAYERS, MOST_WIDE = 10_000, 1 << 24
"""More layers take minutes to plan, and wider matrices have more bytes than 64 bits count."""
SIZE_FIELDS = {
    "layers": "layers",
    "hidden": "dim",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn": "ffn_dim",
    "experts": "experts",
    "active": "active",
    "vocabulary": "vocab_size",
    "context": "max_seq_len",
}
"""The sizes that people give, and what a `Config` calls them."""


def find_model(text: str) -> Shape:
    """A model by its name ("llama tiny"), the path of a config.json, or sizes ("layers=2,...")."""
    shape = read_sizes(text) if "=" in text else find_shape(text)
    for name, field in SIZE_FIELDS.items():
        most = MOST_LAYERS if name in ("layers", "experts") else MOST_WIDE
        if (size := vars(shape.config).get(field, 1)) > most:
            raise InputError(f"{name} is {size}; give at most {most}")
    return shape


def find_shape(text: str) -> Shape:
    named = {normalize_name(name): shape for name, shape in SHAPES.items()}
    # A hub has a model as OWNER/MODEL.
    of_hub = text.rpartition("/")[2].lower()
    of_hub = HUB.get(of_hub) or re.sub(r"^meta-|-hf$|-v0\.1$", "", of_hub)
    if shape := named.get(normalize_name(text)) or named.get(normalize_name(of_hub)):
        return shape
    for model, size in ((model, size) for model, sizes in SIZES.items() for size in sizes):
        if normalize_name(text) == normalize_name(f"{model} {size}"):
            return Shape(config_of(model, size), f"{model} {size}")
    path = Path(text).expanduser()
    if text and path.is_dir():
        path = path / "config.json"
    if text and (path.suffix == ".json" or path.exists()):
        return read_config(path)
    near = get_close_matches(normalize_name(text), named, n=3, cutoff=0.5)
    listed = ", ".join(named[name].name for name in near) or ", ".join(SHAPES)
    raise InputError(
        f"there is no model {text!r}; choose {listed}, a config.json, or sizes such as layers=24,hidden=2048,heads=16"
    )


def read_sizes(text: str) -> Shape:
    """A GPT; with kv_heads or ffn a Llama, with experts a mixture of them."""
    sizes: dict[str, Any] = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        name, _, number = part.partition("=")
        if name not in SIZE_FIELDS or not number.isdecimal():
            raise InputError(f"{part!r} is no size; give name=number with a name of {', '.join(SIZE_FIELDS)}")
        if SIZE_FIELDS[name] in sizes:
            raise InputError(f"{text!r} gives {name} twice; give it once")
        sizes[SIZE_FIELDS[name]] = int(number)
    for name in ("layers", "hidden", "heads"):
        if SIZE_FIELDS[name] not in sizes:
            raise InputError(f"{text!r} does not say {name}; give layers, hidden and heads at least")
    title = f"{sizes['layers']} layers of width {sizes['dim']}"
    sizes = {"vocab_size": 50257, "max_seq_len": 2048} | sizes
    if not sizes.keys() & {"kv_heads", "ffn_dim", "experts", "active"}:
        return Shape(GPT2Config(**sizes, bias=True), title)
    sizes = {"kv_heads": sizes["heads"], "ffn_dim": 4 * sizes["dim"]} | sizes
    if not sizes.keys() & {"experts", "active"}:
        return Shape(LlamaConfig(**sizes, tied_head=False), title)
    sizes = {"active": min(2, sizes.get("experts", 8))} | sizes
    return Shape(MixtureConfig(**sizes, tied_head=False), title)


def read_config(path: Path) -> Shape:
    """The shape of a Hugging Face config.json of one of `FAMILIES`."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); name a config.json") from None
    if not isinstance(said, dict):
        raise InputError(f"{path} is no JSON object; name a config.json of Hugging Face")
    kind = said.get("model_type")
    name = str(said.get("_name_or_path") or "") or (path.parent.name if path.name == "config.json" else path.stem)
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise InputError(f"{path}: model_type is {kind!r}, and what is planned to the byte is {known}; {INSTEAD}")
    try:
        return Shape(convert_config(said, str(kind)), name or str(kind))
    except InputError as error:
        raise InputError(f"{path}: {str(error).replace(NOT_OURS, INSTEAD)}") from None


def convert_config(said: dict[str, Any], kind: str) -> Config:
    """The model of one of the `FAMILIES` that a config.json describes."""
    asked = {key: value for key, value in said.items() if key not in PASSED_OVER} | {"sliding_window": None}
    if kind in ("mixtral", "phi3"):
        asked |= {"model_type": "llama", "head_dim": None}
    config = from_huggingface(asked)
    if kind != "mixtral":
        return config
    assert isinstance(config, LlamaConfig)
    experts, active = (said.get(field) for field in ("num_local_experts", "num_experts_per_tok"))
    if not (isinstance(experts, int) and isinstance(active, int)):
        raise InputError(f"there are {experts!r} experts of which {active!r} are active; give whole numbers")
    return MixtureConfig(**vars(config), experts=experts, active=active)
