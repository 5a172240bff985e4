"""Wrong answers to the exercises of lesson 06 on steps, overflow and sums over ranks."""

from zoo.wrong import Wrong, blank, changed

MIXED = """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main -= rate * mean.float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
"""
OVERFLOW = """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    bad = any(not shard.isfinite().all() for shard in shards)
    return comm.all_reduce(torch.tensor([float(bad)])).item() > 0
"""
SUMS = """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    mean = comm.reduce_scatter(total, average=True) / micro_batches
    return mean.to(keep)
"""

STEP = [
    blank("train_mixed"),
    Wrong("main from the cast", "train_mixed",
          changed(MIXED, "start.tensor_split(comm.size)[comm.rank].clone()",
                  "params.tensor_split(comm.size)[comm.rank].float()"), "began as the bf16 ones"),
    Wrong("no main parameters", "train_mixed", '''
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    shard = params.tensor_split(comm.size)[comm.rank]
    for _ in range(steps):
        shard -= rate * comm.reduce_scatter(backward(params), average=True)
        comm.all_gather(shard, out=params)
    return params, shard.float()
''', "and nobody collects them"),
    Wrong("multiplies in bf16", "train_mixed", changed(MIXED, "mean.float()", "mean"),
          "convert the mean to fp32 first"),
    Wrong("sum for mean", "train_mixed", changed(MIXED, ", average=True", ""), "sum of the gradients"),
    Wrong("sends fp16", "train_mixed", changed(MIXED, "backward(params)", "backward(params).half()"),
          "what went through fp16 gives"),
    Wrong("averages twice", "train_mixed", changed(MIXED, "rate * mean", "rate / comm.size * mean"),
          "divided by N twice"),
    Wrong("own gradients", "train_mixed",
          changed(MIXED, "comm.reduce_scatter(backward(params), average=True)",
                  "backward(params).tensor_split(comm.size)[comm.rank]"), "without the other ranks' gradients"),
    Wrong("does not gather", "train_mixed",
          changed(MIXED, "comm.all_gather(main.bfloat16(), out=params)",
                  "params.tensor_split(comm.size)[comm.rank].copy_(main)"), "its own shard alone is new"),
    Wrong("never casts back", "train_mixed",
          changed(MIXED, "        comm.all_gather(main.bfloat16(), out=params)\n", ""),
          "the parameters as they began: what"),
    Wrong("gathers first", "train_mixed", '''
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        comm.all_gather(main.bfloat16(), out=params)
        main -= rate * mean.float()
    return params, main
''', "one step late"),
    Wrong("gathers at the end", "train_mixed",
          changed(MIXED, "        comm.all_gather(", "    comm.all_gather("), "gather in every step"),
    Wrong("its shard in between, all at the end", "train_mixed",
          changed(MIXED, "        comm.all_gather(main.bfloat16(), out=params)",
                  "        params.tensor_split(comm.size)[comm.rank].copy_(main)\n"
                  "    comm.all_gather(main.bfloat16(), out=params)"), "it computes with the newest of all"),
    Wrong("computes in fp32", "train_mixed", changed(MIXED, "start.bfloat16()", "start.clone()").replace(
          "all_gather(main.bfloat16()", "all_gather(main"), "compute in 16 bits"),
    Wrong("gives back fp32", "train_mixed",
          changed(MIXED, "return params,", "return comm.all_gather(main, len(start)),"),
          "parameters in fp32: what"),
    Wrong("parameters rounded, in fp32", "train_mixed", changed(MIXED, "return params,", "return params.float(),"),
          "should have the dtype, too"),
    Wrong("all main parameters", "train_mixed",
          changed(MIXED, "return params, main", "return params, comm.all_gather(main, len(start))"),
          "keep and return your own shard"),
    Wrong("parameters alone", "train_mixed", changed(MIXED, "return params, main", "return params"),
          "the parameters alone"),
    Wrong("the other order", "train_mixed", changed(MIXED, "return params, main", "return main, params"),
          "in the other order"),
    Wrong("keeps the cast", "train_mixed",
          changed(MIXED, "        comm.all_gather(main.bfloat16(), out=params)",
                  "        comm.all_gather(main.bfloat16(), out=params)\n    main = main.bfloat16()"),
          "main parameters in bf16"),
    Wrong("loses the update", "train_mixed", '''
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    new = main.clone()
    for _ in range(steps):
        new = new - rate * comm.reduce_scatter(backward(params), average=True).float()
        comm.all_gather(new.bfloat16(), out=params)
    return params, main
''', "the main parameters as they began"),
    Wrong("one step too few", "train_mixed", changed(MIXED, "range(steps)", "range(steps - 1)"),
          "6 steps are due: a gradient"),
    Wrong("one step too many", "train_mixed", changed(MIXED, "range(steps)", "range(steps + 1)"),
          "more often than the 6 steps"),
    Wrong("backward of the shard", "train_mixed",
          changed(MIXED, "backward(params)", "backward(main.bfloat16())"), "it computes with the whole model"),
    Wrong("trains the start", "train_mixed", changed(MIXED, "[comm.rank].clone()", "[comm.rank]"), "it overwrote"),
    Wrong("reduces in fp32", "train_mixed", changed(MIXED, "backward(params)", "backward(params).float()"),
          "what travels in fp32"),
    Wrong("all-reduces", "train_mixed",
          changed(MIXED, "comm.reduce_scatter(backward(params), average=True)",
                  "comm.all_reduce(backward(params), average=True).tensor_split(comm.size)[comm.rank]"),
          "bytes a rank sends in 6 steps"),
    Wrong("main parameters of all", "train_mixed", '''
def train_mixed(comm, start, backward, steps, rate):
    params, whole = start.bfloat16(), start.clone()
    main = whole.tensor_split(comm.size)[comm.rank]
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main -= rate * mean.float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
''', "what is there in fp32 for the whole model"),
    Wrong("one call too many", "train_mixed",
          changed(MIXED, "    return params", "    comm.barrier()\n    return params"),
          "two calls a step"),
]  # fmt: skip

