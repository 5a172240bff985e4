"""Answers to `MendedBackward` of lesson 04, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("04_zero_2", "MendedBackward")

WRONG = [
    blank("MendedBackward", "class MendedBackward:\n    def __init__(self, *args):\n    "),
    Wrong("late binding",
          changed(changed(MODEL,
                          ", index=index:",
                          ":"),
                  "shard if self.shards[index] is None else self.shards[index].add_(shard)",
                  "shard"),
          "long after the loop has ended"),
    Wrong("late binding, added up",
          changed(MODEL, ", index=index:", ":"),
          "it adds shards of different sizes"),
    Wrong("a sum",
          changed(MODEL, "(), average=True", "()"),
          "shards of the sum over the ranks"),
    Wrong("overwrites",
          changed(MODEL, "shard if self.shards[index] is None else self.shards[index].add_(shard)", "shard"),
          "shards of the last backward alone"),
    Wrong("adds up twice",
          changed(MODEL, "parameter.grad = None", "pass"),
          "the first backward counts more than once"),
    Wrong("lets parameter.grad add up",
          changed(MODEL,
                  "parameter.grad = None\n"
                  "        self.shards[index] = shard if self.shards[index] is None else "
                  "self.shards[index].add_(shard)",
                  "pass\n        self.shards[index] = shard"),
          "still have a whole gradient"),
    Wrong("remembers all",
          changed(changed(MODEL,
                          "self.comm = comm",
                          "self.comm, self.seen = comm, []"),
                  "parameter.grad = None",
                  "self.seen = [parameter.grad, *(self.seen if parameter.grad.dim() else [])]\n"
                  "        parameter.grad = None"),
          "all are there when backward has ended"),
    Wrong("unsharded result",
          changed(MODEL, "reduce_scatter", "all_reduce"),
          "whole gradients: a rank keeps"),
    Wrong("own data only",
          changed(MODEL,
                  "self.comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "parameter.grad.flatten().tensor_split(self.comm.size)[self.comm.rank].clone()"),
          "nothing was added to them"),
    Wrong("registered twice",
          changed(changed(MODEL,
                          "for index, parameter in enumerate(parameters):",
                          "self.times = [0] * len(parameters)\n"
                          "        for index, parameter in [*enumerate(parameters)] * 2:"),
                  "parameter.grad = None",
                  "self.times[index] += 1\n"
                  "        if self.times[index] % 2:\n"
                  "            return\n"
                  "        parameter.grad = None"),
          "who reduces it twice?"),
    Wrong("registered twice, the gradient gone",
          changed(MODEL, "enumerate(parameters)", "[*enumerate(parameters)] * 2"),
          "'NoneType' object has no attribute 'flatten'"),
    # Return the right numbers, or nearly always do.
    Wrong("removes its hooks", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.comm, self.hooks, self.times = comm, {}, {}
        self.shards = [None] * len(parameters)
        for index, parameter in enumerate(parameters):
            self.times[index] = 0
            self.hooks[index] = parameter.register_post_accumulate_grad_hook(lambda parameter, index=index: self.reduce(index, parameter))

    def reduce(self, index, parameter):
        shard = self.comm.reduce_scatter(parameter.grad.flatten(), average=True)
        parameter.grad = None
        self.shards[index] = shard if self.shards[index] is None else self.shards[index].add_(shard)
        self.times[index] += 1
        if self.times[index] == 2:
            self.hooks[index].remove()
""", "does every hook still run?"),  # noqa: E501
    Wrong("adds to the first",
          changed(changed(MODEL,
                          "self.comm = comm",
                          "self.comm, self.first = comm, {}"),
                  "self.shards[index] = shard if self.shards[index] is None else self.shards[index].add_(shard)",
                  "self.first.setdefault(index, shard)\n"
                  "        self.shards[index] = shard if self.shards[index] is None else self.first[index] + "
                  "shard"),
          "those in between are lost"),
    Wrong("a log",
          changed(changed(MODEL,
                          "self.comm = comm",
                          "self.comm, self.log = comm, []"),
                  "parameter.grad = None",
                  "self.log.append(shard)\n        parameter.grad = None"),
          "what has been added up is not needed any more"),
    Wrong("double precision",
          changed(MODEL, "average=True", "average=True).double("),
          "torch.float64, not torch.float32: keep the dtype"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("the newest one's shards",
          changed(changed(MODEL,
                          "MendedBackward:\n",
                          "MendedBackward:\n    shards = []\n\n"),
                  ".shards =",
                  ".shards[:] ="),
          "belongs to the class, and all share it"),
    Wrong("by memory, not by rows",
          changed(MODEL, "flatten()", "as_strided((parameter.numel(),), (1,)).clone()"),
          "a gradient in the order in which it lies in memory"),
    Wrong("shards of the class",
          changed(changed(MODEL,
                          "def __init__(self, comm, parameters):\n"
                          "        self.comm = comm\n"
                          "        self.shards = [None] * len(parameters)",
                          "shards = {}\n\n"
                          "    def __init__(self, comm, parameters):\n"
                          "        self.comm = comm"),
                  "shard if self.shards[index] is None else self.shards[index].add_(shard)",
                  "self.shards[index] + shard if index in self.shards else shard"),
          "and a list is due"),
    Wrong("a mean over backwards",
          changed(changed(MODEL,
                          "self.comm = comm",
                          "self.comm, self.times = comm, [0] * len(parameters)"),
                  "self.shards[index] = shard if self.shards[index] is None else self.shards[index].add_(shard)",
                  "self.times[index] += 1\n"
                  "        old = self.shards[index]\n"
                  "        self.shards[index] = shard if old is None else old + (shard - old) / self.times[index]"),
          "what several of them bring is added up"),
    Wrong("views of whole gradients",
          changed(MODEL,
                  "shard = self.comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "whole = parameter.grad.flatten()\n"
                  "        shard = whole.tensor_split(self.comm.size)[self.comm.rank]\n"
                  "        self.comm.reduce_scatter(whole, average=True, out=shard)"),
          "a view of something whole keeps all of its memory"),
    Wrong("zeros in single precision",
          changed(MODEL,
                  "[None] * len(parameters)",
                  "[torch.zeros(len(each.detach().flatten().tensor_split(comm.size)[comm.rank])) for each in "
                  "parameters]"),
          "torch.float32, not torch."),
    # Passed once, or their hints spoke of another fault.
    Wrong("a scratch for each parameter",
          changed(changed(MODEL,
                          "self.shards =",
                          "self.scratch = [torch.empty_like(each.detach()).flatten() for each in parameters]\n"
                          "        self.shards ="),
                  "parameter.grad.flatten()",
                  "self.scratch[index].copy_(parameter.grad.flatten())"),
          "made before any backward"),
    Wrong("room for each next shard",
          changed(changed(MODEL,
                          "self.shards =",
                          "self.room = "
                          "[torch.empty_like(each.detach().flatten().tensor_split(comm.size)[comm.rank]) for "
                          "each in parameters]\n"
                          "        self.shards ="),
                  ")\n"
                  "        parameter.grad = None\n"
                  "        self.shards[index] = shard",
                  ", out=self.room[index])\n"
                  "        parameter.grad = None\n"
                  "        self.shards[index] = shard.clone()"),
          "nor is room for the next one"),
    Wrong("a list of the class",
          changed(changed(MODEL,
                          "MendedBackward:\n",
                          "MendedBackward:\n    shards = []\n\n"),
                  " = [None] * len(parameters)",
                  ".extend([None] * len(parameters))"),
          "items: `shards` belongs to the class"),
    Wrong("tells parameters apart by their address", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.comm = comm
        self.place = {parameter.data_ptr(): index for index, parameter in enumerate(parameters)}
        self.shards = [None] * len(parameters)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, parameter):
        index = self.place[parameter.data_ptr()]
        whole = parameter.grad.flatten()
        parameter.grad = None
        shard = self.comm.reduce_scatter(whole, average=True)
        if self.shards[index] is not None:
            shard += self.shards[index]
        self.shards[index] = shard
""", "one shape, and equal numbers"),
    Wrong("no shard of a parameter without elements",
          changed(MODEL, "        shard =", "        if not parameter.numel():\n            return\n        shard ="),
          "neither has their shard, but it is due"),
]  # fmt: skip

RIGHT = [
    Right("a method that makes hooks", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.shards = []
        for parameter in parameters:
            own = torch.empty(parameter.numel(), device="meta").tensor_split(comm.size)[comm.rank]
            self.shards.append(torch.zeros(len(own), dtype=parameter.dtype))
            parameter.register_post_accumulate_grad_hook(self.hook_for(comm, self.shards[-1]))

    def hook_for(self, comm, shard):
        def hook(parameter):
            whole, parameter.grad = parameter.grad.reshape(-1), None
            shard.add_(comm.reduce_scatter(whole, average=True))
        return hook
"""),
    Right("zeros up front, index by default argument", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.comm = comm
        self.shards = [None for _ in parameters]
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda p, index=index: self.reduce(index, p))

    def reduce(self, index, parameter):
        gradient = parameter.grad
        parameter.grad = None
        shard = self.comm.reduce_scatter(gradient.flatten(), average=True)
        if self.shards[index] is None:
            self.shards[index] = shard
        else:
            self.shards[index] += shard
