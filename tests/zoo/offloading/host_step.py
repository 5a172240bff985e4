"""Answers to `host_step` of lesson 07, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("07_offloading", "host_step")
STRAIGHT = """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    mine = row.tensor_split(comm.size)[comm.rank]
    mine.copy_(host["main"])
    comm.all_gather(mine, out=row)
"""

WRONG = [
    blank("host_step"),
    Wrong("does nothing",
          "def host_step(comm, row, gradient, host, step):\n    pass",
          "does adamw() run"),
    Wrong("sum for mean",
          changed(MODEL, ", average=True", ""),
          "take their mean"),
    Wrong("divides twice",
          changed(MODEL, "average=True)", "average=True) / comm.size"),
          "divided by N twice"),
    Wrong("own gradients",
          changed(MODEL,
                  "comm.reduce_scatter(gradient, average=True)",
                  "gradient.tensor_split(comm.size)[comm.rank]"),
          "nothing was added to them"),
    Wrong("forgets to send the gradient down",
          changed(MODEL,
                  'host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))',
                  "comm.reduce_scatter(gradient, average=True)"),
          "before anybody writes there"),
    Wrong("replaces the gradient",
          changed(MODEL,
                  ".copy_(comm.reduce_scatter(gradient, average=True))",
                  " = comm.reduce_scatter(gradient, average=True).float()"),
          "in the place of gradient"),
    Wrong("always the first step",
          changed(MODEL, "(host, step)", "(host, 1)"),
          "hand `step` on"),
    Wrong("main parameters from the row",
          changed(MODEL, "adamw(host, step)", 'host["main"].copy_(shard)\n    adamw(host, step)'),
          "went through 16 bits"),
    Wrong("does not bring them back",
          changed(MODEL, '    shard.copy_(host["main"])\n', ""),
          "go from the host back into it"),
    Wrong("does not gather",
          changed(MODEL, "    comm.all_gather(shard, out=row)\n", ""),
          "its own shard alone is new"),
    Wrong("gathers too early",
          changed(MODEL,
                  'shard.copy_(host["main"])\n    comm.all_gather(shard, out=row)',
                  'comm.all_gather(shard, out=row)\n    shard.copy_(host["main"])'),
          "a step behind"),
    Wrong("gathers before it copies",
          changed(MODEL, '    shard.copy_(host["main"])\n', ""),
          "as it began: new"),
    Wrong("rank 0's shard of everything",
          changed(MODEL,
                  "reduce_scatter(gradient, average=True)",
                  "all_reduce(gradient.clone(), average=True).tensor_split(comm.size)[0][:len(shard)]"),
          "rank 0's shard gives"),
    Wrong("only rank 0 updates",
          changed(MODEL, "adamw(host, step)", "if comm.rank == 0:\n        adamw(host, step)"),
          "rank 1 ends with the states as they began"),
    Wrong("returns the row",
          changed(MODEL, "(shard, out=row)\n", "(shard, out=row)\n    return row\n"),
          "it returns something"),
    Wrong("halves the gradient in place",
          changed(MODEL, ", average=True", ".div_(comm.size)"),
          "it overwrote"),
    Wrong("32 bits up",
          changed(MODEL,
                  'shard.copy_(host["main"])\n    comm.all_gather(shard, out=row)',
                  'row.copy_(comm.all_gather(host["main"], row.numel()))'),
          "what travels with 32"),
    Wrong("32 bits both ways", """
def host_step(comm, row, gradient, host, step):
    shard = row.tensor_split(comm.size)[comm.rank]
    host["gradient"].copy_(comm.reduce_scatter(gradient.float(), average=True))
    adamw(host, step)
    row.copy_(comm.all_gather(host["main"], row.numel()))
""", "both ways have 32 bits"),
    Wrong("all-reduce",
          changed(MODEL,
                  "reduce_scatter(gradient, average=True)",
                  "all_reduce(gradient.clone(), average=True).tensor_split(comm.size)[comm.rank]"),
          "gradients that nobody uses"),
    Wrong("a barrier",
          changed(MODEL, "(shard, out=row)\n", "(shard, out=row)\n    comm.broadcast(row[:0], src=0)\n"),
          "two calls a step"),
    Wrong("updates on the device", """
