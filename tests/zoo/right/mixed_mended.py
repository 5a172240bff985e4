"""Right answers to the exercise of lesson 06 that mends a step."""

from zoo.right.answer import Right

RIGHT = [
    Right("fp32 from the start", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient.float(), average=True) / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    if not norm.isfinite():
        return False
    main -= rate * mean * (limit / norm).clamp(max=1.0)
    comm.all_gather(main.half(), out=params)
    return True
"""),
    Right("16 bits travel", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt().item()
    if not math.isfinite(norm):
        return False
    if norm > limit:
        mean *= limit / norm
    main.sub_(mean, alpha=rate)
    comm.all_gather(main.to(params.dtype), out=params)
    return True
"""),
    Right("alpha and linalg", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float().div_(scale)
    squares = torch.linalg.vector_norm(mean).square()
    total = comm.all_reduce(squares.reshape(1)).item()
    if total != total or total == math.inf:
        return False
    factor = 1.0 if total <= limit ** 2 else limit / math.sqrt(total)
    main.add_(mean, alpha=-rate * factor)
    params.copy_(comm.all_gather(main.half(), params.numel()))
    return True
"""),
    Right("a flag of its own, then the norm", "mended_step", """
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
    Right("norm of gathered partial norms", "mended_step", """
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
    Right("divides by the larger", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).to(torch.float32)
    mean /= scale
    square = comm.all_reduce(mean.dot(mean).unsqueeze(0))
    if not square.isfinite().all():
        return False
    norm = float(square) ** 0.5
    torch.sub(main, mean, alpha=rate * limit / max(norm, limit), out=main)
    comm.all_gather(main.half(), params.numel(), params)
    return True
"""),
    Right("addcmul_", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.pow(2).sum()).sqrt()
    if not norm.isfinite().item():
        return False
    main.addcmul_(mean, torch.clamp(limit / norm, max=1.0), value=-rate)
    comm.all_gather(main.half(), out=params)
    return True
"""),
    Right("float64 for the norm", "mended_step", """
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
    Right("adds up in fp32, alpha", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient.float()).div_(scale * comm.size)
    norm = comm.all_reduce(mean.square().sum()).sqrt().item()
    if not norm < math.inf:
        return False
    main.sub_(mean, alpha=rate * (limit / norm if norm > limit else 1.0))
    comm.all_gather(main.half(), out=params)
    return True
"""),
    Right("divides before it adds", "mended_step", """
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
]  # fmt: skip
