"""Expert parallelism: ranks share the experts of a layer, and each token
travels to those that a router chose for it.

    tokens of this rank --router--> which experts, with what share
                        --sort----> runs of one expert each
                        --all_to_all--> the ranks that have these experts, and back, weighted and added up

The experts' ranks lie inside data parallelism, so tokens of other ranks meet
here: an expert's gradient holds those of all `ep` ranks already. It is summed
over `efsdp` alone, and divided by the number of all data-parallel ranks.

Shazeer et al., arXiv 1701.06538; Lepikhin et al., arXiv 2006.16668 (the
auxiliary loss, capacity); Fedus et al., arXiv 2101.03961 (one expert a
token); Jiang et al., arXiv 2401.04088 (shares of several).
"""

from __future__ import annotations

from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerolab.errors import InputError
from zerolab.models import Llama, LlamaConfig
from zerolab.parallel.exchange import SUM, all_to_all, exchange
from zerolab.parallel.mesh import Mesh
from zerolab.parallel.placement import shard
from zerolab.parallel.tensor import add_over


class ExpertLayer(nn.Module):
    """A router and SwiGLU experts of the width `hidden`; hidden states
    [batch, seq, dim] in and out.

    active    how many experts a token takes: one with the router's probability, several with shares of their sum
    capacity  an expert takes at most so many times the mean number of this rank's tokens, the first that come, and what
              is left over passes by; None: all are taken
    """

    mesh: Mesh | None = None
    sequence = False

    def __init__(self, dim: int, hidden: int, experts: int, active: int = 1, capacity: float | None = None) -> None:
        super().__init__()
        if not 1 <= active <= experts:
            raise InputError(f"active is {active} of {experts} experts; give 1 to {experts}")
        if capacity is not None and not capacity > 0:
            raise InputError(f"capacity is {capacity}; give a number above 0, or None to take all tokens")
        self.experts, self.active, self.capacity = experts, active, capacity
        self.router = nn.Parameter(torch.randn(experts, dim) / dim**0.5)
        self.gate = nn.Parameter(torch.randn(experts, hidden, dim) / dim**0.5)
        self.up = nn.Parameter(torch.randn(experts, hidden, dim) / dim**0.5)
        self.down = nn.Parameter(torch.randn(experts, dim, hidden) / hidden**0.5)
        self.auxiliary = torch.zeros(())
        """How unevenly the last forward's tokens were shared out: 1 where
        evenly (arXiv 2101.03961, equation 4)."""

    def shard_over(self, mesh: Mesh, sequence: bool) -> None:
        """Keep this rank's experts alone (`shard_model`)."""
        self.mesh, self.sequence, ep = mesh, sequence, mesh.comms["ep"]
        for name in ("gate", "up", "down"):
            setattr(self, name, shard(getattr(self, name), ep, "ep", 0))
        if sequence:
            add_over(mesh.comms["tp"], self.parameters())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        shares, chosen = self.route(tokens)
        # (token, choice) pairs, run after run of one expert.
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        if self.capacity is not None:
            order, counts = self.limited(order, counts, chosen)
        token = order // self.active
        done = self.dispatch(tokens[token], counts)
        share = shares.flatten()[order].unsqueeze(-1).to(done.dtype)
        out = torch.zeros_like(tokens).index_add(0, token, done * share)
        return out.view_as(x)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Shares and numbers [tokens, active] of the experts that each token
        takes."""
        probabilities = F.linear(tokens, self.router).float().softmax(-1)
        shares, chosen = probabilities.topk(self.active)
        taken = torch.bincount(chosen.flatten(), minlength=self.experts) / chosen.numel()
        comms = {} if self.mesh is None else self.mesh.comms
        # As many tokens on every rank: the mean of fractions is the fraction of all.
        if comms:
            taken = comms["dp"].all_reduce(taken, average=True)
        if self.sequence:
            taken = comms["tp"].all_reduce(taken, average=True)
        self.auxiliary = self.experts * (taken * probabilities.mean(0)).sum()
        if self.sequence:
            self.auxiliary = exchange(self.auxiliary / comms["tp"].size, comms["tp"], SUM)
        if self.active > 1:
            shares = shares / shares.sum(-1, keepdim=True)
        return shares, chosen

    def limited(self, order: Tensor, counts: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Of each run of `order` the first that the expert has room for."""
        assert self.capacity is not None
        most = ceil(self.capacity * chosen.numel() / self.experts)
        begin = counts.cumsum(0) - counts
        place = torch.arange(len(order), device=order.device) - begin.repeat_interleave(counts)
        return order[place < most], counts.clamp(max=most)

    def dispatch(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What the experts make of `rows` [rows, dim], a run of them for
        each, as long as `counts` [experts] says."""
        comm = None if self.mesh is None else self.mesh.comms["ep"]
        if comm is None or comm.size == 1:
            return self.compute(rows, counts.tolist())
        # Row r: how many rows rank r has for each expert here.
        table = comm.all_gather(counts).view(comm.size, comm.size, -1)[:, comm.rank]
        sent, received = counts.view(comm.size, -1).sum(1).tolist(), table.sum(1).tolist()
        arrived = all_to_all(rows, comm, sent, received)
        # They come rank by rank; experts want all of one together.
        own = torch.arange(table.shape[1], device=rows.device)
        expert = own.repeat(comm.size).repeat_interleave(table.flatten())
        by_expert = expert.argsort(stable=True)
        made = self.compute(arrived[by_expert], table.sum(0).tolist())
        return all_to_all(made[by_expert.argsort()], comm, received, sent)

    def compute(self, rows: Tensor, counts: list[int]) -> Tensor:
        made = []
        for x, gate, up, down in zip(rows.split(counts), self.gate, self.up, self.down, strict=True):
            wide = F.silu(F.linear(x, gate)) * F.linear(x, up)
            made.append(F.linear(wide, down))
        return torch.cat(made)


class MixtureOfExperts(Llama):
    """A LLaMA whose feed-forwards are `ExpertLayer`s; its loss has
    `coefficient` times their mean unevenness."""

    def __init__(
        self,
        config: LlamaConfig,
        experts: int,
        active: int = 1,
        coefficient: float = 0.01,
        capacity: float | None = None,
    ) -> None:
        super().__init__(config)
        self.coefficient = coefficient
        self.layers: list[ExpertLayer] = []
        for block in self.blocks:
            block.ffn = ExpertLayer(config.dim, config.ffn_dim, experts, active, capacity)
            self.layers.append(block.ffn)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        loss = super().forward(tokens, targets)
        if targets is None:
            return loss
        uneven = torch.stack([layer.auxiliary for layer in self.layers])
        return loss + self.coefficient * uneven.mean()
