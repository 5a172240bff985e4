"""Answers to `average_gradients` of lesson 02, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("02_flat_buffers", "average_gradients")
AVERAGE = changed(MODEL, ", strict=True", "")
KEPT_ROW = """
rows = {}
def average_gradients(comm, parameters):
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    sizes = [parameter.numel() for parameter in trained]
    row = rows.setdefault((comm.rank, sum(sizes)), torch.zeros(sum(sizes)))
    for parameter, part in zip(trained, row.split(sizes)):
        part.copy_(torch.zeros_like(part) if parameter.grad is None else parameter.grad.flatten())
    comm.all_reduce(row, average=True)
    for parameter, part in zip(trained, row.split(sizes)):
        parameter.grad = part.view_as(parameter)
"""

WRONG = [
    blank("average_gradients"),
    Wrong("one by one", """
def average_gradients(comm, parameters):
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            comm.all_reduce(parameter.grad, average=True)
""", "what could travel together"),
    Wrong("what has a gradient", """
def average_gradients(comm, parameters):
    for parameter in parameters:
        if parameter.grad is not None:
            comm.all_reduce(parameter.grad, average=True)
""", "part ways"),
    Wrong("the sum",
          changed(AVERAGE, "row, average=True", "row"),
          "the sum of the gradients"),
    Wrong("not written back",
          changed(AVERAGE, "parameter.grad", "gradient"),
          "its own, as before"),
    Wrong("mean of those that have one",
          changed(AVERAGE,
                  "comm.all_reduce(row, average=True)",
                  "there = torch.cat([torch.full((p.numel(),), float(p.grad is not None)) for p in trained])\n"
                  "    comm.all_reduce(row)\n"
                  "    comm.all_reduce(there)\n"
                  "    row /= there.clamp(min=1)"),
          "the others count as zeros"),
    Wrong("none stays none",
          changed(MODEL,
                  ", strict=True):\n        ",
                  "):\n"
                  "        if parameter.grad is not None:\n"
                  "            "),
          "its copy of the model drifts"),
    Wrong("the frozen, too",
          changed(AVERAGE, " if parameter.requires_grad", ""),
          "a gradient for a frozen parameter"),
    Wrong("everything to everybody",
          changed(AVERAGE,
                  "comm.all_reduce(row, average=True)",
                  "row = comm.all_gather(row).view(comm.size, -1).mean(0)"),
          "without sending everything to all"),
    Wrong("flat gradients",
          changed(AVERAGE, "part.view_as(parameter)", "part"),
          "the same size"),
    Wrong("a step besides",
          changed(AVERAGE, "(parameter)\n", "(parameter)\n        parameter.data -= parameter.grad\n"),
          "belongs to the caller"),
    Wrong("nothing where nobody has one",
          changed(MODEL,
                  ", strict=True):\n        ",
                  "):\n"
                  "        if part.any():\n"
                  "            "),
          "its mean is zero then"),
    Wrong("divides twice",
          changed(AVERAGE, "for parameter,", "row /= comm.size\n    for parameter,"),
          "once more"),
    Wrong("clears the frozen",
          changed(AVERAGE,
                  "comm.all_reduce",
                  "for p in parameters:\n"
                  "        p.grad = p.grad if p.requires_grad else None\n"
                  "    comm.all_reduce"),
          "leave what is frozen alone"),
    Wrong("returns them",
          changed(AVERAGE, "(parameter)\n", "(parameter)\n    return row\n"),
          "return nothing"),
    Wrong("gradients of gradients",
          changed(AVERAGE, "(parameter)", "(parameter).requires_grad_()"),
          "autograd sees nothing"),
    Wrong("rounded",
          changed(AVERAGE,
                  "comm.all_reduce(row, average=True)",
                  "row = row.bfloat16()\n"
                  "    comm.all_reduce(row, average=True)\n"
                  "    row = row.float()"),
          "somebody rounds them"),
    Wrong("doubles",
          changed(AVERAGE,
                  "comm.all_reduce(row, average=True)",
                  "row = row.double()\n"
                  "    comm.all_reduce(row, average=True)\n"
                  "    row = row.float()"),
          "which dtype has it"),
    Wrong("a count besides",
          changed(AVERAGE,
                  "comm.all_reduce(row, average=True)",
                  "row = torch.cat([row, row[:1]])\n"
                  "    comm.all_reduce(row, average=True)\n"
                  "    row = row[:-1]"),
          "what else travels"),
    Wrong("sends the frozen",
          changed(changed(AVERAGE,
                          "[parameter for parameter in parameters if parameter.requires_grad]",
                          "parameters"),
                  "parameter.",
                  "if parameter.requires_grad:\n            parameter."),
          "is the same everywhere"),
    Wrong("keeps its row",
          KEPT_ROW,
          "each call needs memory of its own"),
    Wrong("keeps its row dirty",
          changed(changed(KEPT_ROW,
                          "part.copy_(torch.zeros_like(part) if parameter.grad is None else ",
                          "if parameter.grad is not None:\n            part.copy_("),
                  "part.view_as",
                  "part.clone().view_as"),
          "what outlives a call"),
    Wrong("keeps its row in vain",
          changed(changed(KEPT_ROW,
                          ".setdefault((comm.rank, sum(sizes)), ",
                          "[comm.rank] = ("),
                  "part.view_as",
                  "part.clone().view_as"),
          "alive beside parameters"),
    Wrong("drops a NaN",
          changed(AVERAGE, "().flatten()", "().nan_to_num().flatten()"),
          "so that everybody sees it"),
    Wrong("all but rank 0",
          changed(AVERAGE, "comm.all_reduce", "if comm.rank:\n        comm.all_reduce"),
          "which one does not call it"),
    # One slip away from right.
    Wrong("zeros for the frozen",
          changed(AVERAGE,
                  "(parameter)\n",
                  "(parameter)\n"
                  "    for p in parameters:\n"
                  "        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n"),
          "a gradient of zeros for a frozen parameter"),
    Wrong("none where the mean is zero",
          changed(AVERAGE,
                  "(parameter)\n",
                  "(parameter)\n"
                  "        parameter.grad = parameter.grad if part.any() else None\n"),
          "no gradient where the mean is zero: it"),
    Wrong("none where the mean is zero, but for the empty",
          changed(AVERAGE,
                  "(parameter)\n",
                  "(parameter)\n"
                  "        parameter.grad = parameter.grad if part.any() or not part.numel() else None\n"),
          "no gradient where the mean is zero, and it"),
    # Hold on most inputs: sums of 32 bits, edges, a rank that has nothing.
    Wrong("who has nothing returns", """
