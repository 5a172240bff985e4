"""What ranks do in a process group that they made themselves, without `launch`: for the tests, and for `mp.spawn`,
which imports this file in each rank."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from zerolab.collectives import LocalCollectives
from zerolab.ranks import from_process_group
from zerolab.zero import ZeroEngine


def init(folder, rank, ranks):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)


def train(comm, stage):
    """All parameters after three steps, each rank on its part of the batch."""
    torch.manual_seed(comm.rank)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3)).to(comm.device)
    if comm.size == 1:
        torch.manual_seed(0)
    engine = ZeroEngine(model, comm, stage, optimizer=partial(torch.optim.SGD, lr=0.1))
    rows = torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(5))
    for batch in rows:
        engine.backward(engine(batch.chunk(comm.size)[comm.rank].to(comm.device)).square().mean())
        engine.step()
    return engine.consolidate()


def flat(state):
    return torch.cat([tensor.flatten() for tensor in state.values()])


def stages_in_a_group(rank, folder, ranks):
    """Train at every stage with every kind of collectives; write the largest difference from one process."""
    init(folder, rank, ranks)
    found = {}
    for collectives in ("auto", "ring", "torch"):
        for stage in (0, 3):
            comm = from_process_group(collectives=collectives)
            alone = flat(train(LocalCollectives(), 0))
            found[f"{type(comm).__name__} {stage}"] = (flat(train(comm, stage)) - alone).abs().max().item()
            comm.close()
    # The group is as it was: who made it uses it, and ends it.
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    found["sum"] = total.item()
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


def part_of_a_world(rank, folder, ranks):
    """Collectives among ranks 1 and 2 of three: the last two are a world of two."""
    init(folder, rank, ranks)
    group = dist.new_group([1, 2])
    found = {}
    for collectives in ("auto", "ring", "torch"):
        try:
            comm = from_process_group(group, collectives=collectives)
        except ValueError as error:
            found[collectives] = str(error)
            continue
        whole = comm.all_gather(torch.tensor([comm.rank, rank]))
        sum_ = comm.all_reduce(torch.tensor([float(rank)])).item()
        first = comm.broadcast(torch.tensor([rank]), src=1).item()
        found[collectives] = [comm.rank, comm.size, whole.tolist(), sum_, first]
        comm.close()
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


def two_comms_at_once(rank, folder, ranks):
    """Equal calls of two comms of one group are under way at once, issued here in one order and there in the other."""
    init(folder, rank, ranks)
    comms = [from_process_group(collectives="ring") for _ in range(2)]
    tensors = [torch.full((1000,), float(1 + at + 10 * rank)) for at in range(2)]
    started = {at: comms[at].all_reduce_async(tensors[at]) for at in ((0, 1) if rank == 0 else (1, 0))}
    found = [started[at].wait().unique().tolist() for at in range(2)]
    for comm in comms:
        comm.close()
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    # Under torchrun.
    dist.init_process_group("gloo")
    trained = flat(train(from_process_group(), 2))
    alone = flat(train(LocalCollectives(), 0))
    Path(sys.argv[1], f"{os.environ['RANK']}.json").write_text(json.dumps((trained - alone).abs().max().item()))
    dist.destroy_process_group()
