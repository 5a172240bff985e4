"""Settings as a program of plain PyTorch: FSDP2 (`fully_shard`) at stages 2 and 3, DDP at stage 0, DDP with
`ZeroRedundancyOptimizer` at stage 1. Model and data are a small stand-in, for people to put their own in its place."""

from __future__ import annotations

from zerolab.apps.dialects.keys import Settings, check_fp32, run_of
from zerolab.errors import InputError
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

TORCH = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}


def write(settings: Settings) -> str:
    """The program's text. Raises InputError for what neither FSDP2 nor DDP does."""
    run = run_of(settings)
    precision = run.dtypes or Precision()
    check(run, precision)
    parts = (
        imports(run, precision),
        constants(run),
        MODEL.format(block=CHECKPOINTED if run.checkpoint_activations else "block(x)"),
        sharding(run, precision),
        STEPS.format(rises=RISES[run.warmup_shape], falls=FALLS[run.lr_schedule]),
        loop(run, precision),
    )
    return "\n\n".join(part.strip("\n") + "\n" for part in parts)


def check(run: RunSpec, precision: Precision) -> None:
    """Raise an InputError for what neither FSDP2 nor DDP does."""
    if run.stage == 1 and run.instances > 1:
        raise InputError(
            f"num_distributed_optimizer_instances is {run.instances}, which PyTorch does at stages 2 and 3 only; "
            "choose one of them, or 1 instance"
        )
    check_fp32(precision, "PyTorch's AdamW keeps it as the parameters that it updates, which are fp32")
    if precision.params not in TORCH or precision.fp8:
        name = "fp8" if precision.fp8 else precision.params
        raise InputError(f"precision is {name}, which FSDP2 does not do by itself; choose bf16 or fp32")
    if precision.reduce not in TORCH:
        raise InputError(f"reduce_dtype is {precision.reduce}, in which gradients overflow; choose bf16 or fp32")
    places = {run.places.optimizer, run.places.parameters}
    if places != {"device"} and (places != {"host"} or run.stage != 3):
        raise InputError(
            f"offload_optimizer is {run.offload_optimizer} and offload_param {run.offload_param}, but FSDP2 offloads "
            "both to the host, at stage 3, or none; choose that"
        )


def imports(run: RunSpec, precision: Precision) -> str:
    how = {
        0: "DDP: nothing is sharded",
        1: "DDP and ZeroRedundancyOptimizer: optimizer states are sharded",
        2: "FSDP2 that keeps gathered parameters between forward and backward",
        3: "FSDP2: parameters, gradients and optimizer states are sharded",
    }[run.stage]
    lines = [
        f'"""ZeRO stage {run.stage} in plain PyTorch. {how}.',
        "",
        f'Start it with: torchrun --nproc_per_node {run.ranks} FILE"""',
        "",
        *(["import contextlib"] if run.stage < 2 and run.defer_reduction else []),
        *(["import math"] if run.lr_schedule == "cosine" or run.warmup_shape == "log" else []),
        "import os",
        "",
        "import torch",
        "import torch.distributed as dist",
        "import torch.nn.functional as F",
        "from torch import nn",
    ]
    if run.stage < 2:
        lines += ["from torch.distributed.optim import ZeroRedundancyOptimizer"] if run.stage == 1 else []
        lines += ["from torch.nn.parallel import DistributedDataParallel"]
    else:
        more = ["CPUOffloadPolicy"] if run.places.parameters == "host" else []
        more += ["MixedPrecisionPolicy"] if precision.params != "fp32" else []
        lines += ["from torch.distributed.device_mesh import init_device_mesh"]
        lines += [f"from torch.distributed.fsdp import {', '.join([*more, 'fully_shard'])}"]
    lines += ["from torch.utils.checkpoint import checkpoint"] if run.checkpoint_activations else []
    return "\n".join(lines)


def constants(run: RunSpec) -> str:
    shape = run.architecture
    values = {
        "BATCH, MICRO_BATCHES, SEQ_LEN": (run.batch_size, run.grad_accum_steps, run.seq_len),
        "LAYERS, WIDTH, HEADS, VOCABULARY": (shape.layers, shape.dim, shape.heads, shape.vocab_size),
        "STEPS, LR, WARMUP": (run.max_steps, run.lr, run.warmup_steps),
        "BETAS, EPS, WEIGHT_DECAY": ((run.beta1, run.beta2), run.eps, run.weight_decay),
        "CLIP_NORM, SEED": (run.clip_norm, run.seed),
    }
    if run.lr_schedule != "constant":
        values["MIN_LR, DECAY"] = (run.min_lr, run.decay_steps or run.max_steps)
    return "\n".join(f"{names} = {', '.join(map(repr, them))}" for names, them in values.items())


