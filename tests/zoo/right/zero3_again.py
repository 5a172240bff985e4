"""Right answers to the exercises of lesson 05, written from their texts alone."""

from zoo.right.answer import Right

RIGHT = [
    Right("recursion", "forward", """
def forward(comm, shards, shapes, x):
    def one(shard, shape, x):
        return torch.nn.functional.linear(x, comm.all_gather(shard, shape[0] * shape[1]).reshape(shape))
    if not shards:
        return x
    x = one(shards[0], shapes[0], x)
    return forward(comm, shards[1:], shapes[1:], x.clamp(min=0)) if shards[1:] else x
"""),
    Right("saved tensors' hooks", "sharded_linear", """
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, numel):
        ctx.comm = comm
        return comm.all_gather(shard, numel)

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.comm.reduce_scatter(grad.reshape(-1), average=True), None


def sharded_linear(comm, shard, shape, x):
    whole = GatheredLinear.apply(comm, shard, math.prod(shape))
    at = whole.untyped_storage().data_ptr()
    numel, kept = whole.numel(), shard.detach()

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() == at:
            return tuple(tensor.shape), tensor.stride()
        return tensor

    def unpack(saved):
        if isinstance(saved, tuple):
            return comm.all_gather(kept, numel).as_strided(*saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return F.linear(x, whole.view(shape))
"""),
    Right("reduces first, setup_context", "sharded_linear", """
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(comm, shard, shape, x):
        outputs, inputs = shape
        whole = torch.empty(outputs * inputs, dtype=shard.dtype)
        comm.all_gather(shard, out=whole)
        return x.mm(whole.view(outputs, inputs).t())

    @staticmethod
    def setup_context(ctx, arguments, output):
        ctx.comm, shard, ctx.shape, x = arguments
        ctx.save_for_backward(x, shard)

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        comm, numel = ctx.comm, math.prod(ctx.shape)
        slope = torch.einsum("bo,bi->oi", grad, x).contiguous().flatten()
        mine = comm.reduce_scatter(slope) / comm.size
        del slope
        whole = comm.all_gather_async(shard, numel).wait()
        return None, mine, None, torch.matmul(grad, whole.unflatten(0, ctx.shape))


def sharded_linear(comm, shard, shape, x):
    return GatheredLinear.apply(comm, shard, shape, x)
"""),
    Right("a generator of layers", "prefetched", """
def prefetched(comm, shards, shapes, x, layer):
    def layers():
        work = list(zip(shards, shapes))[::-1]
        shard, shape = work.pop()
        handle = comm.all_gather_async(shard, shape[0] * shape[1])
        while handle:
            weight = handle.wait().reshape(shape)
            handle = None
            if work:
                shard, shape = work.pop()
                handle = comm.all_gather_async(shard, shape[0] * shape[1])
            yield weight
            del weight
    source = layers()
    while True:
        try:
            x = layer(x, next(source))
        except StopIteration:
            return x
"""),
    Right("closures in a tuple", "Persistent", """
class Persistent:
    def __init__(self, comm, tensors, threshold):
        kept, self.makers = [], []
        for tensor in tensors:
            if tensor.numel() < threshold:
                mine = tensor.detach().contiguous().clone()
                self.makers.append(lambda mine=mine: mine.clone())
            else:
                mine = torch.tensor_split(tensor.flatten(), comm.size)[comm.rank].clone()
                shape, numel = tuple(tensor.shape), tensor.numel()
                self.makers.append(lambda a=mine, b=numel, c=shape: comm.all_gather(a, b).reshape(c))
            kept.append(mine)
        self.kept = tuple(kept)

    def whole(self, index):
        return self.makers[index]()
"""),
    Right("the tensors themselves where they are small, dataclass", "Persistent", """
from dataclasses import dataclass, field

@dataclass
class Persistent:
    comm: object
    tensors: object
    threshold: int
    kept: list = field(default_factory=list)
    cut: dict = field(default_factory=dict)

    def __post_init__(self):
        for i, t in enumerate(self.tensors):
            if t.numel() < self.threshold:
                self.kept.append(t)
                continue
            self.cut[i] = list(t.size())
            begin = sum(n for n in self.sizes(t.numel())[: self.comm.rank])
            flat = t.contiguous().view(-1)
            self.kept.append(flat[begin : begin + self.sizes(t.numel())[self.comm.rank]].clone())
        del self.tensors

    def sizes(self, numel):
        each, over = divmod(numel, self.comm.size)
        return [each + 1] * over + [each] * (self.comm.size - over)

    def whole(self, index):
        if index not in self.cut:
            return self.kept[index]
        shape = self.cut[index]
        out = torch.empty(math.prod(shape), dtype=self.kept[index].dtype)
        self.comm.all_gather(self.kept[index], out=out)
        return out.view(shape)
"""),
    Right("from the end", "step_bytes", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    def part(numel):
        return 4 * (numel - numel // ranks)
    one = sum(part(numel) for numel, _ in units)
    left = sum(trains for _, trains in units)
    for numel, trains in reversed(units):
        if left <= 0:
            break
        one += part(numel)
        if trains:
            one += part(numel)
            left -= 1
    return one * micro_batches
"""),
    Right("reduce over frozen sets", "explain_trace", """
from functools import reduce
from itertools import accumulate
def explain_trace(trace):
    def after(here, step):
        event, unit = step
        return here | {unit} if event == "gather" else here - {unit} if event == "release" else here
    states = list(accumulate(trace, after, initial=frozenset()))
    away = {unit for (event, unit), here in zip(trace, states) if event == "use" and unit not in here}
    return max(map(len, states)), sorted(states[-1]), sorted(away)
"""),
    Right("a dictionary of flags", "explain_trace", """
class Watch:
    def __init__(self):
        self.here, self.most, self.away = {}, 0, []

    def gather(self, unit):
        self.here[unit] = True
        self.most = max(self.most, sum(self.here.values()))

    def release(self, unit):
        self.here[unit] = False

    def use(self, unit):
        if not self.here.get(unit, False) and unit not in self.away:
            self.away.append(unit)


def explain_trace(trace):
    watch = Watch()
    for event, unit in trace:
        getattr(watch, event)(unit)
    return watch.most, sorted(unit for unit, here in watch.here.items() if here), sorted(watch.away)
"""),
]  # fmt: skip
