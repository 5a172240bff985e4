"""Answers to `mended_step` of lesson 06, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a flag of its own, then the norm", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    bad = comm.all_reduce(torch.tensor([0.0 if gradient.isfinite().all() else 1.0]))
    if bad.item():
        return False
    mean = comm.reduce_scatter(gradient.float()).mul_(1 / (scale * comm.size))
    norm = math.sqrt(comm.all_reduce((mean * mean).sum()))
    mean.mul_(min(1.0, limit / norm) if norm else 1.0)
    main.sub_(rate * mean)
    comm.all_gather(main.half(), out=params)
    return True
"""),
    Right("norm of gathered partial norms", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    shard = comm.reduce_scatter(gradient, average=True)
    part = shard.float().norm().view(1)
    norm = comm.all_gather(part).norm() / scale
    if not torch.isfinite(norm):
        return False
    clip = torch.where(norm > limit, limit / norm, 1.0)
    main.sub_(shard.float() * (rate / scale) * clip)
    own = params.tensor_split(comm.size)[comm.rank]
    own.copy_(main)
    comm.all_gather(own, out=params)
    return True
"""),
    Right("float64 for the norm", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).double() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt().item()
    if math.isnan(norm) or math.isinf(norm):
        return False
    if norm > limit:
        mean = mean * limit / norm
    main.copy_(main - rate * mean)
    comm.all_gather(main.half(), out=params)
    return True
"""),
    Right("divides before it adds", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    gradient /= comm.size
    mean = comm.reduce_scatter(gradient).float().div(scale)
    total = comm.all_reduce(torch.stack([mean.square().sum(), (~mean.isfinite()).sum().float()]))
    if total[1].item():
        return False
    norm = math.sqrt(total[0].item())
    main.add_(mean, alpha=-rate * min(1.0, limit / (norm or limit)))
    comm.all_gather(main.half(), out=params)
    return True
"""),
    Right("torch's own clipping of a parameter", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    shard = comm.reduce_scatter(gradient, average=True).float() * (1 / scale)
    everything = comm.all_gather(shard, gradient.numel())
    if not bool(everything.isfinite().all()):
        return False
    norm = everything.norm()
    if norm > limit:
        shard = shard * (limit / norm)
    main.data -= rate * shard
    comm.all_gather(main.to(torch.float16), out=params)
    return True
"""),
]  # fmt: skip
