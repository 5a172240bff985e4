"""Losses with weights: the gradient is that of the mean over all tokens, however ranks and micro-batches share them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.errors import InputError, RankError, StateError
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

# Tokens of each rank's micro-batches: on one rank none in one of them, and none at all on another.
SHARES = {2: [[3, 5], [1, 0]], 3: [[4, 1], [0, 0], [2, 9]]}
SGD = partial(torch.optim.SGD, lr=0.5)


def data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randint(5, (count,), generator=generator)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


def alone(shares: list[list[int]], clip: float | None) -> tuple[dict[str, torch.Tensor], list[float | None]]:
    """One process whose loss is the mean over all tokens."""
    net, norms = model(), []
    stepper = SGD(net.parameters())
    for step in range(3):
        every = [data(n, 100 * step + 10 * r + m) for r, its in enumerate(shares) for m, n in enumerate(its)]
        inputs, targets = (torch.cat(parts) for parts in zip(*every, strict=True))
        nn.functional.cross_entropy(net(inputs), targets).backward()
        norms.append(None if clip is None else float(nn.utils.clip_grad_norm_(net.parameters(), clip)))
        stepper.step()
        stepper.zero_grad()
    return net.state_dict(), norms


@pytest.mark.ranks
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("ranks", SHARES)
@pytest.mark.parametrize("stage", range(4))
def test_item_5_the_mean_over_tokens_is_one_processs_and_the_mean_of_means_is_not(
    stage: int, ranks: int, clip: float | None
) -> None:
    shares = SHARES[ranks]

    def train(comm: Collectives, weighted: bool) -> tuple[dict[str, torch.Tensor], list[float | None]]:
        engine, norms = ZeroEngine(model(), comm, stage, optimizer=SGD, clip_norm=clip), []
        for step in range(3):
            for micro, count in enumerate(shares[comm.rank]):
                inputs, targets = data(count, 100 * step + 10 * comm.rank + micro)
                total = nn.functional.cross_entropy(engine(inputs), targets, reduction="sum") / max(count, 1)
                if weighted:
                    engine.backward(total, weight=count)
                else:
                    engine.backward(total / len(shares[comm.rank]))
            norms.append(engine.step().norm)
        return engine.state_dict(), norms

    due, due_norms = alone(shares, clip)
    for found, norms in launch(train, True, ranks=ranks, world="lockstep"):
        assert all(torch.allclose(found[name], due[name], rtol=0, atol=1e-6) for name in due)
        assert norms == [None] * 3 if clip is None else norms == pytest.approx(due_norms, rel=1e-5)
    wrong = launch(train, False, ranks=ranks, world="lockstep")[0][0]
    assert max(float((wrong[name] - due[name]).abs().max()) for name in due) > 1e-3


@pytest.mark.parametrize(
    ("weights", "said", "error"),
    [
        ([-1], "weight is -1; give a number of at least 0", InputError),
        ([float("nan")], "weight is nan", InputError),
        ([2, None], "some losses of this step have a weight and some have none", StateError),
        ([2, "plain"], "some losses of this step have a weight and some have none", StateError),
        ([0, 0], "the weights of this step's losses are all 0", StateError),
    ],
)
def test_weights_that_mean_nothing_are_refused(
    weights: list[float | str | None], said: str, error: type[Exception]
) -> None:
    def train(comm: Collectives) -> None:
        engine = ZeroEngine(model(), comm, 1, optimizer=SGD)
        for weight in weights:
            loss = engine(data(2, 0)[0]).sum()
            if weight == "plain":
                loss.backward()
            else:
                engine.backward(loss, weight=weight)  # type: ignore[arg-type]
        engine.step()

    with pytest.raises(RankError, match=said) as caught:
        launch(train, ranks=2, world="lockstep")
    assert caught.value.error.endswith(error.__name__)  # type: ignore[attr-defined]


def test_the_next_step_begins_without_weights() -> None:
    def train(comm: Collectives) -> bool:
        engine, plain = (ZeroEngine(model(), comm, 1, optimizer=SGD) for _ in range(2))
        inputs = data(2, comm.rank)[0]
        engine.backward(engine(inputs).square().mean(), weight=7)
        engine.zero_grad()
        for each in (engine, plain):
            each.backward(each(inputs).square().mean())
            each.step()
        return all(map(torch.equal, engine.state_dict().values(), plain.state_dict().values()))

    assert all(launch(train, ranks=2, world="lockstep"))
