"""Answers to `shards_in_time` of lesson 04, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("dict by id, closures", """
def shards_in_time(comm, model, inputs):
    done, handles = {}, []
    for p in model.parameters():
        if not p.requires_grad: continue
        def hook(param):
            g, param.grad = param.grad, None
            done[id(param)] = comm.reduce_scatter(g.reshape(-1), average=True)
        handles.append(p.register_post_accumulate_grad_hook(hook))
    model(inputs.detach()).square().mean().backward()
    for h in handles:
        h.remove()
    out = []
    for p in model.parameters():
        if id(p) not in done:
            done[id(p)] = torch.zeros(p.numel(), dtype=p.dtype).tensor_split(comm.size)[comm.rank].clone()
        out.append(done[id(p)])
    return out
"""),
    Right("exit stack and partial, sum then divide", """
from contextlib import ExitStack
from functools import partial
def shards_in_time(comm, model, inputs):
    params = list(model.parameters())
    result = [torch.zeros_like(p.detach().flatten().tensor_split(comm.size)[comm.rank]) for p in params]
    def take(i, p):
        flat = p.grad.flatten()
        p.grad = None
        result[i] = comm.reduce_scatter(flat) / comm.size
    with ExitStack() as stack:
        for i, p in enumerate(params):
            if p.requires_grad:
                stack.callback(p.register_post_accumulate_grad_hook(partial(take, i)).remove)
        out = model(inputs.detach())
        (out * out).mean().backward()
    return result
"""),
    Right("functional_call on aliases", """
from torch.func import functional_call
def shards_in_time(comm, model, inputs):
    aliases = {name: p.detach().requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
    shards = {}
    def make(name):
        def hook(alias):
            whole = alias.grad.contiguous().view(-1)
            alias.grad = None
            shards[name] = comm.reduce_scatter(whole, average=True)
        return hook
    for name, alias in aliases.items():
        n = len(torch.empty(alias.numel(), device="meta").tensor_split(comm.size)[comm.rank])
        shards[name] = torch.zeros(n, dtype=alias.dtype)
        if alias.requires_grad:
            alias.register_post_accumulate_grad_hook(make(name))
    functional_call(model, aliases, (inputs.detach(),)).square().mean().backward()
    return list(shards.values())
"""),
    Right("a class, try and finally, async handle waited at once", """
class Catcher:
    def __init__(self, comm, index, shards):
        self.comm, self.index, self.shards = comm, index, shards
    def __call__(self, parameter):
        whole = parameter.grad.ravel()
        parameter.grad = None
        self.shards[self.index] = self.comm.reduce_scatter_async(whole, average=True).wait()
def shards_in_time(comm, model, inputs):
    shards = {}
    hooks = []
    try:
        for index, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(Catcher(comm, index, shards)))
        loss = torch.mean(torch.square(model(inputs.detach().clone())))
        loss.backward()
    finally:
        while hooks:
            hooks.pop().remove()
    def part(index, parameter):
        if index in shards:
            return shards[index]
        k, m = divmod(parameter.numel(), comm.size)
        return parameter.new_zeros(k + (comm.rank < m), requires_grad=False)
    return [part(index, parameter) for index, parameter in enumerate(model.parameters())]
"""),
    Right("tensor hook reduces, post hook clears; inputs' grad restored", """
def shards_in_time(comm, model, inputs):
    kept, inputs.grad = inputs.grad, None
    parameters = [*model.parameters()]
    shards = [p.detach().reshape(-1).tensor_split(comm.size)[comm.rank].mul(0) for p in parameters]
    def early(shard):
        def hook(gradient):
            shard.copy_(comm.reduce_scatter(gradient.reshape(-1), average=True))
        return hook
    def late(p):
        p.grad = None
    hooks = []
    for p, shard in zip(parameters, shards):
        if p.requires_grad:
            hooks += [p.register_hook(early(shard)), p.register_post_accumulate_grad_hook(late)]
    model(inputs).square().mean().backward()
    [hook.remove() for hook in hooks]
    inputs.grad = kept
    return shards
"""),
    Right("context manager, hooks on AccumulateGrad nodes", """
from contextlib import contextmanager
@contextmanager
def caught(comm, model, into):
    nodes, handles = [], []
    for place, parameter in enumerate(model.parameters()):
        if not parameter.requires_grad:
            continue
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        def fire(*_, place=place, parameter=parameter):
            load = parameter.grad.contiguous().view(-1)
            parameter.grad = None
            into[place] = comm.reduce_scatter(load, average=True)
        nodes.append(node)
        handles.append(node.register_hook(fire))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
def shards_in_time(comm, model, inputs):
    into = {}
    with caught(comm, model, into):
        model(inputs.data).pow(2).mean().backward()
    save = []
    for place, parameter in enumerate(model.parameters()):
        if place not in into:
            length = len(range(parameter.numel())[comm.rank::comm.size])
            into[place] = torch.zeros(length, dtype=parameter.dtype)
        save.append(into[place])
    return save
"""),
    Right("backward with explicit gradient of the output", """
def shards_in_time(comm, model, inputs):
    kept = {}
    def hook(p):
        kept[p] = comm.reduce_scatter(p.grad.reshape(-1), average=True)
        del p.grad
    hooks = [p.register_post_accumulate_grad_hook(hook) for p in model.parameters() if p.requires_grad]
    y = model(inputs.detach())
    y.backward(y.detach() * (2 / y.numel()))
    for h in reversed(hooks):
        h.remove()
    def part(p):
        lo = sum(p.numel() // comm.size + (r < p.numel() % comm.size) for r in range(comm.rank))
        hi = lo + p.numel() // comm.size + (comm.rank < p.numel() % comm.size)
        return torch.zeros(hi - lo).to(p.dtype)
    return [kept.pop(p) if p in kept else part(p) for p in model.parameters()]
"""),
    Right("gives inputs back the gradient that they had", """
def shards_in_time(comm, model, inputs):
    had, inputs.grad = inputs.grad, None
    shards = {p: torch.zeros_like(p.detach().flatten().tensor_split(comm.size)[comm.rank]) for p in model.parameters()}

    def hook(p):
        shards[p], p.grad = comm.reduce_scatter(p.grad.flatten(), average=True), None

    handles = [p.register_post_accumulate_grad_hook(hook) for p in shards if p.requires_grad]
    (model(inputs) ** 2).mean().backward()
    [handle.remove() for handle in handles]
    inputs.grad = had
    return [*shards.values()]
"""),
    # Written from the text alone.
    Right("a class as hook and context, sums in place", """
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
]  # fmt: skip
