"""Ranks of test_cs336.py: a small model behind the adapters in docs, beside one process with the whole batch."""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))

import cs336_adapters as adapters


class Net(nn.Module):
    """A frozen bias, a tied weight and a frozen parameter that nothing uses."""

    def __init__(self):
        super().__init__()
        self.narrow = nn.Linear(6, 10)
        self.narrow.bias.requires_grad_(False)
        self.first = nn.Linear(10, 10, bias=False)
        self.second = nn.Linear(10, 10, bias=False)
        self.second.weight = self.first.weight
        self.head = nn.Linear(10, 2)
        self.unused = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(torch.relu(self.narrow(x)))))))


def difference(state, model):
    """The largest difference of values under the same names; those of `state` may be narrower."""
    named = dict(model.named_parameters())
    assert state.keys() == named.keys()
    return max((value.float() - named[name]).abs().max().item() for name, value in state.items())


def train_container(wrap, rank):
    """How far the wrapped model's parameters are from those of one process, before and after three steps."""
    torch.manual_seed(0)
    alone = Net()
    torch.manual_seed(rank)
    wrapped = wrap(Net())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (alone, wrapped)]
    found = [difference(wrapped.engine.consolidate(), alone)]
    for batch in torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(7)):
        for model, inputs, optimizer in zip((alone, wrapped), (batch, batch.chunk(2)[rank]), optimizers, strict=True):
            optimizer.zero_grad()
            model(inputs).float().square().mean().backward()
            if model is wrapped:
                wrapped.after_backward(optimizer)
            optimizer.step()
    found.append(difference(wrapped.engine.consolidate(), alone))
    return found


def train_sharded_optimizer(rank):
    """The same for an optimizer of two groups whose states are sharded; every rank sees the whole batch."""
    torch.manual_seed(0)
    models = [Net(), Net()]
    models[1] = copy.deepcopy(models[0])
    options = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9)}

    def groups(model):
        matrices = [p for p in model.parameters() if p.dim() > 1]
        return [{"params": matrices}, {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]

    optimizers = [
        torch.optim.AdamW(groups(models[0]), **options),
        adapters.ShardedOptimizer(groups(models[1]), torch.optim.AdamW, **options),
    ]
    kept = 0
    for batch in torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(7)):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        states = optimizers[1].engine.optimizer.state.values()
        kept = sum(value.numel() for state in states for value in state.values() if value.dim())
    named = dict(models[1].named_parameters())
    return [difference({name: p.detach() for name, p in named.items()}, models[0]), kept]


def run(rank, folder, ranks):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = {
        "ddp": train_container(lambda model: adapters.Container(model, 0), rank),
        "ddp_bucketed": train_container(lambda model: adapters.ddp_bucketed(model, 0.0002), rank),
        "fsdp": train_container(adapters.fsdp, rank),
        "fsdp_half": train_container(lambda model: adapters.fsdp(model, torch.float16), rank),
        "sharded_optimizer": train_sharded_optimizer(rank),
    }
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
