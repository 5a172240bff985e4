"""Wrong answers to the exercises of lesson 05 that passed once, since nothing drawn told them from right ones."""

from zoo.wrong import Wrong, changed
from zoo.zero3 import FORWARD, TRAINS
from zoo.zero3_plans import COST, PERSISTENT, TRACE

ZOO = [
    Wrong("single precision", "forward",
          changed(FORWARD, "x = F.linear(x, whole", "x = F.linear(x.float(), whole.float()"),
          "torch.float32, not torch."),
    Wrong("gathers in single precision", "forward",
          changed(FORWARD, "whole = comm.all_gather(shard, math.prod(shape))",
                  "whole = comm.all_gather(shard.float(), math.prod(shape)).to(shard.dtype)"),
          "what goes through float32?"),
    Wrong("a copy of the layer", "forward", changed(FORWARD, "whole.view(*shape)", "whole.view(*shape).clone()"),
          "whole layers at once, at most: 2"),

    Wrong("single precision on the way", "sharded_linear",
          changed(TRAINS, "(grad.t() @ x).flatten(), average=True)",
                  "(grad.float().t() @ x.float()).flatten(), average=True).to(shard.dtype)"),
          "what goes through float32?"),
    Wrong("sets shard.grad itself", "sharded_linear",
          changed(TRAINS, "return None, of_shard, None, of_x",
                  "shard.grad = of_shard\n        return None, None, None, of_x"),
          "of the last micro-batch alone"),
    Wrong("inputs' gradients averaged", "sharded_linear",
          changed(TRAINS, "None, of_x", "None, ctx.comm.all_reduce(of_x, average=True)"),
          "added up over the ranks: an input is this rank's alone"),

    Wrong("one row for all layers", "prefetched", """
def prefetched(comm, shards, shapes, x, layer):
    row = torch.empty(max(map(math.prod, shapes)), dtype=shards[0].dtype)
    start = lambda index: comm.all_gather_async(shards[index], out=row[: math.prod(shapes[index])])
    coming = start(0)
    for index, shape in enumerate(shapes):
        whole = coming.wait().view(shape)
        coming = start(index + 1) if index + 1 < len(shapes) else None
        x = layer(x, whole)
    return x
""", "memory that a gather under way writes to"),

    Wrong("another dtype", "Persistent", changed(PERSISTENT, ".clone()", ".clone().float()"),
          "torch.float32, not torch."),
    Wrong("by memory, not by rows", "Persistent",
          changed(PERSISTENT, "tensor.flatten()", "torch.as_strided(tensor, (tensor.numel(),), (1,))"),
          "in the order in which they lie in memory"),
    Wrong("whole by its shape", "Persistent",
          changed(PERSISTENT, "if shape.numel() < self.threshold", "if self.kept[index].shape == shape"),
          "is gathered each time"),
    Wrong("a view of rows", "Persistent", changed(PERSISTENT, "tensor.flatten()", "tensor.view(-1)"),
          "view size is not compatible"),
    Wrong("bytes", "Persistent",
          changed(PERSISTENT, "shape.numel() < self.threshold",
                  "shape.numel() * self.kept[index].itemsize < self.threshold")
          .replace("tensor.numel() < self.threshold", "tensor.nbytes < self.threshold"), "you count bytes"),
    Wrong("a list of the class", "Persistent", """
class Persistent:
    kept, shapes = [], []

    def __init__(self, comm, tensors, threshold):
        self.comm, self.threshold = comm, threshold
        for tensor in tensors:
            small = tensor.numel() < threshold
            self.shapes.append(tensor.shape)
            self.kept.append(tensor if small else tensor.flatten().tensor_split(comm.size)[comm.rank].clone())

    def whole(self, index):
        shape, part = self.shapes[index], self.kept[index]
        return part if shape.numel() < self.threshold else self.comm.all_gather(part, shape.numel()).view(shape)
""", "`kept` belongs to the class, and all share it"),
    Wrong("what is left of one budget", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        self.comm, self.kept, self.shapes, self.cut, left = comm, [], [], [], threshold
        for tensor in tensors:
            self.shapes.append(tensor.shape)
            self.cut.append(tensor.numel() >= left)
            left -= 0 if self.cut[-1] else tensor.numel()
            self.kept.append(tensor.flatten().tensor_split(comm.size)[comm.rank].clone() if self.cut[-1] else tensor)

    def whole(self, index):
        shape, part = self.shapes[index], self.kept[index]
        return self.comm.all_gather(part, shape.numel()).view(shape) if self.cut[index] else part
""", "the threshold is no budget for all"),

    Wrong("a fraction in between", "step_bytes",
          changed(COST, "return micro_batches * 4 * (forth + back + reduced) // ranks * (ranks - 1)",
                  "return int(micro_batches * 4 * (forth + back + reduced) * (ranks - 1) / ranks)"),
          "a fraction in between is rounded"),
    Wrong("forward once a step", "step_bytes",
          changed(COST, "return micro_batches * 4 * (forth + back + reduced) //",
                  "return 4 * (forth + micro_batches * (back + reduced)) //"), "gather once a step for forward"),
    Wrong("backward once a step", "step_bytes",
          changed(COST, "return micro_batches * 4 * (forth + back + reduced) //",
                  "return 4 * (back + micro_batches * (forth + reduced)) //"), "gather once a step for backward"),
    Wrong("no frozen unit in backward", "step_bytes",
          changed(COST, "for numel, _ in units[first:]", "for numel, trains in units[first:] if trains"),
          "the gradient passes through it"),
    Wrong("frozen gradients from the first on", "step_bytes",
          changed(COST, "for numel, trains in units if trains", "for numel, _ in units[first:]"),
          "also between two that train"),
    Wrong("two bytes", "step_bytes",
          changed(COST, "micro_batches * 4", "micro_batches * 2"), "You counted 2 bytes each"),

    Wrong("forgives a use before the gather", "explain_trace",
          changed(TRACE, "here.add(unit)", "here.add(unit)\n            away.discard(unit)"),
          "used while away, and it is ['a']"),
    Wrong("looks at uses", "explain_trace",
          changed(TRACE, """        elif unit not in here:
            away.add(unit)
        most = max(most, len(here))
    return most""", """        else:
            most = max(most, len(here))
            away |= {unit} - here
    return max(most, len(here))"""), "need not be one in which something is used"),
    Wrong("sets without an order", "explain_trace",
          changed(TRACE, "sorted(here), sorted(away)", "list(here), list(away)"),
          "in the order of the alphabet"),
    Wrong("subtracts what was away", "explain_trace", """
def explain_trace(trace):
    here, away, count, most = set(), set(), 0, 0
    for event, unit in trace:
        if event == "gather":
            count += unit not in here
            here.add(unit)
        elif event == "release":
            count -= 1
            here.discard(unit)
        elif unit not in here:
            away.add(unit)
        most = max(most, count)
    return most, sorted(here), sorted(away)
""", "so nothing is subtracted for it"),
    Wrong("as many releases as gathers", "explain_trace", """
def explain_trace(trace):
    here, away, count, most = set(), set(), {}, 0
    for event, unit in trace:
        if event == "use" and unit not in here:
            away.add(unit)
        count[unit] = count.get(unit, 0) + (event == "gather") - (event == "release")
        here = here | {unit} if event == "gather" else here - {unit} if event == "release" else here
        most = max(most, len(here))
    return most, sorted(unit for unit in count if count[unit] > 0), sorted(away)
""", "one release sends it away"),
]  # fmt: skip

RELEASED = """
def forward(comm, shards, shapes, x):
    for index, (shard, shape) in enumerate(zip(shards, shapes)):
        layer = comm.all_gather(shard, math.prod(shape)).view(shape)
        layer.untyped_storage().resize_(0)
        x = (x[:, None] * layer).sum(2)
    return x
"""
"""Released too early: an elementwise product reads memory that is not there, and the process may die of it."""
