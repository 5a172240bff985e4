"""Answers to `mended_step` of lesson 06, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("06_mixed_precision", "mended_step")
SKETCH = """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    if not gradient.isfinite().all():
        return False
    mean = comm.reduce_scatter(gradient, average=True)
    norm = comm.all_reduce(mean.float().square().sum()).sqrt()
    mean = mean * (limit / norm).clamp(max=1.0)
    mean = mean / scale
    shard = params.tensor_split(comm.size)[comm.rank]
    shard -= rate * mean
    comm.all_gather(shard.clone(), out=params)
    return True
"""

WRONG = [
    blank("mended_step"),
    Wrong("as published",
          SKETCH,
          "A collective needs every rank"),
    Wrong("skips with its shard",
          changed(MODEL, "norm.isfinite()", "mean.isfinite().all()"),
          "the ranks part ways"),
    Wrong("skips with its shard, hangs nobody", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    taken = bool(mean.isfinite().all())
    if taken:
        main -= rate * (limit / norm).clamp(max=1.0) * mean
    comm.all_gather(main.half(), out=params)
    return taken
""", "must stop the step on all ranks"),
    Wrong("never skips",
          changed(MODEL, "    if not norm.isfinite():\n        return False\n", ""),
          "and the mean with it"),
    Wrong("a tensor for an answer",
          changed(MODEL, "return True", "return norm.isfinite()"),
          "True where the step is taken"),
    Wrong("says that it skips",
          changed(MODEL, "return True", "return False"),
          "is the norm finite"),
    Wrong("updates, then skips",
          changed(changed(MODEL,
                          "if not",
                          "main -= rate * (limit / norm).clamp(max=1.0) * mean\n    if not"),
                  "False\n    main -= rate * (limit / norm).clamp(max=1.0) * mean",
                  "False"),
          "a step that is skipped changes nothing"),
    Wrong("agrees, and mends nothing else",
          changed(changed(SKETCH,
                          "    if not gradient.isfinite().all():\n        return False\n",
                          ""),
                  "mean = mean *",
                  "if not norm.isfinite():\n"
                  "        return False\n"
                  "    mean = mean *"),
          "they are what an update changes, in place"),
    Wrong("a new main",
          changed(MODEL, "main -= rate", "main = main - rate"),
          "main parameters are as they were: they"),
    Wrong("clips before it unscales",
          changed(changed(MODEL, "() / scale", "()"), "(max=1.0) * mean", "(max=1.0) * mean / scale"),
          "the limit is meant for the real ones"),
    Wrong("unscales in fp16",
          changed(changed(MODEL,
                          ".float() / scale\n    norm = comm.all_reduce(mean",
                          " / scale\n    norm = comm.all_reduce(mean.float()"),
                  "(max=1.0) * mean",
                  "(max=1.0) * mean.float()"),
          "they are too small for it"),
    Wrong("through bf16",
          changed(MODEL, ".float()", ".bfloat16().float()"),
          "that went through bf16"),
    Wrong("both of these",
          changed(changed(MODEL,
                          ".float() / scale\n    norm = comm.all_reduce(mean",
                          "\n    norm = comm.all_reduce(mean.float()"),
                  "(max=1.0) * mean",
                  "(max=1.0) * (mean / scale).float()"),
          "clipping of scaled gradients and a division"),
    Wrong("clips and unscales in fp16",
          changed(changed(MODEL,
                          ".float() / scale\n    norm = comm.all_reduce(mean",
                          "\n    norm = comm.all_reduce((mean.float() / scale)"),
                  "main -= rate * (limit / norm).clamp(max=1.0)",
                  "mean = mean * (limit / norm).clamp(max=1.0)\n"
                  "    mean = mean / scale\n"
                  "    main -= rate"),
          "which dtype has the mean when it is divided"),
    Wrong("the factors in fp16",
          changed(changed(MODEL,
                          ".float() / scale\n    norm = comm.all_reduce(mean",
                          "\n    norm = comm.all_reduce((mean.float() / scale)"),
                  "(limit / norm).clamp(max=1.0) * mean",
                  "mean / scale * (limit / norm).clamp(max=1.0)"),
          "rounded to 16 bits on their way"),
    Wrong("updates the cast",
          changed(MODEL,
                  "    main -= rate * (limit / norm).clamp(max=1.0) * mean",
                  "\n"
                  "    shard = params.tensor_split(comm.size)[comm.rank]\n"
                  "    shard -= rate * (limit / norm).clamp(max=1.0) * mean\n"
                  "    main.copy_(shard)"),
          "which copy is updated, and which is its cast"),
    Wrong("never unscales",
          changed(MODEL, "() / scale", "()"),
          "divide by the scale before"),
    Wrong("unscales twice",
          changed(MODEL, "() / scale", "() / scale / scale"),
          "divided by the scale twice"),
    Wrong("its own norm",
          changed(MODEL, "main -= rate", "norm = mean.norm()\n    main -= rate"),
          "the norm is of all"),
    Wrong("does not clip",
          changed(MODEL, "(limit / norm).clamp(max=1.0) * mean", "mean"),
          "not clipped"),
    Wrong("scales up",
          changed(MODEL, ".clamp(max=1.0)", ""),
          "a factor above 1"),
    Wrong("sum for mean",
          changed(MODEL, ", average=True", ""),
          "sum of the gradients"),
    Wrong("own gradients",
          changed(MODEL,
                  "comm.reduce_scatter(gradient, average=True)",
                  "gradient.tensor_split(comm.size)[comm.rank]"),
          "take the mean over the ranks"),
    Wrong("keeps the parameters",
          changed(MODEL, "    comm.all_gather(main.half(), out=params)\n", ""),
          "everybody needs their casts"),
    Wrong("its own shard",
          changed(MODEL,
                  "comm.all_gather(main.half(), out=params)",
                  "params.tensor_split(comm.size)[comm.rank].copy_(main)"),
          "hand the shards around"),
    Wrong("updates both",
          changed(MODEL,
                  "    comm.all_gather(main.half()",
                  "\n"
                  "    shard = params.tensor_split(comm.size)[comm.rank]\n"
                  "    shard -= (rate * (limit / norm).clamp(max=1.0) * mean).half()\n"
                  "    comm.all_gather(shard.clone()"),
          "write those over them"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("zero norm divided in Python",
          changed(changed(MODEL,
                          "()\n    if not norm.isfinite()",
                          "().item()\n    if not math.isfinite(norm)"),
                  "main -= rate * (limit / norm).clamp(max=1.0)",
                  "mean *= min(1.0, limit / norm)\n    main -= rate"),
          "ZeroDivisionError"),
    Wrong("zero over zero: mean over norm",
          changed(MODEL,
                  "main -= rate * (limit / norm).clamp(max=1.0)",
                  "mean = mean / norm * torch.minimum(norm, torch.tensor(limit))\n"
                  "    main -= rate"),
          "the norm is 0, and so is what it divides"),
    Wrong("flag in fp16 of a sum", """
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
    Wrong("a flag of the gradients alone",
          changed(changed(MODEL,
                          "mean = comm",
                          "if comm.all_reduce((~gradient.isfinite()).sum().float()).item():\n"
                          "        return False\n"
                          "    mean = comm"),
                  "    if not norm.isfinite():\n        return False\n",
                  ""),
          "their sum in fp16 was not: look at the mean"),
    Wrong("NaN lost by Python's max",
          changed(changed(MODEL,
                          "()\n    if not norm.isfinite()",
                          "().item()\n    if norm == math.inf"),
                  "(limit / norm).clamp(max=1.0) * mean",
                  "mean / max(1.0, norm / limit)"),
          "nor larger or smaller than anything"),
    Wrong("eps 1e-6",
          changed(MODEL, "limit / norm", "limit / (norm + 1e-6)"),
          "that 1e-6 was added to"),
    Wrong("eps in the root",
          changed(MODEL, "comm.all_reduce(mean.square().sum())", "(comm.all_reduce(mean.square().sum()) + 1e-12)"),
          "is anything added to the norm, or below its root"),
    Wrong("norms added up",
          changed(changed(MODEL,
                          "(gradient, average=True).float() / scale\n"
                          "    norm = comm.all_reduce(mean.square().sum()).sqrt()",
                          "(gradient.float(), average=True) / scale\n"
                          "    norm = comm.all_reduce(mean.norm())"),
                  "main -= rate * (limit / norm).clamp(max=1.0)",
                  "mean *= (limit / norm).clamp(max=1.0)\n    main -= rate"),
          "a sum of the shards' norms"),
    Wrong("main from params",
          changed(MODEL,
                  "main -= rate * (limit / norm).clamp(max=1.0) * mean",
                  "mean *= (limit / norm).clamp(max=1.0)\n"
                  "    main.copy_(params.tensor_split(comm.size)[comm.rank].float() - rate * mean)"),
          "that are made from params"),
]  # fmt: skip

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