AGREE = [
    blank("agreed_overflow"),
    Wrong("own shards", "agreed_overflow",
          changed(OVERFLOW, "comm.all_reduce(torch.tensor([float(bad)])).item() > 0", "bad"),
          "of its own shards alone"),
    Wrong("looks too early", "agreed_overflow",
          changed(OVERFLOW, "    for handle in handles:\n        handle.wait()\n", ""), "the last step's numbers"),
    Wrong("looks, then waits", "agreed_overflow", '''
def agreed_overflow(comm, shards, handles):
    bad = any(not shard.isfinite().all() for shard in shards)
    for handle in handles:
        handle.wait()
    return comm.all_reduce(torch.tensor([float(bad)])).item() > 0
''', "after its wait(), not before"),
    Wrong("inf alone", "agreed_overflow", changed(OVERFLOW, "not shard.isfinite().all()", "shard.isinf().any()"),
          "A nan is an overflow"),
    Wrong("upwards alone", "agreed_overflow",
          changed(OVERFLOW, "not shard.isfinite().all()", "not (shard < math.inf).all()"), "-inf is not finite"),
    Wrong("the sum", "agreed_overflow", changed(OVERFLOW, "shard.isfinite().all()", "shard.sum().isfinite()"),
          "overflows by itself"),
    Wrong("large is overflow", "agreed_overflow",
          changed(OVERFLOW, "not shard.isfinite().all()", "not (shard.abs() < 60000).all()"), "inf and nan alone"),
    Wrong("the wrong way round", "agreed_overflow",
          changed(OVERFLOW, "any(not shard.isfinite().all()", "all(shard.isfinite().all()"),
          "It is the other way round"),
    Wrong("one vote exactly", "agreed_overflow", changed(OVERFLOW, "> 0", "== 1"), "what do their votes add up to"),
    Wrong("all must overflow", "agreed_overflow", changed(OVERFLOW, "> 0", "== comm.size"),
          "One rank's overflow is enough"),
    Wrong("signs that cancel", "agreed_overflow", '''
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    vote = sum(s[s.isinf()].sign().float().sum() for s in shards) + sum(s.isnan().sum() for s in shards)
    return comm.all_reduce(vote.float().reshape(1)).item() != 0
''', "the other a -inf"),
    Wrong("a count of eight bits", "agreed_overflow", '''
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    count = sum(int((~shard.isfinite()).sum()) for shard in shards)
    return comm.all_reduce(torch.tensor([count]).to(torch.uint8)).item() > 0
''', "How far does what you send count"),
    Wrong("a tensor", "agreed_overflow", changed(OVERFLOW, ".item() > 0", " > 0"), "True or False is due"),
    Wrong("a vote for each bucket", "agreed_overflow", '''
def agreed_overflow(comm, shards, handles):
    votes = 0.0
    for shard, handle in zip(shards, handles):
        handle.wait()
        votes += comm.all_reduce(torch.tensor([float(not shard.isfinite().all())])).item()
    return votes > 0
''', "one vote is enough for all of them"),
    Wrong("a vote as long as the buckets", "agreed_overflow", '''
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    votes = torch.tensor([float(not shard.isfinite().all()) for shard in shards])
    return comm.all_reduce(votes).sum().item() > 0
''', "one number of each rank is enough"),
    Wrong("a barrier, then a vote", "agreed_overflow", changed(OVERFLOW, "    bad =", "    comm.barrier()\n    bad ="),
          "collectives: one is enough"),
    Wrong("the last bucket", "agreed_overflow",
          changed(OVERFLOW, "in shards)", "in shards[-1:])"), "Look at every bucket"),
    Wrong("empty shards overflow", "agreed_overflow",
          changed(OVERFLOW, "not shard.isfinite().all()", "shard.isfinite().float().mean() != 1"),
          "a shard without elements"),
    Wrong("all elements of a shard", "agreed_overflow",
          changed(OVERFLOW, "isfinite().all()", "isfinite().any()"), "One bad element among good ones"),
]  # fmt: skip

