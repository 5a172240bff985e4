"""Answers to `agreed_overflow` of lesson 06, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a count", """
def agreed_overflow(comm, shards, handles):
    bad = torch.zeros(1)
    for shard, handle in zip(shards, handles):
        handle.wait()
        bad += (~shard.isfinite()).sum()
    return comm.all_reduce(bad).item() > 0
"""),
    Right("all_gather of flags", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    mine = any(not torch.isfinite(shard).all() for shard in shards)
    flags = comm.all_gather(torch.tensor([float(mine)]))
    return bool(flags.any())
"""),
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
    Right("a byte", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    bad = torch.tensor([not all(shard.isfinite().all() for shard in shards)], dtype=torch.uint8)
    return comm.all_reduce(bad)[0].item() >= 1
"""),
    Right("map and amax of flags", """
import logging
def agreed_overflow(comm, shards, handles):
    list(map(lambda handle: handle.wait(), handles))
    flags = torch.tensor([float(sum(int(x.numel() - x.isfinite().sum()) for x in shards))], dtype=torch.float64)
    everybody = comm.all_gather(flags.clamp(max=1), comm.size)
    logging.getLogger("overflow").debug("votes %s", everybody)
    return everybody.amax().item() == 1.0
"""),
    Right("recursion over the buckets", """
def agreed_overflow(comm, shards, handles):
    def bad(index):
        if index == len(handles):
            return 0
        handles[index].wait()
        here = torch.nan_to_num(shards[index].float(), nan=math.inf, posinf=math.inf).abs().ge(1e30).any().item()
        return int(here) | bad(index + 1)
    vote = torch.zeros(1, dtype=torch.int64)
    vote[0] = bad(0)
    comm.all_reduce(vote)
    return True if vote[0] > 0 else False
"""),
    Right("waits for the last, which ends last", """
def agreed_overflow(comm, shards, handles):
    handles[-1].wait()
    bad = torch.cat(shards).isfinite().logical_not().any()
    return bool(comm.all_gather(bad.float().view(1)).any())
"""),
    Right("any stops early", """
def agreed_overflow(comm, shards, handles):
    bad = any(not handle.wait().isfinite().all() for handle in handles)
    return comm.all_reduce(torch.tensor(int(bad))).item() != 0
"""),
    Right("zero times", """
def agreed_overflow(comm, shards, handles):
    vote = torch.zeros(1)
    for handle, shard in zip(handles, shards):
        handle.wait()
        vote += (shard * 0).sum().float()
    return bool(comm.all_reduce(vote).isnan())
"""),
    Right("differences with itself", """
def agreed_overflow(comm, shards, handles):
    for h in reversed(handles):
        h.wait()
    mine = sum(int((s - s != 0).sum()) for s in shards)
    return max(comm.all_gather(torch.tensor([mine]), comm.size).tolist()) > 0
"""),
]  # fmt: skip
