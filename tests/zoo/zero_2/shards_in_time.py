"""Answers to `shards_in_time` of lesson 04, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed

IN_TIME = """
def shards_in_time(comm, model, inputs):
    shards = {}

    def reduce(parameter):
        shards[parameter] = comm.reduce_scatter(parameter.grad.flatten(), average=True)
        parameter.grad = None

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hooks = [parameter.register_post_accumulate_grad_hook(reduce) for parameter in trained]
    model(inputs.detach()).square().mean().backward()
    for hook in hooks:
        hook.remove()
    for parameter in model.parameters():
        part = parameter.detach().flatten().tensor_split(comm.size)[comm.rank]
        shards.setdefault(parameter, torch.zeros_like(part))
    return [shards[parameter] for parameter in model.parameters()]
"""

WRONG = [
    blank("shards_in_time", "def shards_in_time(comm, model, inputs):\n"),
    Wrong("after backward", """
def shards_in_time(comm, model, inputs):
    model(inputs.detach()).square().mean().backward()
    shards = []
    for parameter in model.parameters():
        whole = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        shards.append(comm.reduce_scatter(whole.flatten(), average=True))
        parameter.grad = None
    return shards
""", "and 0 reductions had begun"),
    Wrong("a sum",
          changed(IN_TIME, "(), average=True", "()"),
          "shards of the sum over the ranks"),
    Wrong("unsharded result",
          changed(IN_TIME, "reduce_scatter", "all_reduce"),
          "whole gradients: a rank keeps"),
    Wrong("reduced everywhere, then cut",
          changed(IN_TIME,
                  "reduce_scatter(parameter.grad.flatten(), average=True)",
                  "all_reduce(parameter.grad.flatten(), average=True).tensor_split(comm.size)[comm.rank].clone()"),
          "each gradient takes one reduce_scatter"),
    Wrong("own data only",
          changed(IN_TIME,
                  "comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "parameter.grad.flatten().tensor_split(comm.size)[comm.rank]"),
          "shards of its own gradients"),
    Wrong("no wire at all", """
def shards_in_time(comm, model, inputs):
    loss, trained = model(inputs).square().mean(), [each for each in model.parameters() if each.requires_grad]
    wholes = dict(zip(trained, torch.autograd.grad(loss, trained, allow_unused=True)))
    return [torch.zeros(each.numel()) if wholes.get(each) is None else wholes[each].flatten()
            for each in model.parameters()]
""", "nothing was reduced"),
    Wrong("backward's order", """
def shards_in_time(comm, model, inputs):
    shards = []

    def reduce(parameter):
        shards.append(comm.reduce_scatter(parameter.grad.flatten(), average=True))
        parameter.grad = None

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hooks = [parameter.register_post_accumulate_grad_hook(reduce) for parameter in trained]
    model(inputs.detach()).square().mean().backward()
    for hook in hooks:
        hook.remove()
    return shards
""", "backward brought them: model.parameters() has another"),
    Wrong("hooks stay",
          changed(IN_TIME, "hook.remove()", "pass"),
          "outlive the call"),
    Wrong("drops nothing",
          changed(IN_TIME, "parameter.grad = None", "pass"),
          "still have a whole gradient"),
    Wrong("drops nothing until the end",
          changed(changed(IN_TIME,
                          "        parameter.grad = None\n",
                          ""),
                  "hook.remove()",
                  "hook.remove()\n    model.zero_grad()"),
          "all are there when backward has ended"),
    Wrong("only the first rank reduces",
          changed(IN_TIME, "average=True", "average=True) if comm.rank == 0 else torch.zeros(1"),
          "which one does not call it?"),
    Wrong("trains on the way",
          changed(IN_TIME, "grad = None", "data.sub_(1)\n        parameter.grad = None"),
          "overwrote rank 0's input"),
    Wrong("half precision",
          changed(IN_TIME, "(), average", "().bfloat16(), average"),
          "torch.bfloat16, not"),
    Wrong("drops the rest",
          changed(IN_TIME, "(), average", "()[: parameter.numel() // comm.size * comm.size], average"),
          "a tensor of shape"),
    # Return the right numbers, or nearly always do.
    Wrong("backward's order, turned round",
          changed(IN_TIME,
                  "[shards[parameter] for parameter in model.parameters()]",
                  "list(shards.values())[::-1]"),
          "in backward's order, turned round"),
    Wrong("remembers shards",
          changed(changed(IN_TIME,
                          "def shards_in_time",
                          "shards = {}\n\ndef shards_in_time"),
                  "    shards = {}\n",
                  ""),
          "which name outside the function"),
    Wrong("an attribute of the model",
          changed(IN_TIME, "trained]\n", "trained]\n    model.shards = shards\n"),
          "model.shards is there after the call"),
    Wrong("another mode",
          changed(IN_TIME, "trained]\n", "trained]\n    model.train(False)\n"),
          "model.training is False after the call"),
    Wrong("gradients of inputs",
          changed(IN_TIME, "    model", "    inputs.requires_grad_()\n    model"),
          "inputs.requires_grad is True after the call"),
    Wrong("frozen",
          changed(IN_TIME, "return", "model.requires_grad_(False)\n    return"),
          "requires_grad is False after the call"),
    Wrong("in evaluation",
          changed(changed(IN_TIME,
                          "    model",
                          "    before = model.training\n"
                          "    model.eval()\n"
                          "    model"),
                  "return",
                  "model.train(before)\n    return"),
          "the gradients of a model in evaluation"),
    Wrong("in training",
          changed(changed(IN_TIME,
                          "    model",
                          "    before = model.training\n"
                          "    model.train()\n"
                          "    model"),
                  "return",
                  "model.train(before)\n    return"),
          "the gradients of a model in training"),
    Wrong("trains what is frozen",
          changed(changed(IN_TIME,
                          "shards = {}",
                          "frozen = [each for each in model.parameters() if not each.requires_grad]\n"
                          "    model.requires_grad_(True)\n"
                          "    shards = {}"),
                  "return",
                  "for each in frozen:\n"
                  "        each.requires_grad_(False)\n"
                  "    return"),
          "a gradient of a frozen parameter"),
    Wrong("by memory, not by rows",
          changed(IN_TIME, "flatten(),", "as_strided((parameter.numel(),), (1,)).clone(),"),
          "a gradient in the order in which it lies in memory"),
    Wrong("forward twice",
          changed(IN_TIME, "inputs.", "inputs)\n    model(inputs."),
          "one forward, one backward"),
    Wrong("double precision",
          changed(IN_TIME, "(), average", "().double(), average"),
          "torch.float64, not torch.float32: keep the dtype"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("a list of numbers, reduced after backward",
          changed(changed(IN_TIME,
                          "shards = {}\n\n"
                          "    def reduce(parameter):\n"
                          "        shards[parameter] = comm.reduce_scatter(parameter.grad.flatten(), "
                          "average=True)",
                          "shards, lists = {}, {}\n\n"
                          "    def reduce(parameter):\n"
                          "        lists[parameter] = parameter.grad.flatten().tolist()"),
                  "hook.remove()",
                  "hook.remove()\n"
                  "    for parameter, numbers in lists.items():\n"
                  "        row = torch.tensor(numbers, dtype=parameter.dtype)\n"
                  "        shards[parameter] = comm.reduce_scatter(row, average=True)"),
          "and 0 reductions had begun: reduce each in its own hook"),
    Wrong("one hook late", """
