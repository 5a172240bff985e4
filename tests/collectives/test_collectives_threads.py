"""Ranks in threads of one process: the smallest world, in which a copy of the core trains."""

from typing import Any

import pytest
import torch
from torch import nn

from zerolab.collectives.threads import launch_threads
from zerolab.errors import InputError, MismatchError
from zerolab.zero import ZeroEngine


def train(comm: Any, stage: int) -> list[torch.Tensor]:
    """All parameters after three steps, each rank on rows of its own."""
    layers = [nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)]
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*layers)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    engine = ZeroEngine(model, comm, stage, lr=1e-2)
    for rows in torch.randn(3, 12, 5, generator=generator):
        engine.backward(engine(rows.chunk(comm.size)[comm.rank]).square().mean())
        engine.step()
    trained = [*engine.consolidate().values()]
    engine.close()
    return trained


def test_the_four_stages_train_to_equal_bits() -> None:
    first, *others = [launch_threads(3, train, stage) for stage in range(4)]
    for trained in (*first[1:], *(rank for stage in others for rank in stage)):
        assert all(map(torch.equal, trained, first[0]))


def test_results_come_in_the_order_of_ranks() -> None:
    assert launch_threads(3, lambda comm, plus: comm.rank + plus, 10) == [10, 11, 12]
    assert launch_threads(1, lambda comm: comm.all_reduce(torch.ones(2)).tolist()) == [[1.0, 1.0]]


def test_the_first_error_is_raised_and_nobody_waits_for_a_rank_that_failed() -> None:
    def fails(comm: Any) -> None:
        if comm.rank == 1:
            raise ValueError("bad shard")
        comm.barrier()

    with pytest.raises(ValueError, match="bad shard"):
        launch_threads(3, fails)


def test_messages_of_different_sizes_are_named() -> None:
    def mixes(comm: Any) -> None:
        if comm.rank == 0:
            comm.send(torch.ones(2), 1)
        else:
            comm.recv(torch.ones(3), 0)

    with pytest.raises(MismatchError, match="rank 0 sends 8 bytes to rank 1, which receives 12"):
        launch_threads(2, mixes)
    with pytest.raises(InputError, match="there is no rank 2"):
        launch_threads(2, lambda comm: comm.send(torch.ones(1), 2))
