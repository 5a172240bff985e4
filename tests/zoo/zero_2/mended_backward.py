"""Answers to `MendedBackward` of lesson 04, wrong and right."""

from zoo.answers import Right

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
