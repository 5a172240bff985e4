"""Wrong answers to the exercises of lesson 04 whose hints once spoke of another fault, and some that keep something
between calls."""

from zoo.wrong import Wrong, changed
from zoo.zero2 import ACCUMULATE, IN_FLIGHT, IN_TIME, MENDED
from zoo.zero2_norm import CLIP

TAIL = "    return shards + [handle.wait() for handle in under_way]\n"
HEAD = "limit):\n    under_way, shards = [], []"
SCALE = "            gradient.mul_(limit / norm)"
BUILD = "    def __init__(self, comm, parameters):\n"

HINTS = [
    Wrong("drops a gradient of the inputs", "shards_in_time",
          changed(IN_TIME, "inputs.detach()", "inputs")
          .replace("    for hook", "    inputs.grad = None\n    for hook"), "that gradient was the caller's"),

    Wrong("empty shards at once", "in_flight",
          changed(IN_FLIGHT, "gradients:\n", "gradients:\n        if not gradient.numel():\n"
                  "            shards.append(gradient)\n            continue\n"),
          "without elements too early"),
    Wrong("no call for empty gradients", "in_flight", """
def in_flight(comm, gradients, limit):
    under_way, shards = [], {}
    for index, gradient in enumerate(gradients):
        shards[index] = gradient
        if not len(gradient):
            continue
        if len(under_way) == limit:
            oldest, handle = under_way.pop(0)
            shards[oldest] = handle.wait()
        under_way.append((index, comm.reduce_scatter_async(gradient, average=True)))
        shards[index] = None
    shards |= {index: handle.wait() for index, handle in under_way}
    return list(shards.values())
""", "one without elements needs a call, too"),
    Wrong("asks whether it has arrived", "in_flight", """
def in_flight(comm, gradients, limit):
    under_way, shards = [], []
    for gradient in gradients:
        while len(under_way) == limit:
            if under_way[0].arrived():
                shards.append(under_way.pop(0).wait())
        under_way.append(comm.reduce_scatter_async(gradient, average=True))
    return shards + [handle.wait() for handle in under_way]
""", "it says neither yes nor no"),
    Wrong("takes what has arrived", "in_flight", changed(IN_FLIGHT, ".wait())", ".arrived())"),
          "arrived() blocks, returns the result, and does not end a call"),
    Wrong("the last ones the newest first", "in_flight", changed(IN_FLIGHT, "in under_way]", "in under_way[::-1]]"),
          "the last calls with the newest first"),

    Wrong("norms travel in single precision", "clip_", CLIP.replace("own.view(1))", "own.view(1).float()).double()"),
          "neither is what travels"),
    Wrong("returns the limit", "clip_", changed(CLIP, SCALE, SCALE + "\n        return limit"), "That is the limit"),

    Wrong("a scratch for each parameter", "MendedBackward",
          changed(MENDED, "parameter.grad.flatten(),", "self.scratch[index].copy_(parameter.grad.flatten()),")
          .replace("self.comm = comm", "self.comm = comm\n"
                   "        self.scratch = [torch.empty_like(each.detach()).flatten() for each in parameters]"),
          "made before any backward"),
    Wrong("room for each next shard", "MendedBackward",
          changed(MENDED, "average=True)", "average=True, out=self.room[index])")
          .replace("self.comm = comm", "self.comm = comm\n        self.room = [torch.empty_like(each.detach().flatten()"
                   ".tensor_split(comm.size)[comm.rank]) for each in parameters]")
          .replace("= shard if", "= shard.clone() if"), "nor is room for the next one"),
    Wrong("a list of the class", "MendedBackward",
          changed(MENDED, BUILD, "    shards = []\n\n" + BUILD)
          .replace("self.shards = [None] * len(parameters)", "self.shards.extend([None] * len(parameters))"),
          "items: `shards` belongs to the class"),
]  # fmt: skip
KEPT = [
    Wrong("a default list of shards", "in_flight",
          changed(IN_FLIGHT, HEAD, "limit, shards=[]):\n    under_way = []"), "things, not "),
    Wrong("a default list that it returns", "in_flight",
          changed(IN_FLIGHT, HEAD, "limit, out=[]):\n    under_way, shards = [], out")
          .replace(TAIL, "    out.extend(handle.wait() for handle in under_way)\n    return out\n"),
          "by itself the same call is right"),
    Wrong("a default list of sizes", "clip_",
          changed(CLIP, "norm_type):\n", "norm_type, sizes_used=[]):\n    sizes_used += used\n")
          .replace("zip(shards, used, strict=True)", "zip(shards, sizes_used)"), "after another call (on "),
    Wrong("a default list of what came", "accumulate",
          changed(ACCUMULATE, "each):\n", "each, seen=[]):\n    seen.extend(micro_batches)\n")
          .replace("len(micro_batches)", "len(seen)"), "after another call (on "),
    Wrong("a default sum of shards", "accumulate", """
def accumulate(comm, micro_batches, each, out=[]):
    if not each:
        return comm.reduce_scatter(sum(micro_batches), average=True) / len(micro_batches)
    for gradient in micro_batches:
        shard = comm.reduce_scatter(gradient, average=True)
        out[:] = [out[0] + shard] if out else [shard]
    return out[0] / len(micro_batches)
""", "by itself the same call is right"),
    Wrong("a default sum of wholes", "accumulate",
          changed(ACCUMULATE, "each):\n", "each, wholes=[]):\n")
          .replace("        total = comm.reduce_scatter(whole, average=True)",
                   "        wholes.append(whole)\n        total = comm.reduce_scatter(wholes[0], average=True)"),
          "each=False"),
]  # fmt: skip
ZOO = [*HINTS, *KEPT]
