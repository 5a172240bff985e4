"""Wrong steps and walks of lesson 07."""

from zoo import offload_mended
from zoo.wrong import Wrong, blank, changed

STEP = """
def host_step(comm, row, gradient, host, step):
    shard = row.tensor_split(comm.size)[comm.rank]
    host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))
    adamw(host, step)
    shard.copy_(host["main"])
    comm.all_gather(shard, out=row)
"""
WALK = """
def overlapped_walk(groups, buffers, read, compute, write):
    from functools import partial
    reads, writes = {}, {}

    def begin(k):
        reads[k] = read(k, k % buffers)

    for k in range(min(groups, buffers)):
        begin(k)
    for k in range(groups):
        if k >= buffers:
            writes[k - buffers].wait()
        reads[k].wait()
        compute(k, k % buffers)
        writes[k] = write(k, k % buffers)
        if k + buffers < groups:
            writes[k].then(partial(begin, k + buffers))
    for writing in writes.values():
        writing.wait()
"""
BACK = '    shard.copy_(host["main"])\n'
ALL = "    comm.all_gather(shard, out=row)\n"

STEPS = [
    blank("host_step"),
    Wrong("does nothing", "host_step", "def host_step(comm, row, gradient, host, step):\n    pass",
          "does adamw() run"),
    Wrong("sum for mean", "host_step", changed(STEP, ", average=True", ""), "take their mean"),
    Wrong("divides twice", "host_step", changed(STEP, "average=True)", "average=True) / comm.size"),
          "divided by N twice"),
    Wrong("own gradients", "host_step",
          changed(STEP, "comm.reduce_scatter(gradient, average=True)", "gradient.tensor_split(comm.size)[comm.rank]"),
          "nothing was added to them"),
    Wrong("forgets to send the gradient down", "host_step",
          changed(STEP, 'host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))',
                  "comm.reduce_scatter(gradient, average=True)"),
          "before anybody writes there"),
    Wrong("replaces the gradient", "host_step",
          changed(STEP, 'host["gradient"].copy_(comm.reduce_scatter(gradient, average=True))',
                  'host["gradient"] = comm.reduce_scatter(gradient, average=True).float()'),
          "in the place of gradient"),
    Wrong("always the first step", "host_step", changed(STEP, "adamw(host, step)", "adamw(host, 1)"),
          "hand `step` on"),
    Wrong("main parameters from the row", "host_step",
          changed(STEP, "    adamw(", '    host["main"].copy_(shard)\n    adamw('), "went through 16 bits"),
    Wrong("does not bring them back", "host_step", changed(STEP, BACK, ""), "go from the host back into it"),
    Wrong("does not gather", "host_step", changed(STEP, ALL, ""), "its own shard alone is new"),
    Wrong("gathers too early", "host_step", changed(STEP, BACK + ALL, ALL + BACK), "a step behind"),
    Wrong("gathers before it copies", "host_step", changed(STEP, BACK + ALL, ALL), "as it began: new"),
    Wrong("rank 0's shard of everything", "host_step",
          changed(STEP, "comm.reduce_scatter(gradient, average=True)",
                  "comm.all_reduce(gradient.clone(), average=True).tensor_split(comm.size)[0][:len(shard)]"),
          "rank 0's shard gives"),
    Wrong("only rank 0 updates", "host_step", changed(STEP, "    adamw(", "    if comm.rank == 0:\n        adamw("),
          "rank 1 ends with the states as they began"),
    Wrong("returns the row", "host_step", STEP + "    return row\n", "it returns something"),
    Wrong("halves the gradient in place", "host_step",
          changed(STEP, "comm.reduce_scatter(gradient, average=True)",
                  "comm.reduce_scatter(gradient.div_(comm.size))"), "it overwrote"),
    Wrong("32 bits up", "host_step",
          changed(STEP, BACK + ALL,
                  '    row.copy_(comm.all_gather(host["main"], row.numel()))\n'),
          "what travels with 32"),
    Wrong("32 bits both ways", "host_step",
          changed(changed(STEP, BACK + ALL, '    row.copy_(comm.all_gather(host["main"], row.numel()))\n'),
                  "reduce_scatter(gradient,", "reduce_scatter(gradient.float(),"),
          "both ways have 32 bits"),
    Wrong("all-reduce", "host_step",
          changed(STEP, "comm.reduce_scatter(gradient, average=True)",
                  "comm.all_reduce(gradient.clone(), average=True).tensor_split(comm.size)[comm.rank]"),
          "gradients that nobody uses"),
    Wrong("a barrier", "host_step", STEP + "    comm.broadcast(row[:0], src=0)\n", "two calls a step"),
    Wrong("updates on the device", "host_step", '''
def host_step(comm, row, gradient, host, step):
    shard = row.tensor_split(comm.size)[comm.rank]
    device = {name: state.clone() for name, state in host.items()}
    device["gradient"] = comm.reduce_scatter(gradient, average=True).float()
    adamw(device, step)
    for name in host:
        host[name].copy_(device[name])
    shard.copy_(device["main"])
    comm.all_gather(shard, out=row)
''', "what is made in 32 bits"),
]  # fmt: skip

