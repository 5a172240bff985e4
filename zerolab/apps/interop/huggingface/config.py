"""config.json both ways: our `Config` as the fields of Hugging Face's GPT-2, Llama, Mistral, Qwen2 and Qwen3, and
theirs as ours, by one table of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from zerolab.errors import InputError
from zerolab.models import Config, GPT2Config, LlamaConfig

BIASES = "zerolab_bias"
"""Our own field in a GPT-2's config.json: false says that its biases are all zero and that our model has none."""

_GPT2 = {
    "vocab_size": ("vocab_size", int),
    "n_embd": ("dim", int),
    "n_layer": ("layers", int),
    "n_head": ("heads", int),
    "n_positions": ("max_seq_len", int),
    "layer_norm_epsilon": ("norm_eps", float),
    BIASES: ("bias", bool),
    "tie_word_embeddings": ("tied_head", bool),
}
_LLAMA = {
    "vocab_size": ("vocab_size", int),
    "hidden_size": ("dim", int),
    "intermediate_size": ("ffn_dim", int),
    "num_hidden_layers": ("layers", int),
    "num_attention_heads": ("heads", int),
    "num_key_value_heads": ("kv_heads", int),
    "head_dim": ("head_dim", int),
    "max_position_embeddings": ("max_seq_len", int),
    "rms_norm_eps": ("norm_eps", float),
    "rope_theta": ("rope_theta", float),  # read by transformers 4; 5 reads rope_parameters
    "tie_word_embeddings": ("tied_head", bool),
}
"""Their fields in ours, and of what kind they are."""

_OF_LLAMA = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 1024, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, BIASES: True},
    "llama": _OF_LLAMA,
    "mistral": {**_OF_LLAMA, "num_key_value_heads": 8, "max_position_embeddings": 131_072},
    "qwen2": {**_OF_LLAMA, "num_key_value_heads": 32, "max_position_embeddings": 32_768},
    "qwen3": {**_OF_LLAMA, "num_key_value_heads": 32, "max_position_embeddings": 32_768, "head_dim": 128},
}
"""What transformers takes a field for that is absent."""
_WINDOW = 4096

_ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {
        "hidden_act": ("silu", "swish"),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "partial_rotary_factor": (1.0,),
        "quantization_config": (None,),
    },
    "gpt2": {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "quantization_config": (None,),
    },
}
"""What our models do, by field; a field that is absent or null does that, too."""
_ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
}  # fmt: skip


def to_huggingface(config: Config, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """What config.json says of a model: all that transformers 4 and 5 need for the same logits.

    `dtype` is that of the tensors beside it, in which `from_pretrained` of transformers computes. Dropout is 0, since a
    `Config` does not say it. Tokens that begin, end or pad a text are null: they belong to a tokenizer.

    Raises:
        InputError: a Llama has both biases and norms of queries and keys, which none of theirs has.
    """
    more: dict[str, Any]
    if isinstance(config, GPT2Config):
        kind, table = "gpt2", _GPT2
        more = {"n_inner": 4 * config.dim, "activation_function": "gelu_new"}
        more |= {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    else:
        if config.qkv_bias and config.qk_norm:
            raise InputError("no model of transformers has both qkv_bias and qk_norm; leave the config out")
        kind, table = "qwen2" if config.qkv_bias else "qwen3" if config.qk_norm else "llama", _LLAMA
        more = {"hidden_act": "silu", "attention_dropout": 0.0}
        more["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
        more |= {"use_sliding_window": False} if kind != "llama" else {"mlp_bias": False}
        more |= {"attention_bias": False} if kind != "qwen2" else {}
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        **{theirs: getattr(config, ours) for theirs, (ours, _) in table.items()},
        **more,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }


def from_huggingface(said: Mapping[str, Any]) -> Config:
    """The `Config` of our model that gives the same logits as theirs of this config.json.

    A field that is absent has transformers' default, not ours. Dropout is not taken over, since a `Config` does not say
    it: logits are those of their model in `eval()`. GPT-2 has biases, unless our own field says that they are zero. The
    window of a model whose attention sees one is the longest sequence of ours.

    Raises:
        InputError: a size is missing or no number, or a field asks for what our model cannot do; names the field.
    """
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        _refuse("model_type", kind, f"is one of {', '.join(_DEFAULTS)}")
    for field, allowed in _ONLY["gpt2" if kind == "gpt2" else "llama"].items():
        if said.get(field) is not None and said[field] not in allowed:
            _refuse(field, said[field], f"is {' or '.join(map(repr, allowed))} in our {kind}")
    given = _DEFAULTS[kind] | {field: value for field, value in said.items() if value is not None}
    if kind == "gpt2":
        found = {ours: _read(given, theirs, of) for theirs, (ours, of) in _GPT2.items()}
        if given.get("n_inner", 4 * found["dim"]) != 4 * found["dim"]:
            _refuse("n_inner", given["n_inner"], f"is 4 · n_embd, {4 * found['dim']}, in our gpt2")
        return _build(GPT2Config, found)
    if said.get("num_key_value_heads", given.get("num_key_value_heads")) is None:
        given["num_key_value_heads"] = given.get("num_attention_heads")
    for field in ("rope_parameters", "rope_scaling"):
        rope = said.get(field) or {}
        if (
            not isinstance(rope, Mapping)
            or rope.get("rope_type", rope.get("type", "default")) != "default"
            or rope.get("partial_rotary_factor", 1.0) != 1.0
        ):
            _refuse(field, rope, "turns whole heads and scales nothing (rope_type 'default') in our llama")
        given["rope_theta"] = rope.get("rope_theta", given["rope_theta"])
    window = said.get("sliding_window", None if kind == "llama" else _WINDOW)
    if window is not None and said.get("use_sliding_window", not kind.startswith("qwen")):
        # Up to its width, a window shows all that was before.
        given["sliding_window"], longest = window, "max_position_embeddings"
        given[longest] = min(_read(given, field, int) for field in (longest, "sliding_window"))
    there = _LLAMA.keys() - ({"head_dim"} - given.keys())
    found = {ours: _read(given, theirs, of) for theirs, (ours, of) in _LLAMA.items() if theirs in there}
    size = found.pop("head_dim", None)
    if size is not None and size * found["heads"] != found["dim"]:
        found["head_size"] = size
    return _build(LlamaConfig, {**found, "qkv_bias": kind == "qwen2", "qk_norm": kind == "qwen3"})


def _build(kind: type[Config], values: dict[str, Any]) -> Config:
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"config.json describes a model that cannot be: {error}") from None


def _refuse(field: str, value: Any, ours: str) -> NoReturn:
    raise InputError(f"config.json's {field} is {value!r}, but {ours}; take a checkpoint of such a model.")


def _read(said: Mapping[str, Any], field: str, kind: type) -> Any:
    value: Any = said.get(field)
    if kind is bool:
        right, wanted = isinstance(value, bool), "true or false"
    elif kind is int:
        right, wanted = type(value) is int and value >= 1, "a whole number of at least 1"
    else:
        right, wanted = type(value) in (int, float) and 0 < value < float("inf"), "a positive number"
    if not right:
        was = "is missing" if value is None else f"is {value!r}"
        raise InputError(f"config.json's {field} {was}, but must be {wanted}; mend the file.")
    return kind(value)
