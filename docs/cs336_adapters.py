"""zerolab behind the adapters of Stanford CS336's assignment on systems (docs/cs336.md)."""

from functools import partial

import torch
from torch import nn

from zerolab.precision import LossScaler, Precision
from zerolab.ranks import from_process_group
from zerolab.zero import ZeroEngine


class Container(nn.Module):
    def __init__(self, module, stage, **options):
        super().__init__()
        self.module = module
        options["optimizer"] = partial(torch.optim.SGD, lr=0.0)
        self.engine = ZeroEngine(module, from_process_group(), stage, **options)

    def forward(self, *inputs):
        return self.engine(*inputs)

    def after_backward(self, optimizer):
        self.engine.optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"]
        self.engine.step()


class ShardedOptimizer(torch.optim.Optimizer):
    def __init__(self, params, optimizer_cls, **options):
        super().__init__(params, options)
        owned = [(p, group) for group in self.param_groups for p in group["params"] if p.requires_grad]
        self.originals = [p for p, _ in owned]
        self.copies = nn.ParameterList(p.detach().clone() for p in self.originals)
        of_group = [{key: value for key, value in group.items() if key != "params"} for _, group in owned]
        comm = from_process_group()
        self.engine = ZeroEngine(self.copies, comm, 1, optimizer=optimizer_cls, groups=lambda n, _: of_group[int(n)])

    def step(self):
        pairs = list(zip(self.copies, self.originals, strict=True))
        self.engine.backward(torch.stack([(copy * p.grad).sum() for copy, p in pairs]).sum())
        self.engine.step()
        with torch.no_grad():
            for copy, p in pairs:
                p.copy_(copy)


def ddp_bucketed(module, bucket_size_mb):
    return Container(module, 0, bucket_numel=max(1, int(bucket_size_mb * 1e6 / 4)))


def fsdp(module, compute_dtype=None):
    if compute_dtype is None:
        return Container(module, 3)
    half = Precision(params={torch.float16: "fp16", torch.bfloat16: "bf16"}[compute_dtype], sharded_main=True)
    return Container(module, 3, precision=half, scaler=LossScaler(static=1.0) if half.scales_loss else None)
