"""Wrong answers to the exercises of lesson 04."""

from zoo import zero2_norm
from zoo.wrong import Wrong, changed

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
IN_FLIGHT = """
def in_flight(comm, gradients, limit):
    under_way, shards = [], []
    for gradient in gradients:
        if len(under_way) == limit:
            shards.append(under_way.pop(0).wait())
        under_way.append(comm.reduce_scatter_async(gradient, average=True))
    return shards + [handle.wait() for handle in under_way]
"""
ACCUMULATE = """
def accumulate(comm, micro_batches, each):
    first, *others = micro_batches
    if each:
        total = comm.reduce_scatter(first, average=True)
        for gradient in others:
            total.add_(comm.reduce_scatter(gradient, average=True))
    else:
        whole = first.clone()
        for gradient in others:
            whole.add_(gradient)
        total = comm.reduce_scatter(whole, average=True)
    return total.div_(len(micro_batches))
"""
MENDED = """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.comm = comm
        self.shards = [None] * len(parameters)
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda parameter, index=index: self.reduce(index, parameter))

    def reduce(self, index, parameter):
        shard = self.comm.reduce_scatter(parameter.grad.flatten(), average=True)
        parameter.grad = None
        self.shards[index] = shard if self.shards[index] is None else self.shards[index].add_(shard)
"""
KEEP = "self.shards[index] = shard if self.shards[index] is None else self.shards[index].add_(shard)"

