"""Wrong answers that keep something between calls, or lose what is rare: to lessons 00 and 01, and to `clip_` of 04."""

from zoo.wrong import Wrong, changed

START = [
    Wrong("divides floats and goes down", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    n = int(gpu_bytes / (whole + shared / ranks))
    while n and sum(state_bytes(n, ranks, stage, recipe).values()) > gpu_bytes: n -= 1
    return n
""", "651 ranks of 185,736 bytes"),
    Wrong("a counter that goes on", "fewest_ranks", """
import itertools
ranks = itertools.count(1)
def fewest_ranks(factor, stage, recipe):
    whole, total = sum(recipe[: 3 - stage]), sum(recipe)
    if whole * factor >= total: return None
    for n in ranks:
        if total * n >= factor * (whole * n + total - whole): return n
""", "called with other arguments before"),
    Wrong("a default list that keeps the highest", "name_the_peak", """
def name_the_peak(samples, best=[-1, -1]):
    for i, sample in enumerate(samples):
        if sum(sample.values()) > best[0]: best[:] = sum(sample.values()), i
    return best[1], max(samples[best[1]], key=samples[best[1]].get)
""", "called with other arguments before"),
]  # fmt: skip
RING = [
    Wrong("edges of the first call", "chunk_bounds", """
edges = []
def chunk_bounds(numel, ranks, rank):
    if not edges:
        edges.append(0)
        for r in range(ranks): edges.append(edges[-1] + numel // ranks + (r < numel % ranks))
    return edges[rank], edges[rank + 1]
""", "called with other arguments before"),
    Wrong("a default list that grows", "ring_bytes", """
def ring_bytes(numel, itemsize, ranks, rank, sent=[]):
    for step in range(ranks - 1):
        sent.append(len(range((rank - 1 - step) % ranks, numel, ranks)))
        sent.append(len(range((rank - step) % ranks, numel, ranks)))
    return sum(sent) * itemsize
""", "called with other arguments before"),
    Wrong("arithmetic with what it overwrites", "mended_broadcast", """
def mended_broadcast(comm, tensor, src):
    seat = (comm.rank - src) % comm.size
    if seat > 0:
        got = torch.empty_like(tensor)
        comm.recv(got, (comm.rank - 1) % comm.size)
        tensor.mul_(0).add_(got)
    if seat < comm.size - 1: comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor
""", "0 times NaN is NaN"),
    Wrong("loses its own NaN", "ring_reduce_scatter", """
def ring_reduce_scatter(comm, tensor):
    hand = chunk(tensor, comm.rank - 1, comm.size).clone()
    for s in range(comm.size - 1):
        mine = chunk(tensor, comm.rank - 2 - s, comm.size)
        got = torch.empty_like(mine)
        pass_on(comm, hand, got)
        hand = got.add_(torch.where(mine == mine, mine, 0))
    return hand
""", "NaN and inf are not"),
]  # fmt: skip
CLIP = """
import math
def clip_(comm, shards, used, limit, norm_type):
    v = torch.cat([s[:n].double() for s, n in zip(shards, used)] + [torch.zeros(1, dtype=torch.float64)]).abs()
    def norm(v):
        m = v.max()
        if m == 0 or not math.isfinite(m) or norm_type == math.inf: return m
        return m * (v / m).pow(norm_type).sum() ** (1 / norm_type)
    each = comm.all_gather(norm(v).view(1))
    total = norm(each).item()
    if math.isfinite(total) and total > limit:
        for s, n in zip(shards, used): s[:n] = (s[:n].double() * (limit / total)).to(s.dtype)
    return total
"""
ABOVE = "math.isfinite(total) and total > limit"
NORM = [
    Wrong("any rank's own norm decides", "clip_",
          changed(CLIP, ABOVE, "math.isfinite(total) and bool((each > limit).any())"), "compare the norm of all"),
    Wrong("stops at a shard without elements", "clip_",
          changed(CLIP, "zip(shards, used): s[:n] = ",
                  "zip(shards, used):\n            if not n: break\n            s[:n] = "), "used elements [[0, "),
    Wrong("inf before NaN", "clip_",
          changed(CLIP, "norm(each).item()", "math.inf if bool(each.isinf().any()) else norm(each).item()"),
          "one nan: rank 0 returned inf"),
]  # fmt: skip
