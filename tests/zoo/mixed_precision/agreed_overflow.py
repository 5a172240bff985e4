"""Answers to `agreed_overflow` of lesson 06, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a sum in fp32 that is not finite", """
def agreed_overflow(comm, shards, handles):
    [handle.wait() for handle in handles]
    total = sum((shard.float().abs().sum() for shard in shards), torch.zeros(()))
    return not math.isfinite(comm.all_reduce(total).item())
"""),
    Right("zero times what is there", """
def agreed_overflow(comm, shards, handles):
    poison = torch.zeros(1, dtype=torch.float16)
    for handle, shard in zip(handles, shards):
        handle.wait()
        poison += (shard * 0).sum()
    return bool(comm.all_reduce(poison).isnan())
"""),
    Right("stops looking once it knows", """
def agreed_overflow(comm, shards, handles):
    def look():
        for shard, handle in zip(shards, handles, strict=True):
            handle.wait()
            if not bool(shard.isfinite().all()):
                return True
        return False
    return bool(comm.all_reduce(torch.tensor([look()], dtype=torch.float32)) > 0.5)
"""),
    Right("the mean of a flag", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    flags = torch.stack([(shard.abs() <= 65504).all() for shard in shards]).all().logical_not()
    return comm.all_reduce(flags.to(torch.float64), average=True).item() > 0.0
"""),
    Right("waits for the last, which ends last", """
def agreed_overflow(comm, shards, handles):
    handles[-1].wait()
    bad = torch.cat(shards).isfinite().logical_not().any()
    return bool(comm.all_gather(bad.float().view(1)).any())
"""),
]  # fmt: skip
