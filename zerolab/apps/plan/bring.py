"""What people bring to a plan: a model by name, by a config.json or by its sizes. (GPUs are in `zerolab.apps.cost`.)"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from zerolab.apps.cost.gpus import plain
from zerolab.apps.interop.huggingface.config import from_huggingface
from zerolab.apps.plan.mixture import MixtureConfig
from zerolab.apps.plan.shapes import SHAPES, Shape, shape_of
from zerolab.errors import InputError
from zerolab.models import SIZES, Config, LlamaConfig, config_of

HUB = {"gpt2": "GPT-2 124M", "gpt2-medium": "GPT-2 355M", "gpt2-large": "GPT-2 774M", "gpt2-xl": "GPT-2 1.5B"}
FAMILIES = ("gpt2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3")
PASSED_OVER = ("rope_scaling", "rope_parameters", "sliding_window")
NOT_OURS = "take a checkpoint of such a model."
SIZE_FIELDS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "hidden_dim"),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
"""What families call the sizes."""
NEAR = {
    **dict.fromkeys(
        ("cohere", "gemma", "glm", "glm4", "granite", "llama", "mistral", "olmo", "olmo2", "phi3", "qwen2", "qwen3",
         "smollm3", "stablelm"), "llama",
    ),
    **dict.fromkeys(("bloom", "codegen", "gpt2", "gpt_neo", "gpt_neox", "gptj", "mpt", "opt", "phi"), "gpt"),
}  # fmt: skip
"""Families whose parameters are within a tenth of those of a Llama, or of a GPT, of their sizes."""
MOST_LAYERS, MOST_WIDE = 10_000, 1 << 24
"""More layers take minutes to plan; wider matrices have more bytes than a number of 64 bits counts."""
SIZE_NAMES = ("layers", "hidden", "heads", "kv_heads", "ffn", "experts", "active", "vocabulary", "context")


def find_model(text: str) -> Shape:
    """A shape by a name of `SHAPES` ("llama-3-405b") or of `zerolab train` ("llama tiny"), by the path of a config.json
    or of a folder with one, or by sizes ("layers=24,hidden=2048,heads=16").

    Raises InputError for what is none of these, and for sizes that no model has.
    """
    shape = find_shape(text)
    config = shape.config
    widths = {"hidden": shape.hidden, "vocabulary": shape.vocabulary, "context": shape.context}
    if isinstance(config, LlamaConfig):
        widths |= {"ffn": config.ffn_dim, "kv_heads": config.kv_heads}
    experts = {"experts": config.experts} if isinstance(config, MixtureConfig) else {}
    for sizes, most in (({"layers": shape.layers} | experts, MOST_LAYERS), (widths, MOST_WIDE)):
        for name, size in sizes.items():
            if size > most:
                raise InputError(f"{name} is {size}; give at most {most}")
    return shape


def find_shape(text: str) -> Shape:
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
    if text and path.is_dir():
        path = path / "config.json"
    if text and (path.suffix == ".json" or path.exists()):
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
        if name in sizes:
            raise InputError(f"{text!r} gives {name} twice; give it once")
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
    """The shape of a Hugging Face config.json of one of `FAMILIES`. Fields that change no byte of training (how
    positions turn, how far a window reaches) are passed over."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_twins)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); name a config.json") from None
    if not isinstance(said, dict):
        raise InputError(f"{path} is no JSON object; name a config.json of Hugging Face")
    kind = said.get("model_type")
    name = str(said.get("_name_or_path") or "") or (path.parent.name if path.name == "config.json" else path.stem)
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise InputError(
            f"{path}: model_type is {kind!r}, and what is planned to the byte is {known}; {sizes_instead(said)}"
        )
    try:
        config = config_from(said, str(kind))
    except InputError as error:
        why = str(error)
        raise InputError(f"{path}: {why.replace(NOT_OURS, sizes_instead(said))}") from None
    return shape_of(config, name or str(kind))


def without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A section of a JSON file, each of whose keys stands there once; DeepSpeed refuses others, too."""
    section = dict(pairs)
    for name in section:
        if sum(name == other for other, _ in pairs) > 1:
            raise InputError(f"{name} stands in one section twice; leave one of the two out")
    return section


def config_from(said: dict[str, Any], kind: str) -> Config:
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


def sizes_instead(said: dict[str, Any]) -> str:
    """What to do instead of a config.json: where a model of plain sizes is near, those sizes, for `by_sizes`."""
    like = NEAR.get(str(said.get("model_type")))
    if like is None:
        return "name a model that is like it, or sizes such as layers=24,hidden=2048,heads=16"
    found = {
        name: next((said[field] for field in fields if isinstance(said.get(field), int)), None)
        for name, fields in SIZE_FIELDS.items()
        if like == "llama" or name not in ("kv_heads", "ffn")
    }
    sizes = ",".join(f"{name}={size}" for name, size in found.items() if size)
    return f"for one that is near to it, but not the same, give --model {sizes}"
