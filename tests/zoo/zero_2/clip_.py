"""Answers to `clip_` of lesson 04 that are right, each in a style of its own."""

from zoo.answers import Right

RIGHT = [
    Right("powers by hand, foreach", """
import math
def clip_(comm, shards, used, limit, norm_type):
    parts = [s[:n].to(torch.float64).abs() for s, n in zip(shards, used)]
    values = torch.cat([*parts, torch.zeros(1, dtype=torch.float64)])
    big = norm_type == math.inf
    mine = values.max() if big else values.pow(norm_type).sum()
    gathered = comm.all_gather(mine.view(1))
    norm = float(gathered.max() if big else gathered.sum() ** (1 / norm_type))
    if math.isfinite(norm) and norm > limit:
        torch._foreach_mul_(shards, limit / norm)
    return norm
"""),
    Right("python floats, NaN by comparison with itself", """
def clip_(comm, shards, used, limit, norm_type):
    numbers = [abs(x) for s, n in zip(shards, used) for x in s[:n].double().tolist()]
    infinite = norm_type == float("inf")
    lost = any(x != x for x in numbers)
    if lost:
        mine = float("nan")
    elif infinite:
        mine = max(numbers, default=0.0)
    else:
        mine = sum(x ** norm_type for x in numbers)
    row = comm.all_gather(torch.tensor([mine], dtype=torch.float64)).tolist()
    if any(x != x for x in row):
        return float("nan")
    norm = max(row) if infinite else sum(row) ** (1 / norm_type)
    if norm > limit and norm != float("inf"):
        with torch.no_grad():
            for s, n in zip(shards, used):
                s[:n].copy_(s[:n].double() * (limit / norm))
    return norm
"""),
    Right("send and receive by hand", """
def clip_(comm, shards, used, limit, norm_type):
    flat = torch.cat([s[:n] for s, n in zip(shards, used)]).double() if shards else torch.zeros(0).double()
    norms = torch.zeros(comm.size, dtype=torch.float64)
    if flat.numel():
        norms[comm.rank] = torch.linalg.vector_norm(flat, ord=norm_type)
    comm.all_gather(norms[comm.rank : comm.rank + 1], out=norms)
    norm = norms.norm(norm_type)
    clipped = norm.clamp(max=limit) / norm if norm > 0 else torch.ones((), dtype=torch.double)
    if torch.isfinite(norm) and norm > limit:
        for s in shards:
            s.copy_(s * clipped)
    return float(norm)
"""),
    Right("logarithms", """
def clip_(comm, shards, used, limit, norm_type):
    p = float(norm_type)
    none = torch.full((1,), -torch.inf, dtype=torch.float64)
    def together(logs):
        if logs.isnan().any():
            return torch.full((), torch.nan, dtype=torch.float64)
        top = logs.amax()
        if p == torch.inf or top.isinf():
            return top
        return top + torch.log(torch.exp((logs - top) * p).sum()) / p
    logs = torch.cat([none] + [shard.narrow(0, 0, n).double().abs().log() for shard, n in zip(shards, used)])
    total = float(together(comm.all_gather(together(logs).view(1))).exp())
    if total == total and total != torch.inf and total > limit:
        [shard.copy_(shard.double().mul_(limit / total)) for shard in shards]
    return total
"""),
    Right("scaled by a power of two", """
def clip_(comm, shards, used, limit, norm_type):
    norm_of = torch.linalg.vector_norm
    def safe(values):
        top = norm_of(values, torch.inf) if values.numel() else values.new_zeros(())
        if not top.isfinite() or top == 0:
            return top
        exponent = torch.frexp(top).exponent
        return torch.ldexp(norm_of(torch.ldexp(values, -exponent), norm_type), exponent)
    parts = [safe(shard[:n].double()) for shard, n in zip(shards, used)]
    mine = safe(torch.stack(parts)) if parts else torch.zeros((), dtype=torch.float64)
    total = safe(comm.all_gather(mine[None])).item()
    if total > limit and total != torch.inf:
        factor = torch.tensor(limit, dtype=torch.float64) / total
        for shard in shards:
            shard[:] = shard.double() * factor
    return total
"""),
]  # fmt: skip
