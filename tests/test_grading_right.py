"""Right answers of all kinds pass: a check asks for what the text asks for, not for how the model answer does it."""

import pytest
from zoo.trial import hint_for

START = [
    (
        "choose_stage",
        """
from functools import reduce
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    for stage in range(4):
        if reduce(lambda one, other: one + other, state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes:
            return stage
""",
    ),
    (
        "most_parameters",
        """
import bisect
def most_parameters(gpu_bytes, ranks, stage, recipe):
    takes = lambda parameters: sum(state_bytes(parameters, ranks, stage, recipe).values())
    return bisect.bisect_right(range(gpu_bytes * ranks + 1), gpu_bytes, key=takes) - 1
""",
    ),
    (
        "most_parameters",
        """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    rounds, left = divmod(gpu_bytes, whole * ranks + shared)
    extra = 0 if left < shared else ((left - shared) // whole if whole else ranks)
    return rounds * ranks + min(extra, ranks)
""",
    ),
    (
        "name_the_peak",
        """
def name_the_peak(samples):
    totals = [sum(sample.values()) for sample in samples]
    at = max(range(len(samples)), key=totals.__getitem__)
    return at, max(samples[at], key=samples[at].get)
""",
    ),
    (
        "fewest_ranks",
        """
from fractions import Fraction
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    left = whole + shared - Fraction(factor) * whole
    return None if left <= 0 else -(-Fraction(factor) * shared // left)
""",
    ),
    (
        "fewest_ranks",
        """
from itertools import count
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if factor * whole >= whole + shared:
        return None
    return next(ranks for ranks in count(1) if (whole + shared) * ranks >= factor * (whole * ranks + shared))
""",
    ),
]


@pytest.mark.parametrize(("name", "source"), START)
def test_every_right_answer_to_lesson_00_passes(name: str, source: str) -> None:
    assert hint_for("00_start_here", name, source) == ""


def test_an_answer_may_define_a_dataclass() -> None:
    source = """
from dataclasses import dataclass
@dataclass
class Sizes:
    parameters: int
    ranks: int
    def shard(self):
        return -(-self.parameters // self.ranks)
def state_bytes(parameters, ranks, stage, recipe):
    shard = Sizes(parameters, ranks).shard()
    kinds = zip(("parameters", "gradients", "optimizer_states"), recipe, (3, 2, 1))
    return {kind: each * (shard if stage >= first else parameters) for kind, each, first in kinds}
"""
    assert hint_for("00_start_here", "state_bytes", source) == ""


FLAT = [
    (
        "flatten",
        """
def flatten(module, ranks, align):
    parameters = [*module.parameters()]
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = parameters[0].detach().new_zeros(length)
    with torch.no_grad():
        for start, parameter in zip(starts, parameters):
            place = row[start : start + parameter.numel()].view_as(parameter)
            place.copy_(parameter)
            parameter.set_(place)
    return row
""",
    ),
    (
        "average_gradients",
        """
from torch.nn.utils import parameters_to_vector, vector_to_parameters
def average_gradients(comm, parameters):
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    row = parameters_to_vector([parameter.grad for parameter in trained])
    comm.all_reduce(row, average=True)
    vector_to_parameters(row, [parameter.grad for parameter in trained])
""",
    ),
    (
        "reduce_overlapped",
        """
def reduce_overlapped(comm, numels, backward, limit):
    plan, means, sent, came = [], {}, [], {}
    for layer in reversed(range(len(numels))):
        if plan and sum(numels[other] for other in plan[-1]) + numels[layer] <= limit:
            plan[-1].append(layer)
        else:
            plan.append([layer])
    def ship(bucket):
        row = torch.cat([came.pop(layer, torch.zeros(numels[layer])) for layer in bucket])
        sent.append((bucket, comm.all_reduce_async(row)))
    for layer, gradient in backward:
        came[layer] = gradient.clone()
        while plan and layer <= plan[0][-1]:
            ship(plan.pop(0))
    for bucket in plan:
        ship(bucket)
    # Calls run in the order of their start, so the last to end is the last that began.
    for bucket, handle in reversed(sent):
        means.update(zip(bucket, (handle.wait() / comm.size).split([numels[layer] for layer in bucket])))
    return [means[layer] for layer in range(len(numels))]
""",
    ),
    (
        "culprit",
        """
from itertools import zip_longest
def culprit(calls):
    for index, made in enumerate(zip_longest(*calls)):
        usual = max(made, key=made.count)
        if made.count(usual) < len(made):
            return [call == usual for call in made].index(False), index
""",
    ),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "source"), FLAT)
