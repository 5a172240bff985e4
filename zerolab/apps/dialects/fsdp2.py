"""Settings as a program of plain PyTorch: FSDP2 (`fully_shard`) at stages 2 and 3, DDP at stage 0, with
`ZeroRedundancyOptimizer` at stage 1. Model and data are small stand-ins."""

from __future__ import annotations

from string import Template

from zerolab.apps.dialects.keys import Settings, check_fp32, require, require_of, run_of
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

TORCH = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}


def write(settings: Settings) -> str:
    """The program's text. Raises InputError for what neither FSDP2 nor DDP does."""
    run = run_of(settings)
    precision, ddp = run.dtypes or Precision(), run.stage < 2
    check(run, precision)
    mixed, offloads = precision.params != "fp32", run.places.parameters == "host"
    nested = "    " if ddp and run.defer_reduction else ""
    facts = {name: getattr(run, name) for name in RunSpec.model_fields}
    facts |= {name: getattr(run.architecture, name) for name in ("layers", "dim", "heads", "vocab_size")}
    facts |= {f"zero{stage}": run.stage == stage for stage in range(4)}
    facts |= {
        "ddp": ddp,
        "mixed": mixed,
        "hybrid": run.instances > 1,
        "copies": run.instances,
        "cosine": run.lr_schedule == "cosine",
        "linear": run.lr_schedule == "linear",
        "falls": run.lr_schedule != "constant",
        "log": run.warmup_shape == "log",
        "math": run.lr_schedule == "cosine" or run.warmup_shape == "log",
        "decay": run.decay_steps or run.max_steps,
        "policies": "CPUOffloadPolicy, " * offloads + "MixedPrecisionPolicy, " * mixed,
        "options": ", mp_policy=precision" * mixed + ", offload_policy=CPUOffloadPolicy()" * offloads,
        "computed": TORCH[precision.params],
        "reduced": TORCH[precision.reduce],
        "adam": "torch.optim.AdamW",
        "nested": nested,
        "inside": nested + ("    " if ddp and mixed else ""),
    }
    kept = []
    for line in TEMPLATE.splitlines(keepends=True):
        *conditions, text = line.split("? ")
        if all(bool(facts[name.lstrip("!")]) != name.startswith("!") for name in conditions):
            kept.append(text)
    return Template("".join(kept)).substitute(facts)


def check(run: RunSpec, precision: Precision) -> None:
    """Raise an InputError for what neither FSDP2 nor DDP does."""
    why = "PyTorch does this at stages 2 and 3 only; choose one of them, or 1 instance"
    require_of(run, "num_distributed_optimizer_instances", run.stage != 1 or run.instances == 1, why)
    check_fp32(precision, "PyTorch's AdamW keeps it as the parameters that it updates, which are fp32")
    name, reduce = "fp8" if precision.fp8 else precision.params, precision.reduce
    require(name in TORCH, f"precision is {name}, which FSDP2 does not do by itself; choose bf16 or fp32")
    require(reduce in TORCH, f"reduce_dtype is {reduce}, in which gradients overflow; choose bf16 or fp32")
    places = {run.places.optimizer, run.places.parameters}
    fits = places == {"device"} or (places == {"host"} and run.stage == 3)
    why = "FSDP2 offloads both to the host, at stage 3, or none; choose that"
    require_of(run, "offload_optimizer offload_param", fits, why)


