"""`zerolab train`: what the optimizer does in each step, and what the model knows of a text that it has not seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zerolab.data import Batches, load_corpus
from zerolab.models import build
from zerolab.train import Report, TrainConfig, make_config, train
from zerolab.train.loop import decay_groups

RUN = {"model_size": "nano", "seq_len": 16, "max_steps": 4, "ranks": 1, "timeout": 60.0}


def run(**settings: object) -> Report:
    return train(make_config(**{**RUN, **settings}))


def plain_losses(config: TrainConfig) -> list[float]:
    """Of the same run in plain torch."""
    corpus = load_corpus(config.data_mode, seq_len=config.seq_len)
    torch.manual_seed(config.seed)
    model = build(config.model, config.model_size, max_seq_len=config.seq_len)
    options = decay_groups(config.weight_decay)
    optimizer = torch.optim.AdamW(
        [{"params": [parameter], **options("", parameter)} for parameter in model.parameters()],
        lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps,
    )  # fmt: skip
    batches, losses = Batches(corpus.train, config.seq_len, config.batch_size, seed=config.seed), []
    for step in range(config.max_steps):
        [(inputs, targets)] = batches.step(step)
        loss = model(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.ranks
def test_adamw_has_the_decays_and_the_eps_of_the_flags() -> None:
    settings = {"beta1": 0.5, "beta2": 0.6, "eps": 1e-3, "lr": 1e-2}
    expected = plain_losses(make_config(**RUN, **settings))
    assert run(**settings).loss == pytest.approx(expected, rel=1e-5)
    assert plain_losses(make_config(**RUN, lr=1e-2)) != pytest.approx(expected, rel=1e-4)