def test_every_right_answer_to_lesson_02_passes(name: str, source: str, seed: int) -> None:
    assert hint_for("02_flat_buffers", name, source, seed) == ""


RING = [
    (
        "ring_reduce_scatter",
        """
def ring_reduce_scatter(comm, tensor):
    carry = chunk(tensor, comm.rank - 1, comm.size).clone()
    for step in range(2, comm.size + 1):
        mine = chunk(tensor, comm.rank - step, comm.size)
        arrived = torch.empty_like(mine)
        pass_on(comm, carry, arrived)
        carry = arrived.add_(mine)
    return carry
""",
    ),
    (
        "ring_all_gather",
        """
def ring_all_gather(comm, shard, numel):
    whole = torch.empty(numel, dtype=shard.dtype)
    leaving = shard
    for step in range(1, comm.size):
        arriving = chunk(whole, comm.rank - step, comm.size)
        pass_on(comm, leaving, arriving)
        leaving = arriving
    chunk(whole, comm.rank, comm.size).copy_(shard)
    return whole
""",
    ),
    (
        "ring_all_reduce",
        """
def ring_all_reduce(comm, tensor, average=False):
    whole = ring_all_gather(comm, ring_reduce_scatter(comm, tensor), tensor.numel())
    return whole.div_(comm.size) if average else whole
""",
    ),
    (
        "mended_broadcast",
        """
def mended_broadcast(comm, tensor, src):
    away = (comm.rank - src) % comm.size
    if away > 0:
        comm.irecv(tensor, (comm.rank - 1) % comm.size).wait()
    if away < comm.size - 1:
        comm.isend(tensor, (comm.rank + 1) % comm.size).wait()
    return tensor
""",
    ),
]


@pytest.mark.parametrize(("name", "source"), RING)
def test_every_right_answer_to_lesson_01_passes(name: str, source: str) -> None:
    assert hint_for("01_ring_collectives", name, source) == ""


ZERO_2 = [
    (
        "accumulate",
        """
def accumulate(comm, micro_batches, each):
    total = None
    for gradient in micro_batches if each else [sum(micro_batches)]:
        shard = comm.reduce_scatter(gradient, average=True)
        total = shard if total is None else total.add_(shard)
    return total / len(micro_batches)
""",
    ),
    (
        "MendedBackward",
        """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.shards = []
        for parameter in parameters:
            own = torch.empty(parameter.numel(), device="meta").tensor_split(comm.size)[comm.rank]
            self.shards.append(torch.zeros(len(own), dtype=parameter.dtype))
            parameter.register_post_accumulate_grad_hook(self.hook_for(comm, self.shards[-1]))

    def hook_for(self, comm, shard):
        def hook(parameter):
            whole, parameter.grad = parameter.grad.reshape(-1), None
            shard.add_(comm.reduce_scatter(whole, average=True))
        return hook
""",
    ),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "source"), ZERO_2)
def test_every_right_answer_to_lesson_04_passes(name: str, source: str, seed: int) -> None:
    assert hint_for("04_zero_2", name, source, seed) == ""


