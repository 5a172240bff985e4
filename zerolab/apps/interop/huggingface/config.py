"""config.json both ways: our `Config` as LlamaForCausalLM's or GPT2LMHeadModel's fields, and theirs as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from zerolab.errors import InputError
from zerolab.models import Config, GPT2Config, LlamaConfig

BIASES = "zerolab_bias"
"""Our own field in a GPT-2's config.json: false says that its biases are all zero and that our model has none."""

# What our models do, by field; a field that is absent or null has their default, which is the first of these.
_ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {
        "hidden_act": ("silu", "swish"),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "sliding_window": (None,),
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


def to_huggingface(config: Config, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """What config.json says of a model: all that transformers 4 and 5 need for the same logits.

    `dtype` is that of the tensors beside it, in which `from_pretrained` of transformers computes. Dropout is 0, since a
    `Config` does not say it. Tokens that begin, end or pad a text are null: they belong to a tokenizer.
    """
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    said = {"tie_word_embeddings": config.tied_head, "torch_dtype": str(dtype).removeprefix("torch."), **tokens}
    if isinstance(config, GPT2Config):
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": config.vocab_size,
            "n_embd": config.dim,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_inner": 4 * config.dim,
            "n_positions": config.max_seq_len,
            "layer_norm_epsilon": config.norm_eps,
            "activation_function": "gelu_new",
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "attn_pdrop": 0.0,
            BIASES: config.bias,
            **said,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": config.ffn_dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,  # read by transformers 4; 5 reads the next
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        **said,
    }


def from_huggingface(said: Mapping[str, Any]) -> Config:
    """The `Config` of our model that gives the same logits as theirs of this config.json.

    A field that is absent has transformers' default, not ours. Dropout is not taken over, since a `Config` does not say
    it: logits are those of their model in `eval()`. GPT-2 has biases, unless our own field says that they are zero.

    Raises:
        InputError: a size is missing or no number, or a field asks for what our model cannot do; names the field.
    """
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in _ONLY:
        _refuse("model_type", kind, "is 'llama' or 'gpt2'")
    for field, allowed in _ONLY[kind].items():
        if said.get(field) is not None and said[field] not in allowed:
            _refuse(field, said[field], f"is {' or '.join(map(repr, allowed))} in our {kind}")
    try:
        return _gpt2(said) if kind == "gpt2" else _llama(said)
    except InputError as error:
        if str(error).startswith("config.json"):
            raise
        raise InputError(f"config.json describes a model that cannot be: {error}") from None


def _llama(said: Mapping[str, Any]) -> LlamaConfig:
    dim, heads = _whole(said, "hidden_size"), _whole(said, "num_attention_heads")
    if said.get("head_dim") is not None and said["head_dim"] != dim / heads:
        _refuse("head_dim", said["head_dim"], f"is hidden_size / num_attention_heads, {dim} / {heads}, in our llama")
    theta = _number(said, "rope_theta", 10_000.0)
    for field in ("rope_parameters", "rope_scaling"):
        rope = said.get(field) or {}
        if not isinstance(rope, Mapping) or rope.get("rope_type", rope.get("type", "default")) != "default":
            _refuse(field, rope, "scales nothing (rope_type 'default') in our llama")
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            _refuse(field, rope, "turns whole heads (partial_rotary_factor 1.0) in our llama")
        theta = _number(rope, "rope_theta", theta)
    return LlamaConfig(
        vocab_size=_whole(said, "vocab_size"),
        dim=dim,
        layers=_whole(said, "num_hidden_layers"),
        heads=heads,
        kv_heads=_whole(said, "num_key_value_heads", heads),
        ffn_dim=_whole(said, "intermediate_size"),
        max_seq_len=_whole(said, "max_position_embeddings", 2048),
        rope_theta=theta,
        norm_eps=_number(said, "rms_norm_eps", 1e-6),
        tied_head=_truth(said, "tie_word_embeddings", False),
    )


def _gpt2(said: Mapping[str, Any]) -> GPT2Config:
    dim = _whole(said, "n_embd")
    inner = _whole(said, "n_inner", 4 * dim)
    if inner != 4 * dim:
        _refuse("n_inner", inner, f"is 4 · n_embd, {4 * dim}, in our gpt2")
    return GPT2Config(
        vocab_size=_whole(said, "vocab_size"),
        dim=dim,
        layers=_whole(said, "n_layer"),
        heads=_whole(said, "n_head"),
        max_seq_len=_whole(said, "n_positions", 1024),
        norm_eps=_number(said, "layer_norm_epsilon", 1e-5),
        bias=_truth(said, BIASES, True),
        tied_head=_truth(said, "tie_word_embeddings", True),
    )


def _refuse(field: str, value: Any, ours: str) -> NoReturn:
    raise InputError(f"config.json's {field} is {value!r}, but {ours}; take a checkpoint of such a model.")


def _whole(said: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = default if said.get(field) is None else said[field]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        was = "is missing" if value is None else f"is {value!r}"
        raise InputError(f"config.json's {field} {was}, but must be a whole number of at least 1; mend the file.")
    return value


def _number(said: Mapping[str, Any], field: str, default: float) -> float:
    value = default if said.get(field) is None else said[field]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(f"config.json's {field} is {value!r}, but must be a positive number; mend the file.")
    return float(value)


def _truth(said: Mapping[str, Any], field: str, default: bool) -> bool:
    value = default if said.get(field) is None else said[field]
    if not isinstance(value, bool):
        raise InputError(f"config.json's {field} is {value!r}, but must be true or false; mend the file.")
    return value