ZOO = [
    Wrong("blank", "shards_in_time", "def shards_in_time(comm, model, inputs):\n    raise NotImplementedError()",
          "not written yet"),
    Wrong("after backward", "shards_in_time", '''
def shards_in_time(comm, model, inputs):
    model(inputs.detach()).square().mean().backward()
    shards = []
    for parameter in model.parameters():
        whole = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        shards.append(comm.reduce_scatter(whole.flatten(), average=True))
        parameter.grad = None
    return shards
''', "and 0 reductions had begun"),
    Wrong("a sum", "shards_in_time", changed(IN_TIME, ", average=True", ""), "shards of the sum over the ranks"),
    Wrong("unsharded result", "shards_in_time",
          changed(IN_TIME, "comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "comm.all_reduce(parameter.grad.flatten(), average=True)"),
          "whole gradients: a rank keeps"),
    Wrong("reduced everywhere, then cut", "shards_in_time",
          changed(IN_TIME, "comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "comm.all_reduce(parameter.grad.flatten(), average=True)"
                  ".tensor_split(comm.size)[comm.rank].clone()"),
          "each gradient takes one reduce_scatter"),
    Wrong("own data only", "shards_in_time",
          changed(IN_TIME, "comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "parameter.grad.flatten().tensor_split(comm.size)[comm.rank]"),
          "shards of its own gradients"),
    Wrong("no wire at all", "shards_in_time", '''
def shards_in_time(comm, model, inputs):
    loss, trained = model(inputs).square().mean(), [each for each in model.parameters() if each.requires_grad]
    wholes = dict(zip(trained, torch.autograd.grad(loss, trained, allow_unused=True)))
    return [torch.zeros(each.numel()) if wholes.get(each) is None else wholes[each].flatten()
            for each in model.parameters()]
''', "nothing was reduced"),
    Wrong("backward's order", "shards_in_time", '''
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
''', "backward brought them: model.parameters() has another"),
    Wrong("hooks stay", "shards_in_time", changed(IN_TIME, "hook.remove()", "pass"), "outlive the call"),
    Wrong("drops nothing", "shards_in_time", changed(IN_TIME, "parameter.grad = None", "pass"),
          "still have a whole gradient"),
    Wrong("drops nothing until the end", "shards_in_time",
          changed(IN_TIME, "        parameter.grad = None\n", "").replace(
              "hook.remove()", "hook.remove()\n    model.zero_grad()"),
          "all are there when backward has ended"),
    Wrong("only the first rank reduces", "shards_in_time",
          changed(IN_TIME, "average=True)", "average=True) if comm.rank == 0 else torch.zeros(1)"),
          "which one does not call it?"),
    Wrong("trains on the way", "shards_in_time",
          changed(IN_TIME, "        parameter.grad = None",
                  "        parameter.data.sub_(1)\n        parameter.grad = None"),
          "overwrote rank 0's input"),
    Wrong("half precision", "shards_in_time",
          changed(IN_TIME, "flatten(), average", "flatten().bfloat16(), average"), "torch.bfloat16, not"),
    Wrong("drops the rest", "shards_in_time",
          changed(IN_TIME, "parameter.grad.flatten(),",
                  "parameter.grad.flatten()[: parameter.numel() // comm.size * comm.size],"),
          "a tensor of shape"),

    Wrong("blank", "in_flight", "def in_flight(comm, gradients, limit):\n    raise NotImplementedError()",
          "not written yet"),
    Wrong("all at once", "in_flight", '''
def in_flight(comm, gradients, limit):
    return [handle.wait() for handle in [comm.reduce_scatter_async(gradient, average=True) for gradient in gradients]]
''', "are allowed: wait for the oldest"),
    Wrong("one too many", "in_flight", changed(IN_FLIGHT, "== limit", "> limit"), "had 3 under way at once"),
    Wrong("waits at once", "in_flight", '''
def in_flight(comm, gradients, limit):
    return [comm.reduce_scatter_async(gradient, average=True).wait() for gradient in gradients]
''', "never more than 1 under way"),
    Wrong("not asynchronous", "in_flight", '''
def in_flight(comm, gradients, limit):
    return [comm.reduce_scatter(gradient, average=True) for gradient in gradients]
''', "none at all under way"),
    Wrong("waits before it takes the next", "in_flight", '''
def in_flight(comm, gradients, limit):
    under_way, shards = [], []
    for gradient in gradients:
        under_way.append(comm.reduce_scatter_async(gradient, average=True))
        if len(under_way) == limit:
            shards.append(under_way.pop(0).wait())
    return shards + [handle.wait() for handle in under_way]
''', "waited with 2 under way and no gradient at hand"),
    Wrong("keeps whole gradients", "in_flight",
          changed(IN_FLIGHT, "        under_way.append", "        kept.append(gradient)\n        under_way.append")
          .replace("under_way, shards = [], []", "under_way, shards, kept = [], [], []"),
          "which list, or which variable"),
    Wrong("forgets the last", "in_flight",
          changed(IN_FLIGHT, "return shards + [handle.wait() for handle in under_way]", "return shards"),
          "those that were still under way at the end"),
    Wrong("the newest first", "in_flight", changed(IN_FLIGHT, "pop(0)", "pop()"), "which handle is the oldest?"),
    Wrong("a sum", "in_flight", changed(IN_FLIGHT, ", average=True", ""), "shards of the sum over the ranks"),
    Wrong("unsharded result", "in_flight", changed(IN_FLIGHT, "reduce_scatter_async", "all_reduce_async"),
          "whole gradients: a rank keeps"),
    Wrong("handles", "in_flight",
          changed(IN_FLIGHT, "[handle.wait() for handle in under_way]", "under_way"), "Counted"),
    Wrong("own data only", "in_flight", '''
def in_flight(comm, gradients, limit):
    return [gradient.tensor_split(comm.size)[comm.rank] for gradient in gradients]
''', "nothing was added to them"),

    Wrong("blank", "accumulate", "def accumulate(comm, micro_batches, each):\n    raise NotImplementedError()",
          "not written yet"),
    Wrong("always each", "accumulate", changed(ACCUMULATE, "if each:", "if True:"), "is too many"),
    Wrong("always once", "accumulate", changed(ACCUMULATE, "if each:", "if False:"), "is missing"),
    Wrong("a sum over ranks", "accumulate", changed(ACCUMULATE, ", average=True", ""), "there are several ranks, too"),
    Wrong("a sum over micro-batches", "accumulate",
          changed(ACCUMULATE, "return total.div_(len(micro_batches))", "return total"),
          "there are several micro-batches, too"),
    Wrong("a sum over both", "accumulate",
          changed(ACCUMULATE, "return total.div_(len(micro_batches))", "return total").replace(", average=True", ""),
          "the sum over ranks and micro-batches"),
    Wrong("mutates its input", "accumulate", changed(ACCUMULATE, "first.clone()", "first"), "overwrote"),
    Wrong("the last one alone", "accumulate", '''
def accumulate(comm, micro_batches, each):
    for gradient in micro_batches if each else [torch.stack(micro_batches).mean(0)]:
        shard = comm.reduce_scatter(gradient, average=True)
    return shard
''', "not put in its place"),
    Wrong("the last one alone, divided", "accumulate",
          changed(ACCUMULATE, "total.add_(comm.reduce_scatter(gradient, average=True))",
                  "total = comm.reduce_scatter(gradient, average=True)"),
          "divided by their number"),
    Wrong("unsharded result", "accumulate",
          changed(ACCUMULATE, "reduce_scatter", "all_reduce").replace("first, average", "first.clone(), average")
          .replace("gradient, average", "gradient.clone(), average"),
          "the whole mean"),
    Wrong("own data only", "accumulate", '''
def accumulate(comm, micro_batches, each):
    return torch.stack(micro_batches).mean(0).tensor_split(comm.size)[comm.rank]
''', "nothing was added to them"),
    Wrong("keeps all shards", "accumulate", '''
def accumulate(comm, micro_batches, each):
    parts = micro_batches if each else [torch.stack(micro_batches).mean(0)]
    return torch.stack([comm.reduce_scatter(gradient, average=True) for gradient in parts]).mean(0)
''', "nothing but shards need be kept"),
    Wrong("an all-reduce", "accumulate",
          changed(ACCUMULATE, "total = comm.reduce_scatter(whole, average=True)",
                  "total = comm.all_reduce(whole, average=True).tensor_split(comm.size)[comm.rank].clone()"),
          "is all_reduce of"),
    Wrong("if rank", "accumulate",
          changed(ACCUMULATE, "return total", "if not comm.rank:\n        total.zero_()\n    return total"),
          "only rank 0 is wrong"),

    Wrong("blank", "sent_bytes", "def sent_bytes(*numbers):\n    raise NotImplementedError()", "not written yet"),
    Wrong("elements", "sent_bytes", '''
def sent_bytes(numel, ranks, micro_batches, each):
    return ((micro_batches if each else 1) + 1) * numel // ranks * (ranks - 1)
''', "You counted elements"),
    Wrong("whole tensors", "sent_bytes", '''
def sent_bytes(numel, ranks, micro_batches, each):
    return 0 if ranks == 1 else ((micro_batches if each else 1) + 1) * numel * 4
''', "sends (N-1)/N of a tensor"),
    Wrong("forgets that one rank is alone", "sent_bytes", '''
def sent_bytes(numel, ranks, micro_batches, each):
    return ((micro_batches if each else 1) + 1) * numel * 4
''', "nobody to send to"),
    Wrong("always once", "sent_bytes", '''
def sent_bytes(numel, ranks, micro_batches, each):
    return 2 * 4 * numel // ranks * (ranks - 1)
''', "each micro-batch pays"),
    Wrong("always each", "sent_bytes", '''
def sent_bytes(numel, ranks, micro_batches, each):
    return (micro_batches + 1) * 4 * numel // ranks * (ranks - 1)
''', "adds up first, and reduces once"),
    Wrong("forgets the parameters", "sent_bytes", '''
def sent_bytes(numel, ranks, micro_batches, each):
    return (micro_batches if each else 1) * 4 * numel // ranks * (ranks - 1)
''', "have to travel, too"),
    Wrong("gathers each time", "sent_bytes", '''
def sent_bytes(numel, ranks, micro_batches, each):
    return (micro_batches if each else 1) * 2 * 4 * numel // ranks * (ranks - 1)
''', "Parameters change once a step"),
    Wrong("a fraction", "sent_bytes", '''
def sent_bytes(numel, ranks, micro_batches, each):
    return ((micro_batches if each else 1) + 1) * 4 * numel / ranks * (ranks - 1)
''', "divide with //"),

    Wrong("blank", "MendedBackward",
          "class MendedBackward:\n    def __init__(self, *args):\n        raise NotImplementedError()",
          "not written yet"),
    Wrong("late binding", "MendedBackward",
          changed(MENDED, "parameter, index=index:", "parameter:").replace(KEEP, "self.shards[index] = shard"),
          "long after the loop has ended"),
    Wrong("late binding, added up", "MendedBackward", changed(MENDED, "parameter, index=index:", "parameter:"),
          "it adds shards of different sizes"),
    Wrong("a sum", "MendedBackward", changed(MENDED, ", average=True", ""), "shards of the sum over the ranks"),
    Wrong("overwrites", "MendedBackward", changed(MENDED, KEEP, "self.shards[index] = shard"),
          "shards of the last backward alone"),
    Wrong("adds up twice", "MendedBackward", changed(MENDED, "parameter.grad = None", "pass"),
          "the first backward counts more than once"),
    Wrong("lets parameter.grad add up", "MendedBackward",
          changed(MENDED, KEEP, "self.shards[index] = shard").replace("parameter.grad = None", "pass"),
          "still have a whole gradient"),
    Wrong("remembers all", "MendedBackward",
          changed(MENDED, "        parameter.grad = None",
                  "        self.seen = [parameter.grad, *(self.seen if parameter.grad.dim() else [])]\n"
                  "        parameter.grad = None").replace("self.comm = comm", "self.comm, self.seen = comm, []"),
          "all are there when backward has ended"),
    Wrong("unsharded result", "MendedBackward",
          changed(MENDED, "reduce_scatter", "all_reduce"),
          "whole gradients: a rank keeps"),
    Wrong("own data only", "MendedBackward",
          changed(MENDED, "self.comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "parameter.grad.flatten().tensor_split(self.comm.size)[self.comm.rank].clone()"),
          "nothing was added to them"),
    Wrong("registered twice", "MendedBackward",
          changed(MENDED, "        parameter.grad = None\n", "        self.times[index] += 1\n"
                  "        if self.times[index] % 2:\n            return\n        parameter.grad = None\n")
          .replace("for index, parameter in enumerate(parameters):",
                   "self.times = [0] * len(parameters)\n        for index, parameter in [*enumerate(parameters)] * 2:"),
          "who reduces it twice?"),
    Wrong("registered twice, the gradient gone", "MendedBackward",
          changed(MENDED, "in enumerate(parameters):", "in [*enumerate(parameters)] * 2:"),
          "'NoneType' object has no attribute 'flatten'"),
    *zero2_norm.ZOO,
]  # fmt: skip
