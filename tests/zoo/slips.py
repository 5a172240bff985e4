"""Wrong answers to lessons 00 to 03 that are one slip away from right, by lesson."""

from zoo.flat import flatten
from zoo.flat_travel import OVERLAPPED as REDUCED
from zoo.flat_travel import average, overlapped
from zoo.start import CHOOSE, FEWEST, MOST, PEAK, STATES
from zoo.wrong import Wrong, changed
from zoo.zero1 import SHARDED
from zoo.zero1_numbers import COST
from zoo.zero1_step import OVERLAPPED


def choose(name: str, old: str, new: str, hint: str) -> Wrong:
    """An answer that makes its own `state_bytes`, or asks it something else."""
    return Wrong(name, "choose_stage", changed(STATES + CHOOSE, old, new), hint)


def without(kind: str) -> Wrong:
    heights = changed(PEAK, "sum(sample.values())", f'sum(n for kind, n in sample.items() if kind != "{kind}")')
    return Wrong(f"without {kind}", "name_the_peak", heights, f"of all kinds but {kind} it is the highest")


START = [
    choose("a byte of tolerance", "<= gpu_bytes", "<= gpu_bytes + 1", "allow none"),
    choose("all ranks on one GPU", "if sum(", "if ranks * sum(", "together keep"),
    choose("shares gradients out at stage 1", "stage >= 2", "stage >= 1", "are these your bytes at stage 1"),
    choose("never shares parameters out", "stage >= 3", "stage > 3", "are parameters shared out there"),
    Wrong("more than the factor", "fewest_ranks",
          changed(FEWEST, "math.ceil(factor * shared / left)", "int(factor * shared // left) + 1"),
          "is it > where >= is due?"),
    *map(without, ("optimizer_states", "gradients", "activations", "other")),
    Wrong("without parameters", "name_the_peak",
          changed(PEAK, "sum(sample.values())", 'sum(n for kind, n in sample.items() if kind != "parameters")'),
          "does your sum leave out a kind?"),
    Wrong("names no activations", "name_the_peak",
          changed(PEAK, "max(samples[at],", "max((kind for kind in samples[at] if kind != 'activations'),"),
          "and another kind has"),
    Wrong("at least one", "most_parameters", changed(MOST, "return fits", "return max(1, fits)"),
          "0 is the answer"),
]  # fmt: skip

BROADCAST = """
def mended_broadcast(comm, tensor, src):
    if comm.rank != src:
        came = comm.recv(torch.empty_like(tensor), (comm.rank - 1) % comm.size)
        tensor.copy_(came)
    if (comm.rank + 1) % comm.size != src:
        comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
"""
RING = [
    Wrong("keeps its own where zeros come", "mended_broadcast",
          changed(BROADCAST, "tensor.copy_(came)", "tensor[came != 0] = came[came != 0]"), "zeros are numbers"),
    Wrong("the first row", "mended_broadcast",
          changed(BROADCAST, "tensor.copy_(came)", "tensor[:1] = came[:1]"), "the first row alone of what came"),
    Wrong("cuts bytes", "ring_bytes",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return 2 * (ranks - 1) * numel * itemsize // ranks",
          "are not whole elements of"),
    Wrong("rounds chunks up", "ring_bytes",
          "def ring_bytes(numel, itemsize, ranks, rank):\n    return 2 * (ranks - 1) * -(-numel // ranks) * itemsize",
          "You say the same for each rank"),
]  # fmt: skip