ZERO1 = [
    (
        "train_sharded",
        """
def train_sharded(comm, row, gradients):
    part = torch.nn.Parameter(row.tensor_split(comm.size)[comm.rank].clone())
    optimizer, whole = adam(part), row.clone()
    for gradient in gradients:
        part.grad = comm.reduce_scatter(gradient, average=True)
        optimizer.step()
        whole.copy_(comm.all_gather(part.detach(), row.numel()))
    return whole
""",
    ),
    (
        "train_grouped",
        """
def train_grouped(comm, row, gradients, groups):
    cuts = [0]
    for chunk in row.tensor_split(comm.size):
        cuts.append(cuts[-1] + chunk.numel())
    low, high = cuts[comm.rank : comm.rank + 2]
    jobs = []
    for start, stop, decay in groups:
        start, stop = max(start, low), min(stop, high)
        if start < stop:
            part = row[start:stop].clone()
            jobs.append((slice(start - low, stop - low), part, adam(part, decay)))
    for gradient in gradients:
        mean = comm.reduce_scatter(gradient, average=True)
        for where, part, optimizer in jobs:
            part.grad = mean[where].clone()
            optimizer.step()
    mine = torch.cat([part for _, part, _ in jobs]) if jobs else row[:0].clone()
    return comm.all_gather(mine, row.numel())
""",
    ),
]


@pytest.mark.parametrize(("exercise", "source"), ZERO1)
def test_every_right_way_to_shard_an_optimizer_passes(exercise: str, source: str) -> None:
    assert hint_for("03_zero_1", exercise, source) == ""


ZERO_3 = [
    (
        "forward",
        """
def forward(comm, shards, shapes, x):
    row = torch.empty(max(map(math.prod, shapes)))
    for index, (shard, shape) in enumerate(zip(shards, shapes)):
        layer = comm.all_gather(shard, out=row[: math.prod(shape)]).view(shape)
        x = (x.relu() if index else x) @ layer.t()
    return x
""",
    ),
    (
        "sharded_linear",
        """
from torch.utils.checkpoint import checkpoint
class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape):
        ctx.comm = comm
        return comm.all_gather(shard, math.prod(shape)).view(*shape)
    @staticmethod
    def backward(ctx, grad):
        return None, ctx.comm.reduce_scatter(grad.flatten(), average=True), None
def sharded_linear(comm, shard, shape, x):
    layer = lambda shard, x: F.linear(x, Gathered.apply(comm, shard, shape))
    return checkpoint(layer, shard, x, use_reentrant=False, preserve_rng_state=False)
""",
    ),
    (
        "prefetched",
        """
def prefetched(comm, shards, shapes, x, layer):
    rows = [torch.empty(max(map(math.prod, shapes))) for _ in range(2)]
    start = lambda index: comm.all_gather_async(shards[index], out=rows[index % 2][: math.prod(shapes[index])])
    coming = start(0)
    for index, shape in enumerate(shapes):
        weight = coming.wait().view(shape)
        coming = start(index + 1) if index + 1 < len(shapes) else None
        x = layer(x, weight)
    return x
""",
    ),
    (
        "Persistent",
        """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.kept, self.wholes = [], []
        for tensor in tensors:
            cut = tensor.numel() >= threshold
            part = tensor.flatten().tensor_split(comm.size)[comm.rank] if cut else tensor
            self.kept.append(part.clone())
            self.wholes.append(self.way(comm, self.kept[-1], tensor.shape, cut))
    def way(self, comm, part, shape, cut):
        return lambda: comm.all_gather(part, shape.numel()).view(shape) if cut else part
    def whole(self, index):
        return self.wholes[index]()
""",
    ),
    (
        "step_bytes",
        """
def step_bytes(units, ranks, micro_batches, checkpointing):
    total, reached = 0, False
    for numel, trains in units:
        reached = reached or trains
        total += numel // ranks * (ranks - 1) * 4 * (1 + reached + trains)
    return total * micro_batches
""",
    ),
]


@pytest.mark.parametrize(("name", "source"), ZERO_3)
def test_every_right_answer_to_lesson_05_passes(name: str, source: str) -> None:
    assert hint_for("05_zero_3", name, source) == ""