"""),
    Right("a property over a dict", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.by_parameter = {parameter: None for parameter in parameters}
        self.comm = comm
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.take)

    @property
    def shards(self):
        return list(self.by_parameter.values())

    def take(self, parameter):
        whole, parameter.grad = parameter.grad.reshape(-1), None
        mean = self.comm.reduce_scatter(whole).div_(self.comm.size)
        old = self.by_parameter[parameter]
        self.by_parameter[parameter] = mean if old is None else old.add_(mean)
"""),
    Right("functools.partial on a static function", """
from functools import partial
class MendedBackward:
    def __init__(self, comm, parameters):
        sizes = [len(torch.arange(p.numel()).tensor_split(comm.size)[comm.rank]) for p in parameters]
        self.shards = [p.detach().new_zeros(size) for p, size in zip(parameters, sizes)]
        for p, shard in zip(parameters, self.shards):
            p.register_post_accumulate_grad_hook(partial(self.reduce, comm, shard))

    @staticmethod
    def reduce(comm, shard, parameter):
        gradient = parameter.grad
        row = gradient.view(-1) if gradient.is_contiguous() else gradient.flatten()
        part = comm.reduce_scatter(row, average=True)
        parameter.grad = None
        torch.add(shard, part, out=shard)
"""),
    Right("a tensor hook first", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.comm, self.parameters = comm, parameters
        self.shards = [0] * len(parameters)
        for i in range(len(parameters)):
            self.attach(i)

    def attach(self, i):
        def before(gradient):
            self.shards[i] = self.shards[i] + self.comm.reduce_scatter(gradient.flatten(), average=True)
        def after(parameter):
            parameter.grad = None
        self.parameters[i].register_hook(before)
        self.parameters[i].register_post_accumulate_grad_hook(after)
"""),
    Right("cut its own part of the gradient as out", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.shards = [None] * len(parameters)
        hooks = [self.hook(comm, place) for place in range(len(parameters))]
        for parameter, hook in zip(parameters, hooks):
            parameter.register_post_accumulate_grad_hook(hook)

    def hook(self, comm, place):
        def run(parameter):
            whole = parameter.grad.flatten()
            parameter.grad = None
            mine = whole.tensor_split(comm.size)[comm.rank]
            comm.reduce_scatter(whole, average=True, out=mine)
            self.shards[place] = mine.clone() if self.shards[place] is None else self.shards[place].add_(mine)
        return run
"""),
    Right("setattr and a dataclass", """
from dataclasses import dataclass, field
@dataclass
class MendedBackward:
    comm: object
    parameters: list
    shards: list = field(default_factory=list)
    def __post_init__(self):
        self.shards = [None] * len(self.parameters)
        for at, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self.at(at))
    def at(self, at):
        def hook(parameter):
            gradient = getattr(parameter, "grad")
            setattr(parameter, "grad", None)
            new = self.comm.reduce_scatter(gradient.ravel(), average=True)
            self.shards[at] = new if self.shards[at] is None else torch.add(self.shards[at], new)
        return hook
"""),
    Right("async with out, waited in the hook", """
class MendedBackward:
    def __init__(self, comm, parameters):
        self.comm, self.shards, self.places = comm, [], {}
        for at, p in enumerate(parameters):
            self.places[p] = at
            self.shards.append(torch.zeros_like(p.detach().reshape(-1).tensor_split(comm.size)[comm.rank]))
            p.register_post_accumulate_grad_hook(self)
    def __call__(self, p):
        own = torch.empty_like(self.shards[self.places[p]])
        handle = self.comm.reduce_scatter_async(p.grad.reshape(-1), average=True, out=own)
        p.grad = None
        handle.wait()
        self.shards[self.places[p]].add_(own)
"""),
    # Written from the text alone.
    Right("one callable that looks up its place", """
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
