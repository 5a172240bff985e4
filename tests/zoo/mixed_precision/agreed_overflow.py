"""Answers to `agreed_overflow` of lesson 06, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("06_mixed_precision", "agreed_overflow")

WRONG = [
    blank("agreed_overflow"),
    Wrong("own shards",
          changed(MODEL, "comm.all_reduce(torch.tensor([float(bad)])).item() > 0", "bad"),
          "of its own shards alone"),
    Wrong("looks too early",
          changed(MODEL, "    for handle in handles:\n        handle.wait()\n", ""),
          "the last step's numbers"),
    Wrong("looks, then waits", """
def agreed_overflow(comm, shards, handles):
    bad = any(not shard.isfinite().all() for shard in shards)
    for handle in handles:
        handle.wait()
    return comm.all_reduce(torch.tensor([float(bad)])).item() > 0
""", "after its wait(), not before"),
    Wrong("inf alone",
          changed(MODEL, "not shard.isfinite().all()", "shard.isinf().any()"),
          "A nan is an overflow"),
    Wrong("upwards alone",
          changed(MODEL, "shard.isfinite()", "(shard < math.inf)"),
          "-inf is not finite"),
    Wrong("the sum",
          changed(MODEL, "isfinite().all()", "sum().isfinite()"),
          "overflows by itself"),
    Wrong("large is overflow",
          changed(MODEL, "shard.isfinite()", "(shard.abs() < 60000)"),
          "inf and nan alone"),
    Wrong("the wrong way round",
          changed(MODEL, "any(not ", "all("),
          "It is the other way round"),
    Wrong("one vote exactly",
          changed(MODEL, "item() > 0", "item() == 1"),
          "what do their votes add up to"),
    Wrong("all must overflow",
          changed(MODEL, "item() > 0", "item() == comm.size"),
          "One rank's overflow is enough"),
    Wrong("signs that cancel", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    vote = sum(s[s.isinf()].sign().float().sum() for s in shards) + sum(s.isnan().sum() for s in shards)
    return comm.all_reduce(vote.float().reshape(1)).item() != 0
""", "the other a -inf"),
    Wrong("a count of eight bits", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    count = sum(int((~shard.isfinite()).sum()) for shard in shards)
    return comm.all_reduce(torch.tensor([count]).to(torch.uint8)).item() > 0
""", "How far does what you send count"),
    Wrong("a tensor",
          changed(MODEL, ".item() > 0", " > 0"),
          "True or False is due"),
    Wrong("a vote for each bucket", """
def agreed_overflow(comm, shards, handles):
    votes = 0.0
    for shard, handle in zip(shards, handles):
        handle.wait()
        votes += comm.all_reduce(torch.tensor([float(not shard.isfinite().all())])).item()
    return votes > 0
""", "one vote is enough for all of them"),
    Wrong("a vote as long as the buckets", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    votes = torch.tensor([float(not shard.isfinite().all()) for shard in shards])
    return comm.all_reduce(votes).sum().item() > 0
""", "one number of each rank is enough"),
    Wrong("a barrier, then a vote",
          changed(MODEL, "bad = any", "comm.barrier()\n    bad = any"),
          "collectives: one is enough"),
    Wrong("the last bucket",
          changed(MODEL, "in shards", "in shards[-1:]"),
          "Look at every bucket"),
    Wrong("empty shards overflow",
          changed(MODEL, "not shard.isfinite().all()", "shard.isfinite().float().mean() != 1"),
          "a shard without elements"),
    Wrong("all elements of a shard",
          changed(MODEL, "().all() for", "().any() for"),
          "One bad element among good ones"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("maxima added up in fp16", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    most = torch.stack([shard.abs().max() if len(shard) else shard.new_zeros(()) for shard in shards]).max()
    return not comm.all_reduce(most).isfinite().item()
""", "A sum or a norm of many large numbers"),
    Wrong("only nan", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    bad = torch.tensor([float(any(shard.isnan().any() for shard in shards))])
    return comm.all_reduce(bad).item() > 0
""", "Is inf an overflow for you"),
]  # fmt: skip

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
