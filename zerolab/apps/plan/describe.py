"""A plan for programs, and a run as settings, which dialects write in other words."""

from __future__ import annotations

from typing import Any

import torch

from zerolab.apps.plan.footprint import advice, gpu_bytes, name_changes, predict_memory
from zerolab.apps.plan.guide import traffic, traffic_bytes
from zerolab.apps.plan.mixture import MixtureConfig, parameter_count
from zerolab.errors import InputError
from zerolab.models import GPT2Config, LlamaConfig
from zerolab.run import RunSpec
from zerolab.run.spec import SIZES
from zerolab.zero.table import make_rows
from zerolab.zero.units import dtypes_of
from zerolab.zero.zero_engine import dtypes_from

EVERY_RANK = 64
"""Of more ranks than these, the states of the first and the last are told."""

DESCRIBED = (
    "ranks",
    "zero_stage",
    "num_distributed_optimizer_instances",
    "micro_batch_size",
    "micro_batches",
    "batch_size",
    "seq_len",
    "checkpoint_activations",
    "attention",
)
EMITTED = (
    "zero_stage",
    "ranks",
    "seq_len",
    "batch_size",
    "grad_accum_steps",
    "checkpoint_activations",
    "defer_reduction",
)


def describe_plan(run: RunSpec, limit: float | None) -> dict[str, Any]:
    """All that a plan says; bytes unless a name says otherwise."""
    found = predict_memory(run)
    ranks = range(run.ranks) if run.ranks <= EVERY_RANK else (0, run.ranks - 1)
    change = None if limit is None or found.peak.total <= limit else advice(run, limit)
    return {
        "model": {
            "name": run.model_name,
            "parameters": parameter_count(run.architecture),
            "layers": run.architecture.layers,
        },
        "run": {
            **{name: getattr(run, name) for name in DESCRIBED},
            "precision": run.precision if isinstance(run.precision, str) else None,
            "offload_optimizer": run.places.optimizer,
            "offload_param": run.places.parameters,
        },
        "peak": {"where": found.peak.where, "total": found.peak.total, "by_kind": drop_zeros(found.peak.bytes)},
        "moments": [{"where": moment.where, "total": moment.total} for moment in found.tops],
        "states_by_rank": {str(rank): split_tiers(predict_memory(run, rank).states) for rank in ranks},
        "sent_by_phase": traffic(run),
        "sent": traffic_bytes(run),
        "gpu_memory": limit,
        "fits": None if limit is None else found.peak.total <= limit,
        "change": None if change is None else {"what": name_changes(run, change), "gpu_bytes": gpu_bytes(change)},
    }


def explain_table(run: RunSpec) -> str:
    """How each state is sharded, its dtype, and its tier, as text."""
    axes = {f"{run.sharing} ranks": (run.stage, run.sharing)}
    if run.instances > 1:
        axes = {f"{run.instances} replicas": (0, run.instances), **axes}
    stages, sizes = zip(*axes.values(), strict=True)
    dtypes = dtypes_of(torch.float32, dtypes_from(run.dtypes))
    tiers = (run.places.parameters, run.places.optimizer)
    rows = make_rows(stages, sizes, dtypes, True, tiers, run.stage == 1 and run.reduction == "all_reduce")
    # The ranks that shard are cut first.
    return rows.explain(list(reversed(axes)))


def split_tiers(states: dict[str, int]) -> dict[str, dict[str, int]]:
    """{kind: bytes} with places before names, as {place: {kind: bytes}}."""
    found: dict[str, dict[str, int]] = {}
    for name, size in drop_zeros(states).items():
        place, _, kind = name.rpartition(":")
        found.setdefault(place or "device", {})[kind] = size
    return found


def drop_zeros(sizes: dict[str, int]) -> dict[str, int]:
    return {kind: size for kind, size in sizes.items() if size}


def as_settings(run: RunSpec) -> dict[str, Any]:
    """The run in the fields of `RunSpec`. Raises InputError for a model that no flags describe."""
    config = run.architecture
    if isinstance(config, MixtureConfig):
        raise InputError(f"{run.model_name} has experts, which no dialect is written for yet; plan it without --emit")
    if isinstance(config, LlamaConfig) and (config.head_size or config.qkv_bias or config.qk_norm):
        raise InputError(
            f"{run.model_name} has heads, biases or norms that no flag says, so it is trained from a folder alone "
            "(zerolab train --init-from); leave out --emit"
        )
    sizes = {name: size for name, size in vars(config).items() if name in SIZES}
    if config.tied_head:
        del sizes["tied_head"]
    optional = {
        "num_distributed_optimizer_instances": run.instances,
        "precision": run.precision,
        "offload_optimizer": run.places.optimizer,
        "offload_param": run.places.parameters,
    }
    return {
        "model": "gpt2" if isinstance(config, GPT2Config) else "llama",
        **sizes,
        "context": config.max_seq_len,
        "vocab_size": config.vocab_size,
        **{name: getattr(run, name) for name in EMITTED},
        **{name: value for name, value in optional.items() if value != RunSpec.model_fields[name].default},
    }