def host_step(comm, row, gradient, host, step):
    shard = row.tensor_split(comm.size)[comm.rank]
    device = {name: state.clone() for name, state in host.items()}
    device["gradient"] = comm.reduce_scatter(gradient, average=True).float()
    adamw(device, step)
    for name in host:
        host[name].copy_(device[name])
    shard.copy_(device["main"])
    comm.all_gather(shard, out=row)
""", "what is made in 32 bits"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("the mean in 32 bits on the device", """
def host_step(comm, row, gradient, host, step):
    mean = comm.reduce_scatter(gradient, average=True).float()
    host["gradient"].copy_(mean)
    del mean
    adamw(host, step)
    shard = row.tensor_split(comm.size)[comm.rank]
    shard.copy_(host["main"])
    comm.all_gather(shard, out=row)
""", "the worst moment, beside the row and the gradient: 6,144, and the target is at most 4,128"),
    Wrong("gradients add up",
          changed(STRAIGHT, '"].copy_', '"].add_'),
          "nothing of use does, so write over it"),
    Wrong("step off by one",
          changed(STRAIGHT, "(host, step)", "(host, step + 1)"),
          "if steps count from 2"),
    Wrong("truncates instead of rounding",
          changed(STRAIGHT,
                  'mine.copy_(host["main"])',
                  'mine.view(torch.int16).copy_(host["main"].view(torch.int32) >> 16)'),
          "whose last bits were cut off"),
    Wrong("fp16 on the way", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    row.copy_(comm.all_gather(host["main"].half(), len(row)))
""", "that went through fp16"),
    # Passed once, or got a hint that named no fault.
    Wrong("adamw first",
          changed(changed(MODEL,
                          'host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))',
                          "mean = comm.reduce_scatter(gradient, average=True)"),
                  "shard.",
                  'host["gradient"].copy_(mean)\n    shard.'),
          "the gradient of the step before"),
    Wrong("first step only zeroes",
          changed(MODEL,
                  'host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))',
                  "if step == 1:\n"
                  '        host["gradient"].zero_()\n'
                  '    host["gradient"] += comm.reduce_scatter(gradient, average=True)'),
          "the gradients of all steps so far"),
    # Fail at an edge alone, or in a second step.
    Wrong("main parameters rounded after a step",
          changed(STRAIGHT, '(host["main"])\n', '(host["main"])\n    host["main"].copy_(mine)\n'),
          "are rounded to 16 bits after a step"),
    Wrong("the first gradient in both steps",
          changed(changed(STRAIGHT,
                          'host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))',
                          "mean = comm.reduce_scatter(gradient, average=True)\n"
                          "    if step == 1:\n"
                          '        host["gradient"].copy_(mean)'),
                  "mine = row",
                  'host["gradient"].copy_(mean)\n    mine = row'),
          "what the first gradient gives in each step"),
    Wrong("adds to the gradient, and clears it afterwards",
          changed(changed(STRAIGHT,
                          '"].copy_',
                          '"].add_'),
                  "mine = row",
                  'host["gradient"].zero_()\n    mine = row'),
          "at the beginning: write over it"),
    Wrong("the gradient's shard is held until the end", """
def host_step(comm, row, gradient, host, step):
    mean = comm.reduce_scatter(gradient, average=True)
    host["gradient"].copy_(mean)
    adamw(host, step)
    fresh = host["main"].to(torch.bfloat16)
    comm.all_gather(fresh, out=row)
""", "shard still there when the parameters' is made"),
]  # fmt: skip