ADD = [
    blank("mean_gradient"),
    Wrong("adds in 16 bits", "mean_gradient",
          changed(SUMS, "next(gradients).to(add)", "next(gradients)").replace("(total,", "(total.to(add),"),
          "micro-batches that come late"),
    Wrong("all in 16 bits", "mean_gradient", changed(SUMS, "next(gradients).to(add)", "next(gradients)"),
          "over micro-batches and over ranks"),
    Wrong("reduces in 16 bits", "mean_gradient",
          changed(SUMS, "(total, average=True)", "(total.bfloat16(), average=True).to(add)"), "before the ranks add"),
    Wrong("reduces in what it keeps", "mean_gradient", changed(SUMS, "(total,", "(total.to(keep),"),
          "in the dtype that it sends"),
    Wrong("adds in fp32, whatever add is", "mean_gradient", changed(SUMS, ".to(add)", ".float()"), "travels in it"),
    Wrong("forgets to convert", "mean_gradient", changed(SUMS, "return mean.to(keep)", "return mean"),
          "`add` is for the sum"),
    Wrong("rounds on the way", "mean_gradient", changed(SUMS, "mean.to(keep)", "mean.bfloat16().to(keep)"),
          "rounded to bf16 on its way"),
    Wrong("divides in what it keeps", "mean_gradient",
          changed(SUMS, "average=True) / micro_batches", "average=True).to(keep) / micro_batches"),
          "before or after the last division"),
    Wrong("sum over micro-batches", "mean_gradient", changed(SUMS, " / micro_batches", ""),
          "the sum over the micro-batches"),
    Wrong("sum over ranks", "mean_gradient", changed(SUMS, ", average=True", ""), "the sum over the ranks"),
    Wrong("sum over both", "mean_gradient", changed(changed(SUMS, ", average=True", ""), " / micro_batches", ""),
          "take the mean over both"),
    Wrong("averages twice", "mean_gradient", changed(SUMS, "/ micro_batches", "/ micro_batches / comm.size"),
          "divided by N twice"),
    Wrong("own gradients", "mean_gradient",
          changed(SUMS, "comm.reduce_scatter(total, average=True)", "total.tensor_split(comm.size)[comm.rank]"),
          "nobody else's are in"),
    Wrong("whole", "mean_gradient", changed(SUMS, "reduce_scatter", "all_reduce"), "a rank keeps its shard"),
    Wrong("the last alone", "mean_gradient", changed(SUMS, "total += gradient", "total = gradient.to(add)"),
          "the last micro-batch alone gives, divided"),
    Wrong("the first alone", "mean_gradient", changed(SUMS, "        total += gradient", "        pass"),
          "the first micro-batch alone gives"),
    Wrong("drops the first", "mean_gradient", changed(SUMS, "next(gradients).to(add)", "next(gradients).to(add) * 0"),
          "without the first micro-batch"),
    Wrong("reduces each", "mean_gradient", '''
def mean_gradient(comm, gradients, micro_batches, add, keep):
    parts = [comm.reduce_scatter(gradient.to(add), average=True) for gradient in gradients]
    return (sum(parts) / micro_batches).to(keep)
''', "then reduce the sum, once"),
    Wrong("a list", "mean_gradient", '''
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = sum(gradient.to(add) for gradient in list(gradients))
    return (comm.reduce_scatter(total, average=True) / micro_batches).to(keep)
''', "a list of gradients"),
    Wrong("all-reduces", "mean_gradient",
          changed(SUMS, "comm.reduce_scatter(total, average=True)",
                  "comm.all_reduce(total, average=True).tensor_split(comm.size)[comm.rank]"),
          "add up what is yours first"),
]  # fmt: skip

ZOO = [*STEP, *AGREE, *ADD]
