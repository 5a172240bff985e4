"""Tensor parallelism: ranks share each matrix, and two matrices in a row need
one sum.

    column   y_r = W_r x              rows of W are shared out: every rank has all of x and makes a part of y
    row      y   = sum_r W_r x_r      columns are: every rank has a part of x, and the parts of y are added up

So attention and feed-forward, which end with a row after columns, each send
one sum forward and one backward. The vocabulary is shared out as rows are: a
rank looks up the tokens that it has, and the loss needs three numbers a token
from the others.

`shard_model` changes a model in place, by the names of its modules: there is
no second class of model. With `sequence` the stream between these regions is
sharded along the sequence: a norm there sees its rank's tokens alone.

Shoeybi et al., arXiv 1909.08053; sequence parallelism: Korthikanti et al.,
arXiv 2205.05198.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zerolab.collectives.contract import Collectives
from zerolab.errors import InputError
from zerolab.parallel.exchange import COPY, GATHER, JOIN, SCATTER, SPLIT, SUM, exchange, maximum, move
from zerolab.parallel.mesh import Mesh
from zerolab.parallel.placement import shard

SEQUENCE = 1
"""The dim of hidden states [batch, seq, dim] that sequence parallelism
shards."""


class RowLinear(nn.Module):
    """A linear layer whose columns are sharded over tp: a part of x in, the
    whole sum out, or this rank's tokens of it with `sequence`."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, comm: Collectives, sequence: bool) -> None:
        super().__init__()
        self.comm, self.verbs = comm, SCATTER if sequence else SUM
        self.along_tp = "part", "part" if sequence else "whole"
        self.weight = shard(weight, comm, "tp", 1)
        self.bias = None if bias is None else nn.Parameter(bias.detach())
        if sequence and self.bias is not None:
            add_over(comm, [self.bias])

    def forward(self, x: Tensor) -> Tensor:
        y = exchange(F.linear(x, self.weight), self.comm, self.verbs, SEQUENCE)
        return y if self.bias is None else y + self.bias


class VocabularyEmbedding(nn.Module):
    """A table whose rows, one a token of the vocabulary, are sharded over
    tp."""

    def __init__(self, weight: nn.Parameter, comm: Collectives, sequence: bool) -> None:
        super().__init__()
        self.comm, self.verbs, self.weight = comm, SCATTER if sequence else SUM, weight
        self.along_tp = "whole", "part" if sequence else "whole"

    def forward(self, tokens: Tensor) -> Tensor:
        rows, here = own_rows(tokens, len(self.weight), self.comm)
        vectors = F.embedding(rows, self.weight) * here.unsqueeze(-1)
        return exchange(vectors, self.comm, self.verbs, SEQUENCE)


class VocabularyLoss(nn.Module):
    """Mean cross-entropy (fp32) of logits of which each rank has those of its
    part of the vocabulary; without targets all logits."""

    def __init__(self, vocabulary: int, comm: Collectives) -> None:
        super().__init__()
        self.vocabulary, self.comm, self.along_tp = vocabulary, comm, ("part", "whole")

    def forward(self, logits: Tensor, targets: Tensor | None = None) -> Tensor:
        if targets is None:
            return exchange(logits, self.comm, JOIN)[..., : self.vocabulary]
        rows = logits.shape[-1]
        token = torch.arange(rows, device=logits.device) + self.comm.rank * rows
        logits = logits.float().masked_fill(token >= self.vocabulary, -torch.inf)
        shifted = logits - maximum(logits.amax(-1), self.comm).unsqueeze(-1)
        total = exchange(shifted.exp().sum(-1), self.comm, SUM)
        row, here = own_rows(targets, rows, self.comm)
        found = shifted.gather(-1, row.unsqueeze(-1)).squeeze(-1)
        wanted = exchange(torch.where(here, found, 0.0), self.comm, SUM)
        return (total.log() - wanted).mean()


def own_rows(tokens: Tensor, rows: int, comm: Collectives) -> tuple[Tensor, Tensor]:
    """Tokens as numbers of this rank's rows, 0 where they are another's, and
    where they are its own."""
    local = tokens - comm.rank * rows
    here = (local >= 0) & (local < rows)
    return local * here, here


# What modules are to tensor parallelism. Each function is given the module and its parent's place for it.


