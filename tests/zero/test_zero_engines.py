"""Two models, each in an engine, in one loss: a GAN, an encoder and a decoder."""

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from zerolab.errors import StateError
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

STEPS = 3
STAGES = ((0, 0), (2, 1), (3, 3), (3, 0))


class Generator(nn.Sequential):
    pass


class Discriminator(nn.Sequential):
    pass


def two_models():
    torch.manual_seed(0)
    return (
        Generator(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 6)),
        Discriminator(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)),
    )


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def rows(rank, ranks):
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        noise, real = torch.randn(8, 4, generator=generator), torch.randn(8, 6, generator=generator)
        yield noise.chunk(ranks)[rank], real.chunk(ranks)[rank]


def gan(comm, stages):
    """Both models after a few steps in which they take turns."""
    g, d = (ZeroEngine(model, comm, stage, optimizer=sgd) for model, stage in zip(two_models(), stages, strict=True))
    for noise, real in rows(comm.rank, comm.size):
        d.backward((softplus(-d(real)) + softplus(d(g(noise).detach()))).mean())
        d.step()
        softplus(-d(g(noise))).mean().backward()
        g.step()
        d.zero_grad()
    return {**g.consolidate(), **{f"d.{name}": value for name, value in d.consolidate().items()}}


def gan_alone():
    g, d = two_models()
    of_g, of_d = sgd(g.parameters()), sgd(d.parameters())
    for noise, real in rows(0, 1):
        of_d.zero_grad()
        (softplus(-d(real)) + softplus(d(g(noise).detach()))).mean().backward()
        of_d.step()
        of_g.zero_grad()
        softplus(-d(g(noise))).mean().backward()
        of_g.step()
    return {**g.state_dict(), **{f"d.{name}": value for name, value in d.state_dict().items()}}


def chain(comm, stages):
    """An encoder and a decoder, which learn from one loss."""
    first, second = (
        ZeroEngine(model, comm, stage, optimizer=sgd) for model, stage in zip(two_models(), stages, strict=True)
    )
    for noise, _ in rows(comm.rank, comm.size):
        second(first(noise)).square().mean().backward()
        first.step()
        second.step()
    return {**first.consolidate(), **{f"d.{name}": value for name, value in second.consolidate().items()}}


def chain_alone():
    first, second = two_models()
    both = sgd([*first.parameters(), *second.parameters()])
    for noise, _ in rows(0, 1):
        both.zero_grad()
        second(first(noise)).square().mean().backward()
        both.step()
    return {**first.state_dict(), **{f"d.{name}": value for name, value in second.state_dict().items()}}


@pytest.mark.parametrize(("train", "alone"), [(gan, gan_alone), (chain, chain_alone)])
def test_two_engines_in_one_loss_learn_as_two_models_do(train, alone):
    expected = alone()
    for of_rank in launch(lambda comm: [train(comm, stages) for stages in STAGES], ranks=2, world="lockstep"):
        for found in of_rank:
            assert found.keys() == expected.keys()
            assert all(torch.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6) for name in found)


@pytest.mark.parametrize("stage", [0, 3])
def test_an_engine_that_a_loss_goes_through_unnamed_is_named(stage):
    def run(comm):
        g, d = (ZeroEngine(model, comm, stage, optimizer=sgd) for model in two_models())
        noise, _ = next(rows(comm.rank, comm.size))
        with pytest.raises(StateError) as refused:
            g.backward(d(g(noise)).mean())
        g.zero_grad(), d.zero_grad()
        # Both are as they were.
        d(g(noise)).mean().backward()
        return str(refused.value), g.step().skipped

    said, skipped = launch(run, ranks=2, world="lockstep")[0]
    assert "Discriminator" in said and "loss.backward()" in said and "detach()" in said
    assert not skipped


def test_a_backward_of_two_engines_ends_for_both():
    def run(comm):
        g, d = (ZeroEngine(model, comm, 3, optimizer=sgd) for model in two_models())
        noise, _ = next(rows(comm.rank, comm.size))
        d(g(noise)).mean().backward()
        left = sum(parameter.untyped_storage().nbytes() for one in (g, d) for parameter in one.model.parameters())
        with pytest.raises(StateError, match="summon_full_params"), torch.no_grad():
            d.model[0].weight.sum()
        return left

    assert launch(run, ranks=2, world="lockstep") == [0, 0]
