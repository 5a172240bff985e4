"""config.json both ways: our `Config` and Hugging Face's GPT-2, Llama, Mistral, Qwen2 and Qwen3, by one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from zerolab.errors import InputError
from zerolab.models import Config, GPT2Config, LlamaConfig

BIASES = "zerolab_bias"
"""Our own field in a GPT-2's config.json: false says that its biases are all zero."""

_GPT2: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", int),
    "n_embd": ("dim", int),
    "n_layer": ("layers", int),
    "n_head": ("heads", int),
    "n_positions": ("max_seq_len", 1024),
    "layer_norm_epsilon": ("norm_eps", 1e-5),
    BIASES: ("bias", True),
    "tie_word_embeddings": ("tied_head", True),
}
_LLAMA: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", int),
    "hidden_size": ("dim", int),
    "intermediate_size": ("ffn_dim", int),
    "num_hidden_layers": ("layers", int),
    "num_attention_heads": ("heads", int),
    "num_key_value_heads": ("kv_heads", int),
    "head_dim": ("head_dim", int),
    "max_position_embeddings": ("max_seq_len", 2048),
    "rms_norm_eps": ("norm_eps", 1e-6),
    "rope_theta": ("rope_theta", 10_000.0),  # read by transformers 4; 5 reads rope_parameters
    "tie_word_embeddings": ("tied_head", False),
}
"""Their fields: ours, and the default of transformers, or the type of what must be there."""
_QWEN = {"num_key_value_heads": 32, "max_position_embeddings": 32_768, "sliding_window": 4096}
_OWN: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 4096},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
}
"""What a kind of model has in their place."""
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (1.0,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (None,),
}
"""What our models do, by field; a field that is absent or null does that, too."""


def to_huggingface(config: Config, dtype: object = "float32") -> dict[str, Any]:
    """What config.json says of a model, beside tensors in `dtype`, which may be a name: all that transformers 4 and
    5 need for the same logits."""
    more: dict[str, Any]
    if isinstance(config, GPT2Config):
        kind, architecture, table = "gpt2", "GPT2LMHeadModel", _GPT2
        more = {"n_inner": 4 * config.dim, "activation_function": "gelu_new"}
        more |= {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    else:
        if config.qkv_bias and config.qk_norm:
            raise InputError("no model of transformers has both qkv_bias and qk_norm; leave the config out")
        kind, table = "qwen2" if config.qkv_bias else "qwen3" if config.qk_norm else "llama", _LLAMA
        architecture = f"{kind.capitalize()}ForCausalLM"
        more = {"hidden_act": "silu", "attention_dropout": 0.0}
        more["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
        more |= {"mlp_bias": False} if kind == "llama" else {"use_sliding_window": False}
        more |= {"attention_bias": False} if kind != "qwen2" else {}
    return {
        "architectures": [architecture],
        "model_type": kind,
        **{theirs: getattr(config, ours) for theirs, (ours, _) in table.items()},
        **more,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }


def from_huggingface(said: Mapping[str, Any]) -> Config:
    """The `Config` of our model that gives the same logits as theirs of this config.json, in `eval()`.

    A field that is absent has transformers' default, not ours. The window of a model whose attention sees one is the
    longest sequence of ours. Raises InputError for a field that is no size, or asks for what our model cannot do.
    """
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in _OWN:
        _refuse("model_type", kind, f"is one of {', '.join(_OWN)}")
    for field, allowed in _ONLY.items():
        if said.get(field) is not None and said[field] not in allowed:
            _refuse(field, said[field], f"is {' or '.join(map(repr, allowed))} in our {kind}")
    table = _GPT2 if kind == "gpt2" else _LLAMA
    given = {theirs: default for theirs, (_, default) in table.items() if not isinstance(default, type)} | _OWN[kind]
    given |= {field: value for field, value in said.items() if value is not None}
    own: dict[str, Any] = {}
    if kind != "gpt2":
        own = {"qkv_bias": kind == "qwen2", "qk_norm": kind == "qwen3"}
        _take_over(said, kind, given)
    found = {ours: _read(given, theirs, of) for theirs, (ours, of) in table.items() if theirs != "head_dim"}
    if "head_dim" in given and _read(given, "head_dim", int) * found["heads"] != found["dim"]:
        own["head_size"] = given["head_dim"]
    if kind == "gpt2" and given.get("n_inner", 4 * found["dim"]) != 4 * found["dim"]:
        _refuse("n_inner", given["n_inner"], f"is 4 · n_embd, {4 * found['dim']}, in our gpt2")
    try:
        return (GPT2Config if kind == "gpt2" else LlamaConfig)(**found, **own)
    except InputError as error:
        raise InputError(f"config.json describes a model that cannot be: {error}") from None


def _take_over(said: Mapping[str, Any], kind: str, given: dict[str, Any]) -> None:
    """Put what a Llama's config.json says in other words in its place."""
    if said.get("num_key_value_heads", given.get("num_key_value_heads")) is None:
        given["num_key_value_heads"] = given.get("num_attention_heads")
    for field in ("rope_parameters", "rope_scaling"):
        rope = said.get(field) or {}
        kinds = {rope.get("rope_type", rope.get("type", "default"))} if isinstance(rope, Mapping) else {None}
        if kinds != {"default"} or rope.get("partial_rotary_factor", 1.0) != 1.0:
            _refuse(field, rope, "turns whole heads and scales nothing (rope_type 'default') in our llama")
        given["rope_theta"] = rope.get("rope_theta", given["rope_theta"])
    has_window = said.get("sliding_window", given.get("sliding_window")) is not None
    if has_window and said.get("use_sliding_window", not kind.startswith("qwen")):
        # Up to its width, a window shows all that was before.
        fields = ("max_position_embeddings", "sliding_window")
        given["max_position_embeddings"] = min(_read(given, field, int) for field in fields)


def _refuse(field: str, value: Any, ours: str) -> NoReturn:
    raise InputError(f"config.json's {field} is {value!r}, but {ours}; take a checkpoint of such a model.")


def _read(said: Mapping[str, Any], field: str, of: Any) -> Any:
    value: Any = said.get(field)
    kind = of if isinstance(of, type) else type(of)
    is_number = type(value) in (int, kind) and 0 < value < float("inf")
    if not (isinstance(value, bool) if kind is bool else is_number):
        was = "is missing" if value is None else f"is {value!r}"
        wanted = {bool: "true or false", int: "a whole number of at least 1", float: "a positive number"}[kind]
        raise InputError(f"config.json's {field} {was}, but must be {wanted}; mend the file.")
    return kind(value)