TEMPLATE = '''\
zero0? """ZeRO stage 0 in plain PyTorch. DDP: nothing is sharded.
zero1? """ZeRO stage 1 in plain PyTorch. DDP and ZeroRedundancyOptimizer: optimizer states are sharded.
zero2? """ZeRO stage 2 in plain PyTorch. FSDP2 that keeps gathered parameters between forward and backward.
zero3? """ZeRO stage 3 in plain PyTorch. FSDP2: parameters, gradients and optimizer states are sharded.

Start it with: torchrun --nproc_per_node $ranks FILE"""

ddp? defer_reduction? import contextlib
math? import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
zero1? from torch.distributed.optim import ZeroRedundancyOptimizer
ddp? from torch.nn.parallel import DistributedDataParallel
!ddp? from torch.distributed.device_mesh import init_device_mesh
!ddp? from torch.distributed.fsdp import ${policies}fully_shard
checkpoint_activations? from torch.utils.checkpoint import checkpoint


BATCH, MICRO_BATCHES, SEQ_LEN = $batch_size, $grad_accum_steps, $seq_len
LAYERS, WIDTH, HEADS, VOCABULARY = $layers, $dim, $heads, $vocab_size
STEPS, LR, WARMUP = $max_steps, $lr, $warmup_steps
BETAS, EPS, WEIGHT_DECAY = ($beta1, $beta2), $eps, $weight_decay
CLIP_NORM, SEED = $clip_norm, $seed
falls? MIN_LR, DECAY = $min_lr, $decay


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """A small language model; put your own in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQ_LEN, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
!checkpoint_activations?             x = block(x)
checkpoint_activations?             x = checkpoint(block, x, use_reentrant=False)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def batch_of(step: int, micro: int, rank: int, ranks: int) -> torch.Tensor:
    """This rank's sequences [rows, SEQ_LEN + 1] of a micro-batch: counts from anywhere, in steps of any size; put your
    own data in their place. All ranks together see the same batch, however many they are."""
    chance = torch.Generator().manual_seed(1_000_003 * SEED + step)
    first = torch.randint(VOCABULARY, (BATCH, 1), generator=chance)
    stride = torch.randint(1, 8, (BATCH, 1), generator=chance)
    whole = (first + stride * torch.arange(SEQ_LEN + 1)) % VOCABULARY
    return whole.view(MICRO_BATCHES, ranks, -1, SEQ_LEN + 1)[micro, rank]


def parameter_groups(model: nn.Module) -> list[dict]:
    """Weight decay for matrices only."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def shard(model: nn.Module, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
!ddp? !hybrid?     mesh = init_device_mesh(device.type, (dist.get_world_size(),))
!ddp? hybrid?     mesh = init_device_mesh(
!ddp? hybrid?         device.type, ($copies, dist.get_world_size() // $copies), mesh_dim_names=("replicate", "shard")
!ddp? hybrid?     )
!ddp? mixed?     # Parameters are sharded and updated in fp32, and computed with in 16 bits.
!ddp? mixed?     precision = MixedPrecisionPolicy(param_dtype=$computed, reduce_dtype=$reduced)
compile?     for block in model.blocks:
compile?         block.compile()
ddp?     groups = parameter_groups(model)
ddp?     wrapped = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
zero0?     return wrapped, $adam(groups, lr=LR, betas=BETAS, eps=EPS)
zero1?     return wrapped, ZeroRedundancyOptimizer(groups, optimizer_class=$adam, lr=LR, betas=BETAS, eps=EPS)
!ddp?     for module in [*model.blocks, model]:
!ddp?         fully_shard(module, mesh=mesh, reshard_after_forward=$zero3$options)
!ddp?     return model, $adam(parameter_groups(model), lr=LR, betas=BETAS, eps=EPS)


def rate_of(step: int) -> float:
    """The learning rate of a step; the first is step 0."""
    if step < WARMUP:
!log?         return LR * (step + 1) / (WARMUP + 1)
log?         return LR * math.log(step + 2) / math.log(WARMUP + 2)
!falls?     return LR
falls?     done = min(1.0, (step - WARMUP) / max(1, DECAY - WARMUP))
cosine?     return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * done))
linear?     return MIN_LR + (LR - MIN_LR) * (1 - done)


def own_gpu() -> torch.device:
    """The GPU of this rank's number on its machine, which torchrun, srun and mpirun say each in their own way; or the
    only one that it sees."""
    names = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    said = next((os.environ[name] for name in names if os.environ.get(name)), None)
    gpus = torch.cuda.device_count()
    if said is None and gpus > 1:
        raise RuntimeError("all ranks would take GPU 0: set LOCAL_RANK to the number of a rank on its machine")
    return torch.device("cuda", 0 if gpus == 1 else int(said))


def main() -> list[float]:
    """Train, and return the mean loss of all ranks by step."""
    own_world = not dist.is_initialized()
    on_gpu = torch.cuda.is_available()
    if own_world:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = own_gpu() if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(SEED)
ddp?     model, optimizer = shard(Model().to(device), device)
!ddp?     # fully_shard brings a block after the other to the device, and only shards stay.
!ddp?     model, optimizer = shard(Model(), device)
    losses = []
    for step in range(STEPS):
        total = torch.zeros((), device=device)
        for micro in range(MICRO_BATCHES):
            rows = batch_of(step, micro, rank, ranks).to(device)
!ddp? defer_reduction?             model.set_requires_gradient_sync(micro == MICRO_BATCHES - 1)
ddp? defer_reduction?             with contextlib.nullcontext() if micro == MICRO_BATCHES - 1 else model.no_sync():
ddp? mixed?             ${nested}with torch.autocast(device.type, torch.bfloat16):
            ${inside}loss = model(rows[:, :-1], rows[:, 1:]) / MICRO_BATCHES
            ${nested}loss.backward()
            total += loss.detach()
        if CLIP_NORM:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item() / ranks)
        if rank == 0:
            print(f"step {step + 1} loss {losses[-1]:.6f}", flush=True)
    if own_world:
        dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
'''
"""The program. A line with words and question marks before it is there if the run has these (with !: has not)."""
