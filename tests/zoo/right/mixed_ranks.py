"""Right answers of lesson 06 on ranks: main parameters, agreement, sums."""

from zoo.right.answer import Right

RIGHT = [
    Right("alpha", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main.add_(mean, alpha=-rate)
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
"""),
    Right("new parameters each step", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.to(torch.bfloat16)
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main -= rate * mean.float()
        params = comm.all_gather(main.to(torch.bfloat16), start.numel())
    return params, main
"""),
    Right("torch's SGD", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    main = torch.nn.Parameter(start.tensor_split(comm.size)[comm.rank].clone())
    params, sgd = start.bfloat16(), torch.optim.SGD([main], lr=rate)
    for _ in range(steps):
        main.grad = comm.reduce_scatter(backward(params), average=True).float()
        sgd.step()
        comm.all_gather(main.detach().bfloat16(), params.numel(), out=params)
    return params, main.detach()
"""),
    Right("addcmul", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.chunk(1)[0].tensor_split(comm.size)[comm.rank].clone()
    minus = torch.full((1,), -rate)
    for step in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main.addcmul_(mean.float(), minus)
        params[:] = comm.all_gather(main.bfloat16(), numel=params.numel())
    return params, main
"""),
    Right("reduces into the gradient", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params, main = start.bfloat16(), start.tensor_split(comm.size)[comm.rank].clone()
    def one():
        gradient = backward(params)
        part = gradient.tensor_split(comm.size)[comm.rank]
        comm.reduce_scatter(gradient, average=True, out=part)
        main.sub_(part.float(), alpha=rate)
        comm.all_gather(main.bfloat16(), out=params)
    [one() for _ in range(steps)]
    return params, main
"""),
    Right("gradient named, new parameters", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.to(torch.bfloat16)
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        gradient = backward(params)
        mean = comm.reduce_scatter(gradient, average=True)
        main = main - rate * mean.float()
        shard = main.to(torch.bfloat16)
        params = comm.all_gather(shard, start.numel())
    return params, main
"""),
    Right("a count", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    bad = torch.zeros(1)
    for shard, handle in zip(shards, handles):
        handle.wait()
        bad += (~shard.isfinite()).sum()
    return comm.all_reduce(bad).item() > 0
"""),
    Right("all_gather of flags", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    mine = any(not torch.isfinite(shard).all() for shard in shards)
    flags = comm.all_gather(torch.tensor([float(mine)]))
    return bool(flags.any())
"""),
    Right("a sum in fp32 that is not finite", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    [handle.wait() for handle in handles]
    total = sum((shard.float().abs().sum() for shard in shards), torch.zeros(()))
    return not math.isfinite(comm.all_reduce(total).item())
"""),
    Right("zero times what is there", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    poison = torch.zeros(1, dtype=torch.float16)
    for handle, shard in zip(handles, shards):
        handle.wait()
        poison += (shard * 0).sum()
    return bool(comm.all_reduce(poison).isnan())
"""),
    Right("stops looking once it knows", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    def look():
        for shard, handle in zip(shards, handles, strict=True):
            handle.wait()
            if not bool(shard.isfinite().all()):
                return True
        return False
    return bool(comm.all_reduce(torch.tensor([look()], dtype=torch.float32)) > 0.5)
"""),
    Right("the mean of a flag", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    flags = torch.stack([(shard.abs() <= 65504).all() for shard in shards]).all().logical_not()
    return comm.all_reduce(flags.to(torch.float64), average=True).item() > 0.0
"""),
    Right("a byte", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    bad = torch.tensor([not all(shard.isfinite().all() for shard in shards)], dtype=torch.uint8)
    return comm.all_reduce(bad)[0].item() >= 1
"""),
    Right("in place", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    return (comm.reduce_scatter(total) / (micro_batches * comm.size)).to(keep)
"""),
    Right("average and div_", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = None
    for gradient in gradients:
        total = gradient.to(add) if total is None else total.add_(gradient)
    return comm.reduce_scatter(total, average=True).div_(micro_batches).to(keep)
"""),
    Right("functools.reduce", "mean_gradient", """
from functools import reduce
def mean_gradient(comm, gradients, micro_batches, add, keep):
    first = next(gradients).to(dtype=add)
    whole = reduce(torch.Tensor.add_, gradients, first)
    shard = comm.reduce_scatter(whole)
    shard /= comm.size * micro_batches
    return shard.to(keep)
"""),
    Right("scatter into the sum", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total.add_(gradient, alpha=1)
    part = total.tensor_split(comm.size)[comm.rank]
    comm.reduce_scatter(total, out=part)
    return part.clone().mul_(1 / (comm.size * micro_batches)).to(keep)
"""),
    Right("a generator of sums", "mean_gradient", """
from itertools import accumulate
from collections import deque
def mean_gradient(comm, gradients, micro_batches, add, keep):
    first = next(gradients).to(add)
    (total,) = deque(accumulate(gradients, lambda sum_, new: sum_.add_(new), initial=first), maxlen=1)
    mean = comm.reduce_scatter(total, average=True)
    return (mean / micro_batches).to(keep)
"""),
]  # fmt: skip
