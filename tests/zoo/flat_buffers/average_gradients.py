"""Right answers to `average_gradients` of lesson 02."""

from zoo.answers import Right

RIGHT = [
    Right("torch utils vectors", """
from torch.nn.utils import parameters_to_vector, vector_to_parameters
def average_gradients(comm, parameters):
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    row = parameters_to_vector([parameter.grad for parameter in trained])
    comm.all_reduce(row, average=True)
    vector_to_parameters(row, [parameter.grad for parameter in trained])
"""),
    Right("async wait", """
@torch.no_grad()
def average_gradients(comm, parameters):
    def rooms(row):
        at = 0
        for p in parameters:
            if p.requires_grad:
                yield p, row[at:at + p.numel()].view(p.shape)
                at += p.numel()
    row = torch.zeros(sum(p.numel() for p in parameters if p.requires_grad))
    for p, room in rooms(row):
        if p.grad is not None:
            room += p.grad
    mean = comm.all_reduce_async(row, average=True).wait()
    for p, room in rooms(mean):
        p.grad = room.clone()
"""),
    Right("lay out used", """
def average_gradients(comm, parameters):
    mine = list(filter(lambda p: p.requires_grad, parameters))
    starts, length = lay_out([p.numel() for p in mine], 1, 1)
    row = torch.zeros(length)
    for start, p in zip(starts, mine):
        if p.grad is not None:
            row[start:start + p.numel()] = p.grad.reshape(-1).div(comm.size)
    comm.all_reduce(row)
    for start, p in zip(starts, mine):
        p.grad = row[start:start + p.numel()].reshape(p.shape)
"""),
    Right("grads views", """
class Sys:
    def __init__(self, parameters):
        self.open = [p for p in parameters if p.requires_grad]
    def load(self):
        return torch.hstack([p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel()) for p in self.open])
    def save(self, row):
        for p in self.open:
            p.grad, row = row[: p.numel()].reshape(p.shape).clone(), row[p.numel():]
def average_gradients(comm, parameters):
    sys = Sys(parameters)
    meter = sys.load()
    comm.all_reduce(meter, average=True)
    sys.save(meter)
"""),
    Right("fill none first", """
def average_gradients(comm, parameters):
    for p in parameters:
        if p.requires_grad and p.grad is None:
            p.grad = p.new_zeros(p.shape)
    grads = [p.grad for p in parameters if p.requires_grad]
    buffer = torch.empty(sum(g.nelement() for g in grads))
    pieces = torch.split(buffer, [g.nelement() for g in grads])
    for piece, g in zip(pieces, grads):
        piece.copy_(g.view(-1))
    handle = comm.all_reduce_async(buffer)
    handle.wait()
    for piece, g in zip(pieces, grads):
        torch.div(piece.view_as(g), comm.size, out=g)
"""),
]  # fmt: skip