CHECKPOINTED = "checkpoint(block, x, use_reentrant=False)"
MODEL = '''
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
            x = {block}
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
        {{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY}},
        {{"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}},
    ]
'''


def sharding(run: RunSpec, precision: Precision) -> str:
    compiled = "    for block in model.blocks:\n        block.compile()\n" if run.compile else ""
    if run.stage < 2:
        kind = "ZeroRedundancyOptimizer" if run.stage == 1 else "torch.optim.AdamW"
        first = "optimizer_class=torch.optim.AdamW, " if run.stage == 1 else ""
        return f"""
def shard(model: nn.Module, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
{compiled}    groups = parameter_groups(model)
    wrapped = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    return wrapped, {kind}(groups, {first}lr=LR, betas=BETAS, eps=EPS)
"""
    options = ["mesh=mesh", f"reshard_after_forward={run.stage == 3}"]
    mesh = "init_device_mesh(device.type, (dist.get_world_size(),))"
    if run.instances > 1:
        mesh = (
            f"init_device_mesh(\n        device.type, ({run.instances}, dist.get_world_size() // {run.instances}), "
            'mesh_dim_names=("replicate", "shard")\n    )'
        )
    policies = ""
    if precision.params != "fp32":
        policies += f"""    # Parameters are sharded and updated in fp32, and computed with in 16 bits.
    precision = MixedPrecisionPolicy(param_dtype={TORCH[precision.params]}, reduce_dtype={TORCH[precision.reduce]})
"""
        options.append("mp_policy=precision")
    if run.places.parameters == "host":
        options.append("offload_policy=CPUOffloadPolicy()")
    return f"""
def shard(model: nn.Module, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = {mesh}
{policies}{compiled}    for module in [*model.blocks, model]:
        fully_shard(module, {", ".join(options)})
    return model, torch.optim.AdamW(parameter_groups(model), lr=LR, betas=BETAS, eps=EPS)
"""


DONE = "done = min(1.0, (step - WARMUP) / max(1, DECAY - WARMUP))\n    "
FALLS = {
    "constant": "return LR",
    "cosine": DONE + "return MIN_LR + (LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * done))",
    "linear": DONE + "return MIN_LR + (LR - MIN_LR) * (1 - done)",
}
RISES = {"line": "(step + 1) / (WARMUP + 1)", "log": "math.log(step + 2) / math.log(WARMUP + 2)"}
STEPS = '''
def rate_of(step: int) -> float:
    """The learning rate of a step; the first is step 0."""
    if step < WARMUP:
        return LR * {rises}
    {falls}
'''


def loop(run: RunSpec, precision: Precision) -> str:
    lines = ["loss = model(rows[:, :-1], rows[:, 1:]) / MICRO_BATCHES", "loss.backward()"]
    if run.stage < 2 and precision.params == "bf16":
        lines[:1] = ["with torch.autocast(device.type, torch.bfloat16):", f"    {lines[0]}"]
    if run.defer_reduction:
        last = "micro == MICRO_BATCHES - 1"
        if run.stage < 2:
            whole = f"with contextlib.nullcontext() if {last} else model.no_sync():"
            lines = [whole, *(f"    {line}" for line in lines)]
        else:
            lines.insert(0, f"model.set_requires_gradient_sync({last})")
    body = "\n".join(f"            {line}" for line in lines)
    made = "model, optimizer = shard(Model().to(device), device)"
    if run.stage >= 2:
        made = "# fully_shard brings a block after the other to the device, and only shards stay.\n"
        made += "    model, optimizer = shard(Model(), device)"
    return f'''
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
    {made}
    losses = []
    for step in range(STEPS):
        total = torch.zeros((), device=device)
        for micro in range(MICRO_BATCHES):
            rows = batch_of(step, micro, rank, ranks).to(device)
{body}
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
            print(f"step {{step + 1}} loss {{losses[-1]:.6f}}", flush=True)
    if own_world:
        dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
'''
