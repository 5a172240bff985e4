"""Wrong answers to the mended step of lesson 06 that a check let pass once, or sent elsewhere."""

from zoo.wrong import Wrong

ZOO = [
    Wrong("zero norm divided in Python", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt().item()
    if not math.isfinite(norm):
        return False
    mean *= min(1.0, limit / norm)
    main -= rate * mean
    comm.all_gather(main.half(), out=params)
    return True
""", "ZeroDivisionError"),
    Wrong("zero over zero: mean over norm", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    if not norm.isfinite():
        return False
    mean = mean / norm * torch.minimum(norm, torch.tensor(limit))
    main -= rate * mean
    comm.all_gather(main.half(), out=params)
    return True
""", "the norm is 0, and so is what it divides"),
    Wrong("flag in fp16 of a sum", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    if not comm.all_reduce(gradient.abs().max()).isfinite():
        return False
    mean = comm.reduce_scatter(gradient.float(), average=True) / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    mean *= (limit / norm).clamp(max=1.0)
    main -= rate * mean
    comm.all_gather(main.half(), out=params)
    return True
""", "what else do you add up in fp16"),
    Wrong("a flag of the gradients alone", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    if comm.all_reduce((~gradient.isfinite()).sum().float()).item():
        return False
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    main -= rate * (limit / norm).clamp(max=1.0) * mean
    comm.all_gather(main.half(), out=params)
    return True
""", "their sum in fp16 was not: look at the mean"),
    Wrong("NaN lost by Python's max", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt().item()
    if norm == math.inf:
        return False
    main -= rate * mean / max(1.0, norm / limit)
    comm.all_gather(main.half(), out=params)
    return True
""", "nor larger or smaller than anything"),
    Wrong("eps 1e-6", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    if not norm.isfinite():
        return False
    main -= rate * (limit / (norm + 1e-6)).clamp(max=1.0) * mean
    comm.all_gather(main.half(), out=params)
    return True
""", "that 1e-6 was added to"),
    Wrong("eps in the root", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = (comm.all_reduce(mean.square().sum()) + 1e-12).sqrt()
    if not norm.isfinite():
        return False
    main -= rate * (limit / norm).clamp(max=1.0) * mean
    comm.all_gather(main.half(), out=params)
    return True
""", "is anything added to the norm, or below its root"),
    Wrong("norms added up", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient.float(), average=True) / scale
    norm = comm.all_reduce(mean.norm())
    if not norm.isfinite():
        return False
    mean *= (limit / norm).clamp(max=1.0)
    main -= rate * mean
    comm.all_gather(main.half(), out=params)
    return True
""", "a sum of the shards' norms"),
    Wrong("main from params", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    if not norm.isfinite():
        return False
    mean *= (limit / norm).clamp(max=1.0)
    main.copy_(params.tensor_split(comm.size)[comm.rank].float() - rate * mean)
    comm.all_gather(main.half(), out=params)
    return True
""", "that are made from params"),
]  # fmt: skip
