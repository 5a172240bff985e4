"""What a run is made of on one rank: its model in an engine, and its batches."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.data import Batches, Corpus
from zerolab.models import build_model
from zerolab.run import RunSpec, instances
from zerolab.train.resume import Start
from zerolab.zero import ZeroEngine
from zerolab.zero.start import default_factory
from zerolab.zero.step import Factory


def make_engine(comm: Collectives, start: Start) -> ZeroEngine:
    """The model that the run begins with, in an engine on this rank's group. All ranks draw the same first values."""
    config = start.config
    torch.manual_seed(config.seed)
    # A GPU may have no room for the whole model: the engine then gives it memory and first values unit by unit.
    by_unit = builds_by_unit(comm.device)
    with torch.device("meta") if by_unit else nullcontext():
        model = build_model(config.architecture, checkpoint=config.checkpoint_activations, dropout=config.dropout)
    if config.compile:
        for block in model.blocks:
            block.compile(backend=config.compile_backend)
    shard, replicate = instances.split(comm, config.instances)
    engine = ZeroEngine(
        model,
        shard,
        config.stage,
        optimizer=adamw(config),
        clip_norm=config.clip_norm or None,
        groups=decay_groups(config.weight_decay),
        reduction=config.reduction,
        overlap=config.overlap,
        overlap_gather=config.overlap,
        prefetch=config.prefetch,
        limits=config.limits,
        bucket_numel=config.bucket_numel,
        precision=config.dtypes,
        scaler=config.scaler,
        offload=config.places,
        replicate=replicate,
    )
    if start.weights is not None and start.folder is None:
        engine.load_state_dict(start.weights(), strict=False)
    return engine


def builds_by_unit(device: torch.device) -> bool:
    """Whether the model of a run is built without memory, and its first values drawn on the device."""
    return device.type == "cuda"


def decay_groups(weight_decay: float) -> Any:
    """Weight decay for matrices only; the weights of norms and biases have none. Who decays is marked, so that the
    groups are the same ones whatever the decay is, and a run goes on with another."""

    def options(_name: str, parameter: Any) -> dict[str, Any]:
        decays = parameter.dim() >= 2
        return {"decays": decays, "weight_decay": weight_decay if decays else 0.0}

    return options


def adamw(config: RunSpec) -> Factory:
    """The engine's own AdamW, with other decays of its moments where they are asked for."""
    options: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.eps}
    usual = all(getattr(config, name) == RunSpec.model_fields[name].default for name in ("beta1", "beta2", "eps"))
    return default_factory(config.lr, **({} if usual else options))


def trained_on(comm: Collectives, config: RunSpec, corpus: Corpus) -> Batches:
    """This rank's micro-batches of each step."""
    return Batches(
        corpus.train, config.seq_len, config.batch_size, comm.size, comm.rank, config.grad_accum_steps, config.seed
    )


def held_out(comm: Collectives, config: RunSpec, corpus: Corpus) -> Batches:
    """The micro-batches of the text that is not trained on."""
    sequences = config.batch_size // config.grad_accum_steps
    return Batches(corpus.valid, config.seq_len, sequences, comm.size, comm.rank, seed=config.seed)
