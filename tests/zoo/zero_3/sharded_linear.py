"""Answers to `sharded_linear` of lesson 05, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("checkpoint", """
from torch.utils.checkpoint import checkpoint
class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape):
        ctx.comm = comm
        return comm.all_gather(shard, math.prod(shape)).view(*shape)
    @staticmethod
    def backward(ctx, grad):
        return None, ctx.comm.reduce_scatter(grad.flatten(), average=True), None
def sharded_linear(comm, shard, shape, x):
    layer = lambda shard, x: F.linear(x, Gathered.apply(comm, shard, shape))
    return checkpoint(layer, shard, x, use_reentrant=False, preserve_rng_state=False)
"""),
    Right("setup_context", """
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(comm, shard, shape, x):
        return x @ comm.all_gather(shard, math.prod(shape)).view(shape).t()
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.comm, shard, ctx.shape, x = inputs
        ctx.save_for_backward(shard, x)
    @staticmethod
    def backward(ctx, grad):
        shard, x = ctx.saved_tensors
        to_layer = (grad.t() @ x).flatten()
        mean = ctx.comm.reduce_scatter(to_layer, average=True)
        del to_layer
        layer = ctx.comm.all_gather(shard, math.prod(ctx.shape)).view(ctx.shape)
        return None, mean, None, grad @ layer
def sharded_linear(comm, shard, shape, x):
    return GatheredLinear.apply(comm, shard, shape, x)
"""),
    Right("resize_ with a Function that gathers", """
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape):
        ctx.comm, ctx.n = comm, math.prod(shape)
        return comm.all_gather(shard, ctx.n).view(shape)
    @staticmethod
    def backward(ctx, grad):
        return None, ctx.comm.reduce_scatter(grad.reshape(-1), average=True), None
class Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, box):
        ctx.box = box
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        ctx.box[0].resize_(0)
        return grad, None
class Release(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, comm, shard, storage, weight):
        ctx.comm, ctx.shard, ctx.storage = comm, shard, storage
        ctx.size = storage.nbytes()
        storage.resize_(0)
        return y.view_as(y)
    @staticmethod
    def backward(ctx, grad):
        ctx.storage.resize_(ctx.size)
        whole = torch.empty(0, dtype=ctx.shard.dtype).set_(ctx.storage, 0, (ctx.size // ctx.shard.element_size(),))
        ctx.comm.all_gather(ctx.shard.detach(), out=whole)
        return grad, None, None, None, None
def sharded_linear(comm, shard, shape, x):
    weight = Gather.apply(comm, shard, shape)
    y = F.linear(Empty.apply(x, [weight.untyped_storage()]), weight)
    return Release.apply(y, comm, shard.detach(), weight.untyped_storage(), None)
"""),
    Right("ctx attributes and a helper closure; grads in place", """
def sharded_linear(comm, shard, shape, x):
    rows, columns = shape
    def whole():
        return comm.all_gather(shard.detach(), rows * columns).view(rows, columns)
    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part, x):
            ctx.save_for_backward(x)
            return F.linear(x, whole())
        @staticmethod
        def backward(ctx, grad):
            x, = ctx.saved_tensors
            dx = grad @ whole() if ctx.needs_input_grad[1] else None
            dw = torch.einsum("bo,bi->oi", grad, x).contiguous()
            return comm.reduce_scatter(dw.flatten(), average=True), dx
    return Layer.apply(shard, x)
"""),
    Right("saved tensors' hooks", """
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
]  # fmt: skip
