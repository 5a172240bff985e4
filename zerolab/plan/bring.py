"""What people bring to a plan: a model by name, by a config.json or by its sizes. (GPUs are in `zerolab.cost`.)"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from zerolab.cost.gpus import plain
from zerolab.errors import InputError
from zerolab.models import SIZES, LlamaConfig, config_of
from zerolab.models.huggingface.config import from_huggingface
from zerolab.plan.mixture import MixtureConfig
from zerolab.plan.shapes import SHAPES, Shape, shape_of

HUB = {"gpt2": "GPT-2 124M", "gpt2-medium": "GPT-2 355M", "gpt2-large": "GPT-2 774M", "gpt2-xl": "GPT-2 1.5B"}
SIZE_NAMES = ("layers", "hidden", "heads", "kv_heads", "ffn", "experts", "active", "vocabulary", "context")


def find_model(text: str) -> Shape:
    """A shape by a name of `SHAPES` ("llama-3-405b") or of `zerolab train` ("llama tiny"), by the path of a config.json
    or of a folder with one, or by sizes ("layers=24,hidden=2048,heads=16").

    Raises InputError for what is none of these.
    """
    if "=" in text:
        return by_sizes(text)
    named = {plain(name): shape for name, shape in SHAPES.items()}
    if shape := named.get(plain(text)) or named.get(plain(of_hub(text))):
        return shape
    ours = {plain(f"{model} {size}"): (model, size) for model, sizes in SIZES.items() for size in sizes}
    if plain(text) in ours:
        model, size = ours[plain(text)]
        return shape_of(config_of(model, size), f"{model} {size}")
    path = Path(text).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or path.exists():
        return by_config(path)
    near = get_close_matches(plain(text), named, n=3, cutoff=0.5)
    listed = ", ".join(named[name].name for name in near) or ", ".join(SHAPES)
    raise InputError(
        f"there is no model {text!r}; choose {listed}, a config.json, or sizes such as layers=24,hidden=2048,heads=16"
    )


def of_hub(name: str) -> str:
    """The name of a model that a hub has as OWNER/MODEL, in our words; it may be none."""
    name = name.rpartition("/")[2].lower()
    return HUB.get(name) or re.sub(r"^meta-|-hf$|-v0\.1$", "", name)


def by_sizes(text: str) -> Shape:
    """ "layers=24,hidden=2048,heads=16": a GPT; with kv_heads, ffn or experts a Llama, or a mixture of experts."""
    sizes: dict[str, int] = {}
    for part in filter(None, re.split(r"[,\s]+", text)):
        name, _, number = part.partition("=")
        if name not in SIZE_NAMES or not number.isdecimal():
            raise InputError(f"{part!r} is no size; give name=number with a name of {', '.join(SIZE_NAMES)}")
        sizes[name] = int(number)
    missing = [name for name in ("layers", "hidden", "heads") if name not in sizes]
    if missing:
        raise InputError(f"{text!r} does not say {missing[0]}; give layers, hidden and heads at least")
    context, vocabulary = sizes.get("context", 2048), sizes.get("vocabulary", 50257)
    layers, hidden, heads = sizes["layers"], sizes["hidden"], sizes["heads"]
    name = f"{layers} layers of width {hidden}"
    if not sizes.keys() & {"kv_heads", "ffn", "experts", "active"}:
        return Shape(name, layers, hidden, heads, vocabulary, context)
    of_llama = (vocabulary, hidden, layers, heads, sizes.get("kv_heads", heads), sizes.get("ffn", 4 * hidden), context)
    if "experts" not in sizes and "active" not in sizes:
        return shape_of(LlamaConfig(*of_llama, tied_head=False), name)
    experts = sizes.get("experts", 8)
    mixture = MixtureConfig(*of_llama, tied_head=False, experts=experts, active=sizes.get("active", min(2, experts)))
    return shape_of(mixture, name)


def by_config(path: Path) -> Shape:
    """The shape of a Hugging Face config.json: GPT-2, Llama, Mistral or Mixtral. Fields that change no byte of training
    (how positions turn, how far a window reaches) are passed over."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); name a config.json") from None
    if not isinstance(said, dict):
        raise InputError(f"{path} is no JSON object; name a config.json of Hugging Face")
    kind = said.get("model_type")
    name = str(said.get("_name_or_path") or "") or (path.parent.name if path.name == "config.json" else path.stem)
    dropped = ("rope_scaling", "rope_parameters", "sliding_window")
    asked: dict[str, Any] = {key: value for key, value in said.items() if key not in dropped}
    if kind in ("mistral", "mixtral"):
        asked["model_type"] = "llama"
    config = from_huggingface(asked)
    if kind == "mixtral" and isinstance(config, LlamaConfig):
        experts, active = (said.get(field) for field in ("num_local_experts", "num_experts_per_tok"))
        if not (isinstance(experts, int) and isinstance(active, int)):
            raise InputError(f"{path} has {experts!r} experts of which {active!r} are active; give whole numbers")
        config = MixtureConfig(**vars(config), experts=experts, active=active)
    return shape_of(config, name or str(kind))
