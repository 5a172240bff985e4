"""Right answers to the exercises of lesson 04, written from their texts alone."""

from zoo.right.answer import Right

RIGHT = [
    Right("a class as hook and context, sums in place", "shards_in_time", """
class Reducer:
    def __init__(self, comm, parameters):
        self.comm, self.parameters = comm, parameters
        self.shards = [self.mine(torch.zeros(p.numel(), dtype=p.dtype)).clone() for p in parameters]

    def mine(self, flat):
        return flat.tensor_split(self.comm.size)[self.comm.rank]

    def __call__(self, parameter):
        index = next(i for i, p in enumerate(self.parameters) if p is parameter)
        flat = parameter.grad.contiguous().view(-1)
        parameter.grad = None
        self.comm.reduce_scatter(flat, out=self.shards[index])
        self.shards[index] /= self.comm.size

    def __enter__(self):
        self.handles = [p.register_post_accumulate_grad_hook(self) for p in self.parameters if p.requires_grad]
        return self

    def __exit__(self, *what):
        while self.handles:
            self.handles.pop().remove()


def shards_in_time(comm, model, inputs):
    with Reducer(comm, [*model.parameters()]) as reducer:
        loss = torch.mean(model(inputs.clone().detach()) ** 2)
        if loss.grad_fn is not None:
            torch.autograd.backward(loss)
    return list(reducer.shards)
"""),
    Right("generator, prepared shards", "in_flight", """
def in_flight(comm, gradients, limit):
    def landed():
        flying = []
        for gradient in gradients:
            if not len(flying) < limit:
                yield flying.pop(0).wait()
            numel = gradient.numel()
            size = numel // comm.size + int(comm.rank < numel % comm.size)
            flying.append(comm.reduce_scatter_async(gradient, True, torch.empty(size, dtype=gradient.dtype)))
        yield from (handle.wait() for handle in flying)
    return list(landed())
"""),
    Right("reduces in place, then copies; divides after", "in_flight", """
def in_flight(comm, gradients, limit):
    handles, shards, oldest = {}, [], 0
    def end():
        nonlocal oldest
        shards.append(handles.pop(oldest).wait().clone().div_(comm.size))
        oldest += 1
    number = 0
    source = iter(gradients)
    while (gradient := next(source, None)) is not None:
        if number - oldest >= limit:
            end()
        part = gradient.tensor_split(comm.size)[comm.rank]
        handles[number] = comm.reduce_scatter_async(gradient, out=part)
        del gradient, part
        number += 1
    while handles:
        end()
    return shards
"""),
    Right("stack, mean, out", "accumulate", """
def accumulate(comm, micro_batches, each):
    first, n = micro_batches[0], len(micro_batches)
    if not each:
        return comm.reduce_scatter(torch.stack(micro_batches).sum(0).div(n), average=True)
    mine = first.tensor_split(comm.size)[comm.rank]
    total, arrived = torch.zeros_like(mine), torch.empty_like(mine)
    for gradient in micro_batches:
        total += comm.reduce_scatter(gradient, average=True, out=arrived) / n
    return total
"""),
    Right("logarithms", "clip_", """
def clip_(comm, shards, used, limit, norm_type):
    p = float(norm_type)
    none = torch.full((1,), -torch.inf, dtype=torch.float64)
    def together(logs):
        if logs.isnan().any():
            return torch.full((), torch.nan, dtype=torch.float64)
        top = logs.amax()
        if p == torch.inf or top.isinf():
            return top
        return top + torch.log(torch.exp((logs - top) * p).sum()) / p
    logs = torch.cat([none] + [shard.narrow(0, 0, n).double().abs().log() for shard, n in zip(shards, used)])
    total = float(together(comm.all_gather(together(logs).view(1))).exp())
    if total == total and total != torch.inf and total > limit:
        [shard.copy_(shard.double().mul_(limit / total)) for shard in shards]
    return total
"""),
    Right("scaled by a power of two", "clip_", """
def clip_(comm, shards, used, limit, norm_type):
    norm_of = torch.linalg.vector_norm
    def safe(values):
        top = norm_of(values, torch.inf) if values.numel() else values.new_zeros(())
        if not top.isfinite() or top == 0:
            return top
        exponent = torch.frexp(top).exponent
        return torch.ldexp(norm_of(torch.ldexp(values, -exponent), norm_type), exponent)
    parts = [safe(shard[:n].double()) for shard, n in zip(shards, used)]
    mine = safe(torch.stack(parts)) if parts else torch.zeros((), dtype=torch.float64)
    total = safe(comm.all_gather(mine[None])).item()
    if total > limit and total != torch.inf:
        factor = torch.tensor(limit, dtype=torch.float64) / total
        for shard in shards:
            shard[:] = shard.double() * factor
    return total
"""),
    Right("a list of calls", "sent_bytes", """
def sent_bytes(numel, ranks, micro_batches, each):
    calls = ["reduce_scatter"] * (micro_batches ** each) + ["all_gather"]
    return sum((numel - numel // ranks) * 4 for _ in calls)
"""),
    Right("one callable that looks up its place", "MendedBackward", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.comm = comm
        self.place = {p: i for i, p in enumerate(parameters)}
        self.shards = [p.new_empty(0) for p in parameters]
        for p, i in self.place.items():
            numel = p.numel()
            self.shards[i] = p.detach().new_zeros(len(range(comm.rank, numel, comm.size)))
            p.register_post_accumulate_grad_hook(self)

    @torch.no_grad()
    def __call__(self, parameter):
        slope, parameter.grad = parameter.grad, None
        part = self.comm.reduce_scatter(slope.contiguous().view(-1))
        del slope
        self.shards[self.place[parameter]].add_(part, alpha=1 / self.comm.size)
"""),
]  # fmt: skip