def shards_in_time(comm, model, inputs):
    shards, waiting = {}, []

    def reduce(parameter):
        if waiting:
            first = waiting.pop()
            shards[first[0]] = first[1].wait()
        whole, parameter.grad = parameter.grad.flatten(), None
        waiting.append((parameter, comm.reduce_scatter_async(whole, average=True)))

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hooks = [parameter.register_post_accumulate_grad_hook(reduce) for parameter in trained]
    model(inputs.detach()).square().mean().backward()
    for hook in hooks:
        hook.remove()
    shards[waiting[0][0]] = waiting[0][1].wait()
    for parameter in model.parameters():
        part = parameter.detach().flatten().tensor_split(comm.size)[comm.rank]
        shards.setdefault(parameter, torch.zeros_like(part))
    return [shards[parameter] for parameter in model.parameters()]
""", "1 still there: which name, attribute, list or handle"),
    Wrong("scales a copy",
          changed(IN_TIME, "(), average=True", "() / comm.size"),
          "what makes a copy of it"),
    Wrong("a view of its part",
          changed(IN_TIME,
                  "shards[parameter] = comm.reduce_scatter(parameter.grad.flatten(), average=True)\n"
                  "        parameter.grad = None",
                  "whole, parameter.grad = parameter.grad.flatten(), None\n"
                  "        mine = whole.tensor_split(comm.size)[comm.rank]\n"
                  "        shards[parameter] = comm.reduce_scatter(whole, average=True, out=mine)"),
          "a view of something whole keeps all of its memory"),
    Wrong("leaves gradients in inputs",
          changed(IN_TIME, "inputs.detach()", "inputs"),
          "inputs.grad is another one after the call"),
    Wrong("inputs without a gradient from now on",
          changed(IN_TIME, "    model", "    inputs.requires_grad_(False)\n    model"),
          "inputs.requires_grad is False after the call"),
    Wrong("train mode",
          changed(IN_TIME, "trained]\n", "trained]\n    model.train()\n"),
          "model.training is True after the call"),
    Wrong("a private attribute",
          changed(IN_TIME, "grad = None\n", "grad = None\n        parameter._reduced = True\n"),
          "weight._reduced is there after the call"),
    Wrong("single precision",
          changed(IN_TIME, "(), average", "().float(), average"),
          "torch.float32, not torch."),
    Wrong("on the wire in single precision",
          changed(IN_TIME, "(), average=True", "().float(), average=True).to(parameter.dtype"),
          "right to single precision only"),
    Wrong("none for a frozen parameter",
          changed(IN_TIME, "torch.zeros_like(part)", "None"),
          "that got no gradient: a shard of zeros is due"),
    Wrong("skips a frozen parameter",
          changed(changed(IN_TIME,
                          "hook.remove()",
                          "hook.remove()\n    arrived = set(shards)"),
                  "parameters()]",
                  "parameters() if parameter in arrived]"),
          "of those parameters alone that got a gradient"),
    # Passed once, or their hints spoke of another fault.
    Wrong("drops a gradient of the inputs",
          changed(IN_TIME,
                  "(inputs.detach()).square().mean().backward()",
                  "(inputs).square().mean().backward()\n    inputs.grad = None"),
          "that gradient was the caller's"),
]  # fmt: skip

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