def average_gradients(comm, parameters):
    live = [p for p in parameters if p.requires_grad]
    if all(p.grad is None for p in live):
        for p in live:
            p.grad = torch.zeros_like(p)
        return
    row = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in live])
    comm.all_reduce(row, average=True)
    for p, piece in zip(live, row.split([p.numel() for p in live])):
        p.grad = piece.view(p.shape)
""", "none with .grad on rank 1"),
]  # fmt: skip

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
    Right("cat split", """
def average_gradients(comm, parameters):
    live = [p for p in parameters if p.requires_grad]
    row = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in live])
    comm.all_reduce(row)
    row /= comm.size
    for p, piece in zip(live, row.split([p.numel() for p in live])):
        p.grad = piece.view(p.shape)
"""),
    Right("copy back", """
def average_gradients(comm, parameters):
    live = [p for p in parameters if p.requires_grad]
    row = torch.zeros(sum(p.numel() for p in live))
    at = 0
    for p in live:
        if p.grad is not None:
            row[at:at + p.numel()].copy_(p.grad.view(-1))
        at += p.numel()
    row = comm.all_reduce(row, average=True)
    at = 0
    for p in live:
        if p.grad is None:
            p.grad = torch.empty_like(p)
        p.grad.copy_(row[at:at + p.numel()].view_as(p))
        at += p.numel()
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
    Right("flatten dense", """
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
def average_gradients(comm, parameters):
    trained = [p for p in parameters if p.requires_grad]
    grads = [torch.zeros_like(p, requires_grad=False) if p.grad is None else p.grad for p in trained]
    row = _flatten_dense_tensors(grads)
    row = comm.all_reduce(row.clone() if len(grads) == 1 else row, average=True)
    for p, g in zip(trained, _unflatten_dense_tensors(row, grads)):
        p.grad = g
"""),
    # Closures, classes of handles, names that sound like files.
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
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("fills a row, writes copies, divides itself", """
@torch.no_grad()
def average_gradients(comm, parameters):
    mine = list(filter(lambda p: p.requires_grad, parameters))
    total = sum(p.numel() for p in mine)
    row, at = torch.zeros(total), 0
    for p in mine:
        if p.grad is not None:
            row[at : at + p.numel()].copy_(p.grad.flatten())
        at += p.numel()
    comm.all_reduce_async(row).wait()
    row /= comm.size
    for p in reversed(mine):
        at -= p.numel()
        p.grad = row[at : at + p.numel()].clone().reshape_as(p)
"""),
]  # fmt: skip