AT_ONCE = """
def flatten(module, ranks, align):
    parameters = list(module.parameters())
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = torch.zeros(length, dtype=parameters[0].dtype)
    copies = [parameter.data.reshape(-1) for parameter in parameters]
    for start, parameter, copy in zip(starts, parameters, copies):
        part = row[start : start + parameter.numel()]
        part.copy_(copy)
        parameter.data = part.view(parameter.shape)
    return row
"""
WIDER = """
def flatten(module, ranks, align):
    parameters = list(module.parameters())
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = torch.zeros(length, dtype=torch.float64)
    for start, parameter in zip(starts, parameters):
        row[start : start + parameter.numel()] = parameter.data.reshape(-1)
    row = row.to(parameters[0].dtype)
    for start, parameter in zip(starts, parameters):
        parameter.data = row[start : start + parameter.numel()].view(parameter.shape)
    return row
"""
WRITE = "        parameter.grad = part.view_as(parameter)\n"
FLAT = [
    Wrong("copies of all at once", "flatten", AT_ONCE, "Copies of all weights at once"),
    Wrong("a row in float64 first", "flatten", WIDER, "are, or a row in another dtype"),
    flatten("values by way of float32", "place.copy_(parameter.detach())", "place.copy_(parameter.detach().float())",
            "what goes through float32?"),
    average("zeros for the frozen", WRITE, WRITE + "    for p in parameters:\n"
            "        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n",
            "a gradient of zeros for a frozen parameter"),
    average("none where the mean is zero", WRITE,
            WRITE + "        parameter.grad = parameter.grad if part.any() else None\n",
            "no gradient where the mean is zero: it"),
    average("none where the mean is zero, but for the empty", WRITE,
            WRITE + "        parameter.grad = parameter.grad if part.any() or not part.numel() else None\n",
            "no gradient where the mean is zero, and it"),
    overlapped("all but the last handle", "    for handle in handles:", "    for handle in handles[:-1]:",
               "was its handle waited for?"),
    Wrong("an empty layer beside one above the limit", "reduce_overlapped",
          changed(REDUCED, "if buckets[-1] and", "if buckets[-1] and numels[layer] and"), "and [4, 30, 0] are due"),
]  # fmt: skip

UPDATE = "        update(shard, reduction.wait())\n        gathers.append(comm.all_gather_async(shard, out=row))\n"
MEAN, GATHER = "comm.reduce_scatter(gradient(row), average=True)", "comm.all_gather(shard, out=row)"
ZERO1 = [
    Wrong("gathers, then updates", "step_overlapped",
          changed(OVERLAPPED, UPDATE, "        mean = reduction.wait()\n"
                  "        gathers.append(comm.all_gather_async(shard, out=row))\n        update(shard, mean)\n"),
          "update first, then start the gather"),
    Wrong("updates what is being reduced", "step_overlapped", '''
def step_overlapped(comm, rows, gradients, update):
    rows, gathers = [row.clone() for row in rows], []
    means = [gradient.tensor_split(comm.size)[comm.rank].clone() for gradient in gradients]
    for gradient, mean in zip(gradients, means):
        comm.reduce_scatter_async(gradient, average=True, out=mean)
    for row, mean in zip(rows, means):
        shard = row.tensor_split(comm.size)[comm.rank]
        update(shard, mean)
        gathers.append(comm.all_gather_async(shard, out=row))
    return [gather.wait() for gather in gathers]
''', "wait first, then update"),
    Wrong("updates the whole row", "step_overlapped",
          changed(OVERLAPPED, "update(shard, reduction.wait())",
                  "mean = torch.zeros_like(row)\n"
                  "        mean.tensor_split(comm.size)[comm.rank].copy_(reduction.wait())\n"
                  "        update(row, mean)"), "a rank updates its own shard alone"),
    Wrong("broadcasts each shard", "train_sharded",
          changed(SHARDED, GATHER,
                  "[comm.broadcast(part, src=r) for r, part in enumerate(row.tensor_split(comm.size))]"),
          "a broadcast passes each shard on"),
    Wrong("gathers the gradients", "train_sharded",
          changed(SHARDED, MEAN,
                  "comm.all_gather(gradient(row)).view(comm.size, -1).mean(0).tensor_split(comm.size)[comm.rank]"),
          "which collective adds them up on the way?"),
    Wrong("four ranks", "train_sharded",
          changed(SHARDED, MEAN, "comm.reduce_scatter(gradient(row)) / 4"),
          "divided by 4 on any number of ranks"),
    Wrong("two ranks", "train_sharded",
          changed(SHARDED, MEAN, "comm.reduce_scatter(gradient(row)) / 2"),
          "divided by 2 on any number of ranks"),
    Wrong("two bytes", "step_bytes", changed(COST, "halves * 4", "halves * 2"), "You took 2 bytes for a number"),
]  # fmt: skip
