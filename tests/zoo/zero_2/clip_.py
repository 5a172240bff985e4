"""Answers to `clip_` of lesson 04, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed

BY_THE_LARGEST = """
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
CLIP = """
def clip_(comm, shards, used, limit, norm_type):
    gradients = [shard[:numel] for shard, numel in zip(shards, used, strict=True)]
    sizes = torch.cat(gradients).double().abs()
    if norm_type == torch.inf:
        own = sizes.max() if len(sizes) else sizes.new_zeros(())
        norm = comm.all_gather(own.view(1)).max()
    else:
        own = sizes.pow(norm_type).sum()
        norm = comm.all_gather(own.view(1)).sum() ** (1 / norm_type)
    if limit < norm < torch.inf:
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm.item()
"""

WRONG = [
    blank("clip_", "def clip_(comm, shards, used, limit, norm_type):\n"),
    Wrong("own norm",
          changed(changed(CLIP,
                          "comm.all_gather(own.view(1)).max()",
                          "own"),
                  "comm.all_gather(own.view(1)).sum()",
                  "own"),
          "the norm of its own shards"),
    Wrong("counts padding",
          changed(CLIP, "[:numel]", ""),
          "Its padding counted"),
    Wrong("adds up norms",
          changed(CLIP, "(own.view(1)).sum() ** (1 / norm_type)", "((own ** (1 / norm_type)).view(1)).sum()"),
          "You added norms"),
    Wrong("no root",
          changed(CLIP, "() ** (1 / norm_type)", "()"),
          "The root is missing"),
    Wrong("a mean",
          changed(CLIP, "(own.view(1)).sum()", "(own.view(1)).mean()"),
          "a mean over the ranks"),
    Wrong("always 2",
          changed(CLIP, "    gradients", "    norm_type = 2\n    gradients"),
          "whatever norm_type is"),
    Wrong("single precision",
          changed(CLIP, "double().abs()", "abs()"),
          "That is not float64"),
    Wrong("Python's max",
          changed(CLIP,
                  "comm.all_gather(own.view(1)).max()",
                  "torch.tensor(max(comm.all_gather(own.view(1)).tolist()))"),
          "look for it yourself"),
    Wrong("maximum of nothing",
          changed(CLIP, "() if len(sizes) else sizes.new_zeros(())", "()"),
          "numel() == 0"),
    Wrong("scales up",
          changed(CLIP, "limit < norm", "norm"),
          "no reason to scale up"),
    Wrong("not in place",
          changed(CLIP, ".mul_(limit / norm)", " = gradient * limit / norm"),
          "a new tensor stays with you"),
    Wrong("a factor of one's own",
          changed(changed(CLIP,
                          "for gradient",
                          "own_norm = torch.linalg.vector_norm(sizes, norm_type) if len(sizes) else 1\n"
                          "        for gradient"),
                  "limit / norm",
                  "limit / own_norm"),
          "scaled by their own norm"),
    Wrong("scales twice",
          changed(CLIP, "limit / norm", "(limit / norm) ** 2"),
          "scaled twice over"),
    Wrong("a factor for each shard",
          changed(CLIP, "limit / norm", "limit / max(gradient.norm(norm_type), 1) if gradient.numel() else 1"),
          "and limit / norm is"),
    Wrong("scales by inf",
          changed(CLIP, "norm < torch.inf", "norm"),
          "the step will be skipped"),
    Wrong("gathers everything", """
def clip_(comm, shards, used, limit, norm_type):
    gradients = [shard[:numel] for shard, numel in zip(shards, used, strict=True)]
    room = torch.zeros(8192, dtype=torch.float64)
    mine = torch.cat(gradients).double()
    room[: len(mine)] = mine
    norm = torch.linalg.vector_norm(comm.all_gather(room), norm_type)
    if limit < norm < torch.inf:
        for gradient in gradients:
            gradient.mul_(limit / norm)
    return norm.item()
""", "one number of each rank is enough"),
    Wrong("a call for each rank",
          changed(CLIP,
                  "comm.all_gather(own.view(1)).sum()",
                  "torch.stack([comm.broadcast(own.clone(), rank) for rank in range(comm.size)]).sum()"),
          "into one tensor"),
    Wrong("a tensor",
          changed(CLIP, "norm.item()", "norm"),
          "a float is due"),
    Wrong("if rank",
          changed(CLIP, "if limit", "if comm.rank == 0 and limit"),
          "the gradients of rank 1"),
    # Return the right numbers, or nearly always do.
    Wrong("replaces the shards",
          changed(CLIP,
                  "gradient in gradients:\n            gradient.mul_",
                  "index, shard in enumerate(shards):\n"
                  "            shards[index] = shard * "),
          "became another tensor"),
    Wrong("whole norm types",
          changed(CLIP,
                  "    gradients",
                  "    norm_type = norm_type if norm_type == torch.inf else int(norm_type)\n"
                  "    gradients"),
          "need not be a whole number"),
    Wrong("large is inf",
          changed(CLIP, "== torch.inf", "> 10"),
          "large is not yet inf"),
    Wrong("a little more",
          changed(CLIP, "limit / norm", "limit / (norm + 1e-6)"),
          "larger by 1e-6"),
    Wrong("no limit at 0",
          changed(CLIP, "if limit", "if 0 < limit"),
          "0 is a limit like any other"),
    Wrong("inf for nan",
          changed(CLIP, "norm.item()", "norm.item() if norm == norm else float('inf')"),
          "Say which of the two it is"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("Python's max over shards",
          changed(CLIP,
                  "sizes.max()",
                  "sizes.new_tensor(max([float(each.abs().max()) for each in gradients if len(each)]))"),
          "drop a nan that does not come first"),
    Wrong("a norm of zero divides",
          changed(CLIP, "limit < norm", "limit <= norm"),
          "a norm of 0 is above no limit"),
    Wrong("the smaller of 1 and a quotient",
          changed(changed(CLIP,
                          "if limit <",
                          "factor = min(1.0, limit / norm.item())\n    if"),
                  "(limit / norm)",
                  "(factor)"),
          "division by zero"),
    Wrong("signs and all",
          changed(CLIP, "().abs()", "()"),
          "The signs count there"),
    Wrong("nearly float64",
          changed(changed(CLIP,
                          "double().abs()",
                          "abs()"),
                  "(own.view(1)).max()\n"
                  "    else:\n"
                  "        own = sizes.pow(norm_type).sum()\n"
                  "        norm = comm.all_gather(own",
                  "(own.double().view(1)).max()\n"
                  "    else:\n"
                  "        own = sizes.pow(norm_type).sum()\n"
                  "        norm = comm.all_gather(own.double()"),
          "convert the gradients before you take powers and sums"),
    # Passed once, or their hints spoke of another fault.
    Wrong("norms travel in single precision",
          changed(changed(CLIP,
                          "(own.view(1)).max()",
                          "(own.view(1).float()).double().max()"),
                  "(own.view(1))",
                  "(own.view(1).float()).double()"),
          "neither is what travels"),
    Wrong("returns the limit",
          changed(CLIP, "return", "    return limit\n    return"),
          "That is the limit"),
    Wrong("a default list of sizes",
          changed(CLIP,
                  "):\n"
                  "    gradients = [shard[:numel] for shard, numel in zip(shards, used, strict=True)]",
                  ", sizes_used=[]):\n"
                  "    sizes_used += used\n"
                  "    gradients = [shard[:numel] for shard, numel in zip(shards, sizes_used)]"),
          "after another call (on "),
    # Keep something between calls, or lose what is rare.
    Wrong("any rank's own norm decides",
          changed(BY_THE_LARGEST, "total > limit", "bool((each > limit).any())"),
          "compare the norm of all"),
    Wrong("stops at a shard without elements",
          changed(BY_THE_LARGEST,
                  ": s[:n]",
                  ":\n"
                  "            if not n: break\n"
                  "            s[:n]"),
          "used elements [[0, "),
    Wrong("inf before NaN",
          changed(BY_THE_LARGEST, "norm(each)", "math.inf if bool(each.isinf().any()) else norm(each)"),
          "one nan: rank 0 returned inf"),
    Wrong("its own number first", """
def clip_(comm, shards, used, limit, norm_type):
    live = [shard[:count] for shard, count in zip(shards, used)]
    endless = norm_type == torch.inf
    own = torch.zeros(1, dtype=torch.float64)
    for part in live:
        if part.numel():
            size = part.double().abs()
            own = torch.maximum(own, size.max()) if endless else own + size.pow(norm_type).sum()
    parts = comm.all_gather(own)
    total = own.clone()
    for other in range(1, comm.size):
        part = parts[(comm.rank + other) % comm.size]
        total = torch.maximum(total, part) if endless else total + part
    norm = total.item() if endless else total.item() ** (1 / norm_type)
    if norm > limit and norm != torch.inf:
        for part in live:
            part.copy_(part.double() * (limit / norm))
    return norm
""", "in one order on all ranks"),
]  # fmt: skip

RIGHT = [
    Right("norm of norms, all_gather", """
def clip_(comm, shards, used, limit, norm_type):
    own = [torch.linalg.vector_norm(s[:n].double(), norm_type) for s, n in zip(shards, used) if n]
    mine = torch.linalg.vector_norm(torch.stack(own), norm_type) if own else torch.zeros((), dtype=torch.float64)
    norm = torch.linalg.vector_norm(comm.all_gather(mine.reshape(1)), norm_type).item()
    if limit < norm < float("inf"):
        for s in shards:
            s.mul_(limit / norm)
    return norm
"""),
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
    Right("all_reduce for sums, gather for max, scales the used part", """
import math
def clip_(comm, shards, used, limit, norm_type):
    parts = [s[:n] for s, n in zip(shards, used)]
    total = torch.zeros(1, dtype=torch.double)
    if math.isinf(norm_type):
        for part in parts:
            if len(part):
                total = torch.maximum(total, part.double().abs().max())
        norm = comm.all_gather(total).amax().item()
    else:
        for part in parts:
            total += part.double().abs().pow(norm_type).sum()
        norm = comm.all_gather(total).sum().pow(1 / norm_type).item()
    if math.isfinite(norm):
        if norm > limit:
            factor = limit / norm
            for part in parts:
                part *= factor
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
    Right("scaled by the largest first", """
def clip_(comm, shards, used, limit, norm_type):
    top = 0.0
    parts = [s[:n].double() for s, n in zip(shards, used) if n]
    total = sum((p.abs() ** norm_type).sum() for p in parts) if norm_type != torch.inf else None
    if norm_type == torch.inf:
        total = torch.stack([p.abs().max() for p in parts]).max() if parts else 0.0
    mine = torch.as_tensor(total, dtype=torch.float64).reshape(1)
    rows = comm.all_gather(mine)
    norm = float(rows.max()) if norm_type == torch.inf else float(rows.sum()) ** (1 / norm_type)
    if norm - norm == 0 and norm > limit:
        scale = torch.tensor(limit / norm, dtype=torch.float64)
        for s, n in zip(shards, used):
            s[:n] = (s[:n].double() * scale).to(s.dtype)
    return norm
"""),
    Right("numpy-free logsumexp for p, amax", """
def clip_(comm, shards, used, limit, norm_type):
    import math
    flat = torch.cat([torch.narrow(s, 0, 0, n).to(torch.float64) for s, n in zip(shards, used)])
    if math.isinf(norm_type):
        own = flat.abs().amax(0, keepdim=True) if flat.numel() else flat.new_zeros(1)
        norm = comm.all_gather(own).amax().item()
    else:
        own = torch.pow(flat.abs(), norm_type).sum(0, keepdim=True)
        norm = math.pow(torch.sum(comm.all_gather(own)).item(), 1.0 / norm_type)
    if not math.isfinite(norm) or norm <= limit:
        return norm
    for s in shards:
        torch.mul(s, limit / norm, out=s)
    return norm
"""),
    # Written from the text alone.
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