RIGHT = [
    Right("straight", STRAIGHT),
    Right("divided on the host", """
def host_step(comm, row, gradient, host, step):
    shard = comm.reduce_scatter(gradient)
    host["gradient"].copy_(shard)
    host["gradient"] /= comm.size
    del shard
    adamw(host, step)
    own = row.tensor_split(comm.size)[comm.rank]
    own[:] = host["main"]
    comm.all_gather(own, row.numel(), out=row)
"""),
    Right("a new shard of 16 bits", """
def host_step(comm, row, gradient, host, step):
    mean = comm.reduce_scatter(gradient, average=True)
    host["gradient"][...] = mean
    adamw(host, step)
    mean.copy_(host["main"])
    comm.all_gather(mean, out=row)
"""),
    Right("reduced into the row's own place", """
def host_step(comm, row, gradient, host, step):
    place = torch.tensor_split(row, comm.size)[comm.rank]
    comm.reduce_scatter(gradient, average=True, out=place)
    host["gradient"].copy_(place)
    adamw(host, step)
    place.copy_(host["main"])
    comm.all_gather(place, out=row)
"""),
    Right("bfloat16() and all_gather", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    comm.all_gather(host["main"].bfloat16(), out=row)
"""),
    Right("narrow and set_ of data", """
def host_step(comm, row, gradient, host, step):
    handle = comm.reduce_scatter_async(gradient, average=True)
    arrived = host["gradient"]
    arrived.data.copy_(handle.wait())
    adamw(host, step)
    for rank, piece in enumerate(row.tensor_split(comm.size)):
        if rank == comm.rank:
            piece.data.copy_(host["main"])
            mine = piece
    comm.all_gather_async(mine, out=row).wait()
"""),
    Right("methods load and save", """
class Host:
    def __init__(self, comm, row, host):
        self.comm, self.row, self.host = comm, row, host
        self.own = row.tensor_split(comm.size)[comm.rank]
    def load(self, gradient):
        arrived = self.comm.reduce_scatter(gradient, average=True)
        self.host["gradient"].copy_(arrived, non_blocking=True)
    def save(self):
        self.own.copy_(self.host["main"], non_blocking=True)
        self.comm.all_gather(self.own, out=self.row)
def host_step(comm, row, gradient, host, step):
    it = Host(comm, row, host)
    it.load(gradient)
    adamw(host, step)
    it.save()
"""),
    Right("zero and add, slices by offsets", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].zero_()
    host["gradient"].add_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    start = sum(len(part) for part in row.tensor_split(comm.size)[: comm.rank])
    own = row.narrow(0, start, len(host["main"]))
    own[...] = host["main"]
    comm.all_gather(own, numel=len(row), out=row)
"""),
    Right("gathers a fresh cast", """
def host_step(comm, row, gradient, host, step):
    down = comm.reduce_scatter(gradient, average=True)
    for name in ["gradient"]:
        host[name].copy_(down)
    adamw(host, step)
    del down
    up = host["main"].to(row.dtype)
    comm.all_gather(up, out=row)
"""),
    # Careful with what is under way.
    Right("async handles", """
def host_step(comm, row, gradient, host, step):
    arriving = comm.reduce_scatter_async(gradient, average=True)
    host["gradient"][:] = arriving.wait()
    adamw(host, step)
    sizes = [len(part) for part in row.tensor_split(comm.size)]
    mine = row.split(sizes)[comm.rank]
    mine[...] = host["main"]
    comm.all_gather_async(mine, out=row).wait()
"""),
    Right("sum halved on the host by mul", """
def host_step(comm, row, gradient, host, step):
    host["gradient"].copy_(comm.reduce_scatter(gradient)).div_(comm.size)
    adamw(host, step)
    comm.all_gather(host["main"].to(row.dtype), numel=row.numel(), out=row)
"""),
    # Have to hold at the edges.
    Right("reduces into the row's own shard", """
def host_step(comm, row, gradient, host, step):
    mine = torch.tensor_split(row, comm.size)[comm.rank]
    comm.reduce_scatter(gradient, average=True, out=mine)
    host["gradient"][:] = mine
    adamw(host, step)
    mine[:] = host["main"]
    comm.all_gather_async(mine, out=row).wait()
"""),
]  # fmt: skip
