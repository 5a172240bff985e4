"""Answers to `mended_step` of lesson 06, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("06_mixed_precision", "mended_step")

RIGHT = [
    Right("fp32 from the start",
          changed(changed(MODEL,
                          "(gradient, average=True).float()",
                          "(gradient.float(), average=True)"),
                  "(limit / norm).clamp(max=1.0) * mean",
                  "mean * (limit / norm).clamp(max=1.0)")),
    Right("16 bits travel", """
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
    Right("alpha and linalg", """
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
    Right("divides by the larger", """
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
    Right("addcmul_",
          changed(changed(MODEL,
                          "(mean.square().sum()).sqrt()\n    if not norm.isfinite()",
                          "(mean.pow(2).sum()).sqrt()\n    if not norm.isfinite().item()"),
                  "main -= rate * (limit / norm).clamp(max=1.0) * mean",
                  "main.addcmul_(mean, torch.clamp(limit / norm, max=1.0), value=-rate)")),
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
    Right("adds up in fp32, alpha", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient.float()).div_(scale * comm.size)
    norm = comm.all_reduce(mean.square().sum()).sqrt().item()
    if not norm < math.inf:
        return False
    main.sub_(mean, alpha=rate * (limit / norm if norm > limit else 1.0))
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
    Right("functions for each part, getattr", """
def whole_norm(comm, part):
    squares = part.double().square().sum().reshape(1)
    comm.all_reduce(squares)
    return math.sqrt(squares.item()) if math.isfinite(squares.item()) else math.inf
def mended_step(comm, params, main, gradient, scale, limit, rate):
    part = comm.reduce_scatter(gradient, average=True).to(main.dtype).mul(1.0 / scale)
    if (norm := whole_norm(comm, part)) == math.inf:
        return False
    getattr(main, "sub_")(part, alpha=rate if norm <= limit else rate * limit / norm)
    for rank, piece in enumerate(params.tensor_split(comm.size)):
        if rank == comm.rank:
            piece.copy_(main)
            comm.all_gather(piece, out=params)
    return True
"""),
    Right("two collectives in one, foreach", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    shard = comm.reduce_scatter(gradient, average=True).float()
    shard.div_(scale)
    sums = comm.all_gather(shard.square().sum().view(1), comm.size)
    if sums.isinf().any() or sums.isnan().any():
        return False
    norm = float(sums.sum().sqrt())
    factor = 1.0
    if norm > limit:
        factor = limit / norm
    torch._foreach_add_([main], [shard], alpha=-rate * factor)
    params[:] = comm.all_gather(main.half(), params.numel())
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
    Right("in fp32, Python floats", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient.float() / scale, average=True)
    squares = comm.all_reduce(mean.double().pow(2).sum()).item()
    if not math.isfinite(squares):
        return False
    norm = math.sqrt(squares)
    main.sub_(mean, alpha=rate * (limit / norm if norm > limit else 1.0))
    comm.all_gather(main.to(params.dtype), params.numel(), params)
    return True
"""),
    Right("a vote, then vector_norm", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).to(torch.float32)
    bad = torch.zeros(1) if mean.isfinite().all() else torch.ones(1)
    if comm.all_reduce(bad).sum() > 0:
        return False
    mean /= scale
    own = torch.linalg.vector_norm(mean).view(1)
    norm = torch.linalg.vector_norm(comm.all_gather(own, comm.size)).item()
    if norm > limit:
        mean *= limit / norm
    main.add_(mean, alpha=-rate)
    params.copy_(comm.all_gather(main.half(), params.numel()))
    return True
"""),
]  # fmt: skip
