"""Answers to `sharded_linear` of lesson 05, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("05_zero_3", "sharded_linear")

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
    Right("once_differentiable", """
from torch.autograd.function import once_differentiable
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape, x):
        ctx.comm, ctx.shape = comm, shape
        ctx.save_for_backward(shard, x)
        return F.linear(x, comm.all_gather(shard, math.prod(shape)).view(shape))
    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        shard, x = ctx.saved_tensors
        layer = ctx.comm.all_gather(shard, math.prod(ctx.shape)).view(ctx.shape)
        to_x = grad.mm(layer)
        del layer
        to_layer = grad.t().mm(x)
        return None, ctx.comm.reduce_scatter(to_layer.view(-1)) / ctx.comm.size, None, to_x
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
    Right("resize_ and save_for_backward of the empty weight", """
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape, x):
        weight = comm.all_gather(shard, math.prod(shape)).view(shape)
        out = F.linear(x, weight)
        ctx.nbytes = weight.untyped_storage().nbytes()
        weight.untyped_storage().resize_(0)
        ctx.comm = comm
        ctx.save_for_backward(shard, x, weight)
        return out
    @staticmethod
    def backward(ctx, grad):
        shard, x, weight = ctx.saved_tensors
        weight.untyped_storage().resize_(ctx.nbytes)
        ctx.comm.all_gather(shard, out=weight.view(-1))
        dx = grad @ weight
        weight.untyped_storage().resize_(0)
        dw = grad.t() @ x
        return None, ctx.comm.reduce_scatter(dw.view(-1), average=True), None, dx
def sharded_linear(comm, shard, shape, x):
    return GatheredLinear.apply(comm, shard, shape, x)
"""),
    Right("saved_tensors_hooks gather again", """
class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, comm, shard, shape):
        ctx.comm = comm
        return comm.all_gather(shard, math.prod(shape)).reshape(shape)
    @staticmethod
    def backward(ctx, grad):
        return None, ctx.comm.reduce_scatter(grad.contiguous().view(-1), average=True), None
def sharded_linear(comm, shard, shape, x):
    weight = Whole.apply(comm, shard, shape)
    place = weight.data_ptr()
    def pack(tensor):
        if tensor.data_ptr() == place and tensor.numel() == math.prod(shape):
            return tensor.shape, tensor.stride()
        return tensor
    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        size, stride = packed
        return comm.all_gather(shard.detach(), math.prod(shape)).as_strided(size, stride)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return F.linear(x, weight)
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
    Right("detached graph inside backward",
          changed(changed(MODEL,
                          "(*shape))\n",
                          "(shape))"),
                  "of_x = grad @ ctx.comm.all_gather(shard, math.prod(ctx.shape)).view(*ctx.shape)\n"
                  "        return None, ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True), "
                  "None, of_x\n",
                  """with torch.enable_grad():
            layer = ctx.comm.all_gather(shard.detach(), math.prod(ctx.shape)).view(ctx.shape).requires_grad_()
            again = x.detach().requires_grad_()
            dw, dx = torch.autograd.grad(F.linear(again, layer), (layer, again), grad)
        del layer
        return None, ctx.comm.reduce_scatter(dw.reshape(-1), average=True), None, dx""")),
    Right("the plain way",
          changed(changed(MODEL,
                          "(*shape))\n",
                          "(shape))"),
                  "of_x = grad @ ctx.comm.all_gather(shard, math.prod(ctx.shape)).view(*ctx.shape)\n"
                  "        return None, ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True), "
                  "None, of_x\n",
                  """layer = ctx.comm.all_gather(shard, math.prod(ctx.shape)).view(ctx.shape)
        to_x = grad @ layer
        del layer
        to_layer = (grad.t() @ x).flatten()
        return None, ctx.comm.reduce_scatter(to_layer, average=True), None, to_x""")),
    Right("save shard and x on ctx, bmm by hand", """
class Lin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, comm, shape):
        ctx.save_for_backward(x, shard)
        ctx.rest = comm, shape
        return torch.mm(x, comm.all_gather(shard, shape[0] * shape[1]).view(shape).t())
    @staticmethod
    def backward(ctx, slope):
        x, shard = ctx.saved_tensors
        comm, shape = ctx.rest
        whole = torch.mm(slope.t(), x).view(-1)
        mine = whole.tensor_split(comm.size)[comm.rank]
        comm.reduce_scatter(whole, average=True, out=mine)
        mine = mine.clone()
        del whole
        return torch.mm(slope, comm.all_gather(shard, shape[0] * shape[1]).view(shape)), mine, None, None
def sharded_linear(comm, shard, shape, x):
    return Lin.apply(x, shard, comm, shape)
"""),
    # Written from the text alone.
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
    Right("reduces first, setup_context", """
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
]  # fmt: skip