class Sharder:
    """Shards the modules of one model; tied parameters stay tied."""

    def __init__(self, model: Any, comm: Collectives, sequence: bool) -> None:
        self.model, self.comm, self.sequence = model, comm, sequence
        self.enter = GATHER if sequence else COPY
        self.tables: dict[nn.Parameter, nn.Parameter] = {}

    def column(self, name: str, module: Any, parts: int = 1) -> None:
        """Share out the rows of a matrix, of each of its `parts` where it
        computes several things."""
        module.weight = shard(module.weight, self.comm, "tp", 0, parts)
        if module.bias is not None:
            module.bias = shard(module.bias, self.comm, "tp", 0, parts)

    def three_columns(self, name: str, module: Any) -> None:
        self.column(name, module, parts=3)

    def row(self, name: str, module: Any) -> None:
        self.put(name, RowLinear(module.weight, module.bias, self.comm, self.sequence))

    def region(self, name: str, module: Any) -> None:
        """Between columns and a row: what comes in, every rank uses for a
        part of the sum."""
        module.register_forward_pre_hook(self._entering)
        if hasattr(module, "heads"):
            module.heads //= self.comm.size

    def norm(self, name: str, module: Any) -> None:
        if self.sequence:
            add_over(self.comm, module.parameters())

    def head_norm(self, name: str, module: Any) -> None:
        """A norm that all heads share, of which each rank has some."""
        add_over(self.comm, module.parameters())

    def embedding(self, name: str, module: Any) -> None:
        """A table of tokens, or a module that adds to its `tokens` what every
        rank knows."""
        if type(module) is nn.Embedding:
            self.put(name, VocabularyEmbedding(self.table(module.weight), self.comm, self.sequence))
            return
        module.tokens = VocabularyEmbedding(self.table(module.tokens.weight), self.comm, False)
        if self.sequence:
            module.register_forward_hook(lambda _, __, out: exchange(out, self.comm, SPLIT, SEQUENCE))

    def vocabulary(self, name: str, module: Any) -> None:
        module.weight = self.table(module.weight)
        module.register_forward_pre_hook(self._entering)

    def loss(self, name: str, module: Any) -> None:
        self.put(name, VocabularyLoss(self.model.config.vocab_size, self.comm))

    def table(self, weight: Any) -> nn.Parameter:
        """A matrix of the vocabulary, padded to as many rows on each rank."""
        if weight not in self.tables:
            self.tables[weight] = shard(weight, self.comm, "tp", 0, pad=True)
        return self.tables[weight]

    def put(self, name: str, module: Any) -> None:
        parent, _, last = name.rpartition(".")
        setattr(self.model.get_submodule(parent), last, module)

    def _entering(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return exchange(given[0], self.comm, self.enter, SEQUENCE), *given[1:]


ROLES: dict[str, Callable[[Sharder, str, Any], None]] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), Sharder.column),
    **dict.fromkeys(("o_proj", "down_proj"), Sharder.row),
    **dict.fromkeys(("attention", "ffn"), Sharder.region),
    **dict.fromkeys(("attention_norm", "ffn_norm", "norm"), Sharder.norm),
    **dict.fromkeys(("q_norm", "k_norm"), Sharder.head_norm),
    "qkv_proj": Sharder.three_columns,
    "embedding": Sharder.embedding,
    "lm_head": Sharder.vocabulary,
    "loss": Sharder.loss,
}
"""What the modules of LLaMA and GPT-2 are to tensor parallelism, by the last
part of their names."""


def shard_model(model: nn.Module, mesh: Mesh, sequence: bool = False) -> nn.Module:
    """Shard a language model in place over the axes tp and ep of `mesh`;
    returns it. Every rank gives the whole model, of which those of the first
    rank count. `placement.sharded` says how a parameter is cut.

    sequence  shard hidden states between the regions along the sequence, so that fewer activations are kept
    """
    tp = mesh.comms["tp"]
    check_model(model, tp.size)
    with torch.no_grad():
        for axis in ("dp", "tp"):
            for parameter in model.parameters():
                mesh.comms[axis].broadcast(parameter.data)
        sharder = Sharder(model, tp, sequence)
        for name, module in [*model.named_modules()]:
            if hasattr(module, "shard_over"):
                module.shard_over(mesh, sequence and tp.size > 1)
            elif (role := ROLES.get(name.rpartition(".")[2])) and tp.size > 1:
                role(sharder, name, module)
    model.mesh, model.sequence = mesh, sequence and tp.size > 1  # type: ignore[assignment]
    return model


def add_over(comm: Collectives, parameters: Iterable[nn.Parameter]) -> None:
    """Add gradients of parameters that all these ranks have, while each of
    them sees other tokens or heads."""
    for parameter in parameters:
        parameter.register_hook(partial(move, comm=comm, verb="all_reduce"))


def check_model(model: Any, size: int) -> None:
    """Raise an InputError for what cannot be sharded, or would go wrong
    without a word."""
    config: Any = getattr(model, "config", None)
    if config is None or not isinstance(getattr(model, "loss", None), nn.Module):
        raise InputError(f"{type(model).__name__} is no LLaMA or GPT-2 of zerolab.models; build one to shard tensors")
    if hasattr(model, "mesh"):
        raise InputError("this model was sharded before; build it anew to shard it otherwise")
    for name in ("heads", "kv_heads"):
        if vars(config).get(name, size) % size:
            raise InputError(f"tp {size} does not divide {name} {vars(config)[name]}; choose a divisor")
    if size > 1 and hasattr(model, "dropout") and model.dropout:
        raise InputError(f"dropout is {model.dropout}, and over tp masks would differ from rank to rank; leave it out")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError("the model is on the meta device and has no values to share out; build it on the CPU")
