"""Right answers to `flatten` of lesson 02."""

from zoo.answers import Right

RIGHT = [
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
