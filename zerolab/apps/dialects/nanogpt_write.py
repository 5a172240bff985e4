"""Settings of a run as one of nanoGPT's configurations."""

from __future__ import annotations

from typing import Any

from zerolab.apps.dialects.keys import Settings
from zerolab.apps.dialects.nanogpt import DEFAULTS, NAMED
from zerolab.apps.interop.huggingface.start import with_shape
from zerolab.errors import InputError
from zerolab.models import GPT2Config
from zerolab.run import RunSpec

TELLS = frozenset({
    "model", "model_size", "layers", "heads", "dim", "context", "batch_size", "grad_accum_steps", "ranks", "eval_steps",
    "zero_stage", "lr_schedule", "warmup_steps", "decay_steps", "min_lr", "save_folder", "save_every", "keep", "resume",
    "device", "precision", "bf16", "fp16", "compile", "vocab_size", "reduction", "profile_json", "timeout",
    "collective_timeout", "seed", *NAMED.values(),
})  # fmt: skip
"""Settings that a nanoGPT configuration tells, or that change nothing of what is learned."""


def write(settings: Settings) -> str:
    """A file of assignments: each of nanoGPT's keys whose value is not its default. The data set is nanoGPT's if there
    is none. Raises InputError for what nanoGPT has no key for."""
    config = RunSpec(**with_shape(settings))
    shape = config.architecture
    if not isinstance(shape, GPT2Config):
        raise InputError(f"model is {config.model}, and nanoGPT has GPT-2 alone; choose gpt2")
    if shape.max_seq_len != config.seq_len:
        raise InputError(
            f"seq_len is {config.seq_len} and the model's context {shape.max_seq_len}, and nanoGPT's sequences are as "
            "long as its context, block_size; choose one length for both"
        )
    stage = config.zero_stage
    if stage > 1:
        raise InputError(f"zero_stage is {stage}, and nanoGPT with use_zero1 has 0 and 1; choose one of them")
    if config.lr_schedule == "linear" or (config.lr_schedule == "constant" and config.warmup_steps):
        raise InputError(
            f"lr_schedule is {config.lr_schedule}, and nanoGPT has a cosine after a warm-up; choose cosine"
        )
    for name in config.model_fields_set - TELLS:
        if getattr(config, name) != RunSpec.model_fields[name].default:
            raise InputError(f"{name} is {getattr(config, name)}, and nanoGPT has no key for it; leave it out")
    steps = config.grad_accum_steps * config.ranks
    cosine = config.lr_schedule == "cosine"
    precision = config.dtypes
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(precision.params if precision else "fp32", "float32")
    values: dict[str, Any] = {key: getattr(config, setting) for key, setting in NAMED.items()}
    values |= {
        "n_layer": shape.layers, "n_head": shape.heads, "n_embd": shape.dim, "bias": shape.bias,
        "batch_size": config.batch_size // steps, "gradient_accumulation_steps": steps,
        "eval_interval": config.eval_every or DEFAULTS["eval_interval"], "eval_iters": config.eval_steps * config.ranks,
        "use_zero1": stage == 1, "decay_lr": cosine, "warmup_iters": config.warmup_steps if cosine else None,
        "lr_decay_iters": (config.decay_steps or config.max_steps) if cosine else None,
        "min_lr": config.min_lr if cosine else None, "init_from": "resume" if config.resume else "scratch",
        "out_dir": str(config.save_folder) if config.save_folder else None, "dtype": dtype, "compile": config.compile,
        "device": None if config.device == "auto" else config.device,
    }  # fmt: skip
    lines = [f"{key} = {value!r}" for key, value in values.items() if value is not None and value != DEFAULTS[key]]
    return "".join(f"{line}\n" for line in lines) or "# nanoGPT's defaults\n"
