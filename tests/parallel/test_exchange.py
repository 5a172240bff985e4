"""Collectives inside a model give what one process gives, forward and backward, in every world."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from collective_cases import every_world, run

from zerolab.collectives import Collectives
from zerolab.errors import RankError
from zerolab.parallel.exchange import COPY, GATHER, JOIN, SCATTER, SPLIT, SUM, all_to_all, exchange, maximum

RANKS = 3


def whole(rank: int) -> torch.Tensor:
    return torch.arange(2 * 6 * 2, dtype=torch.float64).view(2, 6, 2) * (rank + 1) + rank


def passed(comm: Collectives) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What each pair of verbs gives of this rank's tensor, and the gradient of a sum weighted by rank."""
    found = {}
    for name, verbs in {"copy": COPY, "sum": SUM, "gather": GATHER, "scatter": SCATTER, "split": SPLIT,
                        "join": JOIN}.items():  # fmt: skip
        x = whole(comm.rank).requires_grad_()
        out = exchange(x, comm, verbs, dim=1)
        (out * (comm.rank + 1)).sum().backward()
        assert x.grad is not None
        found[name] = out.detach(), x.grad
    return found


@pytest.mark.ranks
@every_world
def test_each_pair_of_verbs_gives_values_and_gradients_of_one_process(world: tuple[str, str]) -> None:
    every = [whole(rank) for rank in range(RANKS)]
    total, joined = sum(every), torch.cat(every, 1)
    ones = torch.ones(2, 6, 2, dtype=torch.float64)
    assert isinstance(total, torch.Tensor)
    for rank, found in enumerate(run(passed, ranks=RANKS, world=world)):
        own, weights = rank + 1, 1 + 2 + 3
        parts = [piece * (at + 1) for at, piece in enumerate(ones.chunk(RANKS, 1))]
        due = {
            "copy": (every[rank], ones * weights),
            "sum": (total, ones * own),
            "gather": (joined, ones * weights),
            "scatter": (total.chunk(RANKS, 1)[rank], torch.cat(parts, 1)),
            "split": (every[rank].chunk(RANKS, 1)[rank], torch.cat(parts, 1)),
            "join": (joined, ones * own),
        }
        for name, (out, gradient) in due.items():
            assert torch.equal(found[name][0], out) and torch.equal(found[name][1], gradient), name


def dispatched(comm: Collectives) -> tuple[Any, ...]:
    """Rank r sends r + d rows to rank d, 10r + d in each; none where r + d is 2."""
    count = [[0 if r + d == 2 else r + d for d in range(comm.size)] for r in range(comm.size)]
    sent, received = count[comm.rank], [row[comm.rank] for row in count]
    rows = torch.cat([torch.full((n, 2), 10.0 * comm.rank + d) for d, n in enumerate(sent)]).requires_grad_()
    come = all_to_all(rows, comm, sent, received)
    (come * (comm.rank + 1)).sum().backward()
    assert rows.grad is not None
    return come.detach(), rows.grad, maximum(torch.tensor([1.0, -comm.rank, comm.rank]), comm), sent, received


@pytest.mark.ranks
@every_world
def test_rows_go_to_their_ranks_and_gradients_come_back(world: tuple[str, str]) -> None:
    for rank, (come, gradient, most, sent, received) in enumerate(run(dispatched, ranks=RANKS, world=world)):
        assert come[:, 0].tolist() == [10.0 * src + rank for src, count in enumerate(received) for _ in range(count)]
        assert gradient[:, 0].tolist() == [dst + 1.0 for dst, count in enumerate(sent) for _ in range(count)]
        assert most.tolist() == [1, 0, 2]


def test_what_ranks_exchange_is_metered_to_the_byte_in_the_group_of_its_axis() -> None:
    def sent(comm: Collectives) -> dict[str, int]:
        group = comm.split(lambda rank: 0, name="tp")
        assert group is not None
        exchange(whole(0), group, SUM)
        all_to_all(torch.zeros(3, 2), group, [1, 1, 1], [1, 1, 1])
        return dict(comm.meter.bytes_by_group())

    whole_bytes = whole(0).nbytes
    assert [found["tp"] for found in run(sent, ranks=RANKS)] == [2 * whole_bytes * 2 // 3 + 2 * 8] * RANKS


def test_a_sequence_that_ranks_cannot_share_evenly_is_refused_with_its_length() -> None:
    with pytest.raises(RankError, match=r"3 ranks cannot share 4 places of a tensor of shape \(2, 4\) evenly"):
        run(lambda comm: exchange(torch.zeros(2, 4), comm, SPLIT), ranks=RANKS)
