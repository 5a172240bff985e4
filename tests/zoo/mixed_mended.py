"""Wrong answers to the exercise of lesson 06 that mends a step: the sketch, and what is left of its faults."""

from zoo.wrong import Wrong, blank, changed

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
MENDED = """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    if not norm.isfinite():
        return False
    main -= rate * (limit / norm).clamp(max=1.0) * mean
    comm.all_gather(main.half(), out=params)
    return True
"""

ZOO = [
    blank("mended_step"),
    Wrong("as published", "mended_step", SKETCH, "A collective needs every rank"),
    Wrong("skips with its shard", "mended_step",
          changed(MENDED, "norm.isfinite()", "mean.isfinite().all()"), "the ranks part ways"),
    Wrong("skips with its shard, hangs nobody", "mended_step", '''
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    taken = bool(mean.isfinite().all())
    if taken:
        main -= rate * (limit / norm).clamp(max=1.0) * mean
    comm.all_gather(main.half(), out=params)
    return taken
''', "must stop the step on all ranks"),
    Wrong("never skips", "mended_step", changed(MENDED, "    if not norm.isfinite():\n        return False\n", ""),
          "and the mean with it"),
    Wrong("a tensor for an answer", "mended_step", changed(MENDED, "return True", "return norm.isfinite()"),
          "True where the step is taken"),
    Wrong("says that it skips", "mended_step", changed(MENDED, "return True", "return False"), "is the norm finite"),
    Wrong("updates, then skips", "mended_step", '''
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).float() / scale
    norm = comm.all_reduce(mean.square().sum()).sqrt()
    main -= rate * (limit / norm).clamp(max=1.0) * mean
    if not norm.isfinite():
        return False
    comm.all_gather(main.half(), out=params)
    return True
''', "a step that is skipped changes nothing"),
    Wrong("agrees, and mends nothing else", "mended_step", '''
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True)
    norm = comm.all_reduce(mean.float().square().sum()).sqrt()
    if not norm.isfinite():
        return False
    mean = mean * (limit / norm).clamp(max=1.0)
    mean = mean / scale
    shard = params.tensor_split(comm.size)[comm.rank]
    shard -= rate * mean
    comm.all_gather(shard.clone(), out=params)
    return True
''', "they are what an update changes, in place"),
    Wrong("a new main", "mended_step", changed(MENDED, "main -= rate", "main = main - rate"),
          "main parameters are as they were: they"),
    Wrong("clips before it unscales", "mended_step",
          changed(changed(MENDED, ".float() / scale", ".float()"), "* mean\n", "* mean / scale\n"),
          "the limit is meant for the real ones"),
    Wrong("unscales in fp16", "mended_step", changed(MENDED, ".float() / scale", " / scale").replace(
          "mean.square()", "mean.float().square()").replace("* mean\n", "* mean.float()\n"),
          "they are too small for it"),
    Wrong("through bf16", "mended_step", changed(MENDED, ".float() / scale", ".bfloat16().float() / scale"),
          "that went through bf16"),
    Wrong("both of these", "mended_step", '''
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True)
    norm = comm.all_reduce(mean.float().square().sum()).sqrt()
    if not norm.isfinite():
        return False
    main -= rate * (limit / norm).clamp(max=1.0) * (mean / scale).float()
    comm.all_gather(main.half(), out=params)
    return True
''', "clipping of scaled gradients and a division"),
    Wrong("clips and unscales in fp16", "mended_step", '''
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True)
    norm = comm.all_reduce((mean.float() / scale).square().sum()).sqrt()
    if not norm.isfinite():
        return False
    mean = mean * (limit / norm).clamp(max=1.0)
    mean = mean / scale
    main -= rate * mean
    comm.all_gather(main.half(), out=params)
    return True
''', "which dtype has the mean when it is divided"),
    Wrong("the factors in fp16", "mended_step", '''
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True)
    norm = comm.all_reduce((mean.float() / scale).square().sum()).sqrt()
    if not norm.isfinite():
        return False
    main -= rate * mean / scale * (limit / norm).clamp(max=1.0)
    comm.all_gather(main.half(), out=params)
    return True
''', "rounded to 16 bits on their way"),
    Wrong("updates the cast", "mended_step", changed(MENDED,
          "    main -= rate * (limit / norm).clamp(max=1.0) * mean\n", '''
    shard = params.tensor_split(comm.size)[comm.rank]
    shard -= rate * (limit / norm).clamp(max=1.0) * mean
    main.copy_(shard)
'''), "which copy is updated, and which is its cast"),
    Wrong("never unscales", "mended_step", changed(MENDED, " / scale", ""), "divide by the scale before"),
    Wrong("unscales twice", "mended_step", changed(MENDED, " / scale", " / scale / scale"),
          "divided by the scale twice"),
    Wrong("its own norm", "mended_step",
          changed(MENDED, "    main -=", "    norm = mean.norm()\n    main -="), "the norm is of all"),
    Wrong("does not clip", "mended_step", changed(MENDED, "(limit / norm).clamp(max=1.0) * ", ""), "not clipped"),
    Wrong("scales up", "mended_step", changed(MENDED, ".clamp(max=1.0)", ""), "a factor above 1"),
    Wrong("sum for mean", "mended_step", changed(MENDED, ", average=True", ""), "sum of the gradients"),
    Wrong("own gradients", "mended_step",
          changed(MENDED, "comm.reduce_scatter(gradient, average=True)",
                  "gradient.tensor_split(comm.size)[comm.rank]"), "take the mean over the ranks"),
    Wrong("keeps the parameters", "mended_step", changed(MENDED, "    comm.all_gather(main.half(), out=params)\n", ""),
          "everybody needs their casts"),
    Wrong("its own shard", "mended_step",
          changed(MENDED, "comm.all_gather(main.half(), out=params)",
                  "params.tensor_split(comm.size)[comm.rank].copy_(main)"), "hand the shards around"),
    Wrong("updates both", "mended_step",
          changed(MENDED, "    comm.all_gather(main.half(), out=params)", '''
    shard = params.tensor_split(comm.size)[comm.rank]
    shard -= (rate * (limit / norm).clamp(max=1.0) * mean).half()
    comm.all_gather(shard.clone(), out=params)'''), "write those over them"),
]  # fmt: skip
