"""Answers to `flatten` of lesson 02, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("by set", """
def flatten(module, ranks, align):
    parameters = [*module.parameters()]
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = parameters[0].detach().new_zeros(length)
    with torch.no_grad():
        for start, parameter in zip(starts, parameters):
            place = row[start : start + parameter.numel()].view_as(parameter)
            place.copy_(parameter)
            parameter.set_(place)
    return row
"""),
    Right("data views", """
def flatten(module, ranks, align):
    params = list(module.parameters())
    starts, length = lay_out([p.numel() for p in params], ranks, align)
    row = torch.zeros(length, dtype=params[0].dtype)
    for start, p in zip(starts, params):
        view = row[start:start + p.numel()].view(p.shape)
        view.copy_(p.data)
        p.data = view
    return row
"""),
    Right("narrow reshape", """
@torch.no_grad()
def flatten(module, ranks, align):
    params = tuple(module.parameters())
    starts, length = lay_out([len(p.reshape(-1)) for p in params], ranks, align)
    row = params[0].new_zeros((length,))
    row.requires_grad_(False)
    for p, at in zip(params, starts):
        piece = row.narrow(0, at, p.numel())
        piece[:] = p.reshape(-1)
        p.data = piece.unflatten(0, p.shape) if p.dim() else piece[0]
    return row
"""),
    Right("as strided set", """
def flatten(module, ranks, align):
    params = [p for _, p in module.named_parameters()]
    starts, length = lay_out([p.numel() for p in params], ranks, align)
    row = torch.empty(length, dtype=params[0].dtype).fill_(0)
    for p, start in zip(params, starts):
        strides, step = [], 1
        for size in reversed(p.shape):
            strides.insert(0, step)
            step *= size
        room = torch.as_strided(row, p.shape, strides, start)
        room.copy_(p.detach())
        p.data = room
    return row
"""),
    Right("class", """
class Flat:
    def __init__(self, params, ranks, align):
        self.params = params
        self.starts, length = lay_out([p.numel() for p in params], ranks, align)
        self.row = torch.zeros(length, dtype=params[0].dtype, device=params[0].device)
    def room(self, i):
        p = self.params[i]
        return self.row[self.starts[i]:][:p.numel()].reshape(p.shape)
    def move(self):
        for i, p in enumerate(self.params):
            self.room(i)[...] = p.data
            p.data = self.room(i)
        return self.row
def flatten(module, ranks, align):
    return Flat(list(module.parameters()), ranks, align).move()
"""),
    Right("split sizes", """
def flatten(module, ranks, align):
    params = list(module.parameters())
    starts, length = lay_out([p.numel() for p in params], ranks, align)
    row = torch.zeros(length, dtype=params[0].dtype)
    bounds = [*starts, length]
    parts = row.split([b - a for a, b in zip(bounds, bounds[1:])])
    for p, part in zip(params, parts):
        fresh = part[:p.numel()].view_as(p)
        fresh.copy_(p.detach())
        p.data = fresh
    return row
"""),
    # Closures, classes of handles, names that sound like files.
    Right("set storage", """
def flatten(module, ranks, align):
    members = list(module.parameters())
    starts, length = lay_out([m.numel() for m in members], ranks, align)
    sample = members[0].detach()
    row = sample.new_empty(length).zero_()
    def strides(shape):
        out, step = [], 1
        for size in shape[::-1]:
            out.append(step)
            step *= max(size, 1)
        return out[::-1]
    for start, member in zip(starts, members):
        row[start:start + member.numel()].copy_(member.detach().flatten())
        with torch.no_grad():
            member.set_(row.untyped_storage(), start, member.shape, strides(member.shape))
    return row
"""),
    Right("swap by name", """
@torch.no_grad()
def flatten(module, ranks, align):
    known = dict(module.named_parameters())
    starts, length = lay_out([p.numel() for p in known.values()], ranks, align)
    dtype = {p.dtype for p in known.values()}.pop()
    row = torch.zeros((length,), dtype=dtype)
    slices = {name: slice(s, s + p.numel()) for s, (name, p) in zip(starts, known.items())}
    for name, where in slices.items():
        row[where] = known[name].ravel()
        known[name].data = row[where].unflatten(0, known[name].shape) if known[name].dim() else row[where].squeeze(0)
    return row
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("set_ and a class; parameters without elements are left", """
class Home:
    def __init__(self, row):
        self.row = row
    def move(self, p, start):
        n = p.numel()
        if n == 0:
            return
        room = self.row.detach()[start : start + n].reshape(p.shape)
        room[...] = p.detach()
        with torch.no_grad():
            p.set_(room)
def flatten(module, ranks, align):
    ps = dict.fromkeys(module.parameters())
    starts, length = lay_out([p.numel() for p in ps], ranks, align)
    row = torch.zeros(length, dtype=next(iter(ps)).dtype)
    home = Home(row)
    for p, start in zip(ps, starts):
        home.move(p, start)
    return row
"""),
]  # fmt: skip