THEN = "        if k + buffers < groups:\n            writes[k].then(partial(begin, k + buffers))\n"
LAST = "    for writing in writes.values():\n        writing.wait()\n"
FREE = "        if k >= buffers:\n            writes[k - buffers].wait()\n"

WALKS = [
    blank("overlapped_walk"),
    Wrong("does nothing", "overlapped_walk",
          "def overlapped_walk(groups, buffers, read, compute, write):\n    pass", "group 0 is never read"),
    Wrong("one after the other", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        read(k, 0).wait()
        compute(k, 0)
        write(k, 0).wait()
''', "nothing goes on at once"),
    Wrong("never waits for a read", "overlapped_walk", changed(WALK, "        reads[k].wait()\n", ""),
          "before anybody has waited for the read"),
    Wrong("does not wait for the last writes", "overlapped_walk", changed(WALK, LAST, ""), "under way, of group"),
    Wrong("reuses a buffer at once", "overlapped_walk",
          changed(changed(WALK, THEN, "        if k + buffers < groups:\n            begin(k + buffers)\n"), FREE, ""),
          "is still being written with group"),
    Wrong("forgets the last group", "overlapped_walk",
          changed(WALK, "        writes[k] = write(k, k % buffers)\n",
                  "        if k == groups - 1:\n            break\n        writes[k] = write(k, k % buffers)\n"),
          "is never written"),
    Wrong("does not write at all", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        read(k, k % buffers).wait()
        compute(k, k % buffers)
''', "before it is written"),
    Wrong("reads too far ahead", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    reads = [read(k, k % buffers) for k in range(groups)]
    for k in range(groups):
        reads[k].wait()
        compute(k, k % buffers)
        write(k, k % buffers).wait()
''', "and not computed on"),
    Wrong("more buffers than there are", "overlapped_walk", changed(WALK, "k % buffers)", "k % (buffers + 1))").replace(
          "range(min(groups, buffers))", "range(min(groups, buffers + 1))"), "buffers are 0 to 1"),
    Wrong("more groups than there are", "overlapped_walk",
          changed(WALK, "range(min(groups, buffers))", "range(buffers)"),
          "groups are 0 to 1"),
    Wrong("a loop's last k", "overlapped_walk",
          changed(WALK, "partial(begin, k + buffers)", "lambda: begin(k + buffers)"), "KeyError"),
    Wrong("computes on the disk's thread", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        reading = read(k, 0)
        reading.then(lambda: compute(k, 0))
        reading.wait()
        write(k, 0).wait()
''', "compute for group 0 runs in what a then() calls"),
    Wrong("waits on the disk's thread", "overlapped_walk",
          changed(WALK, "reads[k] = read(k, k % buffers)",
                  "reads[k] = read(k, k % buffers)\n        if k >= buffers:\n            reads[k].wait()"),
          "wait for group"),
    Wrong("writes before it computes", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        read(k, 0).wait()
        write(k, 0).wait()
        compute(k, 0)
''', "was not computed in buffer"),
    Wrong("the wrong buffer", "overlapped_walk",
          changed(WALK, "compute(k, k % buffers)", "compute(k, (k + 1) % buffers)"), "was not read into buffer"),
    Wrong("backwards", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    for k in reversed(range(groups)):
        read(k, 0).wait()
        compute(k, 0)
        write(k, 0).wait()
''', "keep the order"),
    Wrong("computes twice", "overlapped_walk",
          changed(WALK, "        compute(k, k % buffers)\n", "        compute(k, k % buffers)\n" * 2),
          "is computed twice"),
    Wrong("waits before it reads on", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    reads = {k: read(k, k % buffers) for k in range(min(groups, buffers))}
    for k in range(groups):
        reads[k].wait()
        compute(k, k % buffers)
        writing = write(k, k % buffers)
        writing.wait()
        if k + buffers < groups:
            reads[k + buffers] = read(k + buffers, k % buffers)
''', "also with 3 buffers somebody stands still"),
    Wrong("a turn later", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    late = 2 if buffers > 2 else 1
    reads = {k: read(k, k % buffers) for k in range(min(groups, buffers))}
    writes = {}
    for k in range(groups):
        done = k - late
        if done >= 0 and done + buffers < groups:
            writes[done].wait()
            reads[done + buffers] = read(done + buffers, done % buffers)
        reads[k].wait()
        compute(k, k % buffers)
        writes[k] = write(k, k % buffers)
    for writing in writes.values():
        writing.wait()
''', "with 2 somebody does"),
    Wrong("trusts the clock", "overlapped_walk", '''
def overlapped_walk(groups, buffers, read, compute, write):
    for k in range(groups):
        read(k, k % buffers).wait()
        compute(k, k % buffers)
        writing = write(k, k % buffers)
    writing.wait()
''', "nobody had asked"),
    Wrong("yields", "overlapped_walk",
          changed(WALK, "        compute(k, k % buffers)\n", "        yield compute(k, k % buffers)\n"),
          "is a generator"),
]  # fmt: skip

ZOO = [*STEPS, *WALKS, *offload_mended.ZOO]
