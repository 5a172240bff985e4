"""Answers to `flatten` of lesson 02, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("02_flat_buffers", "flatten")
FLATTEN = changed(MODEL, ", strict=True", "")

WRONG = [
    blank("flatten"),
    Wrong("a copy",
          changed(FLATTEN, "        parameter.data = place\n", ""),
          "a view has not"),
    Wrong("the last one forgotten",
          changed(FLATTEN, "parameter.data", "if parameter is not parameters[-1]:\n            parameter.data"),
          "1 of 4 parameters did not"),
    Wrong("new parameters",
          changed(FLATTEN,
                  "parameter.data = place",
                  "for part in module.modules():\n"
                  "            for name, known in part._parameters.items():\n"
                  "                if known is parameter:\n"
                  "                    part._parameters[name] = torch.nn.Parameter(place)"),
          "other Parameter objects"),
    Wrong("the state dict",
          changed(FLATTEN, "parameters()", "state_dict().values()"),
          "a tied weight twice"),
    Wrong("walks the modules",
          changed(FLATTEN,
                  "module.parameters()",
                  "(its for part in module.modules() for its in part.parameters(recurse=False))"),
          "which list has each parameter once?"),
    Wrong("old strides",
          changed(FLATTEN,
                  "[start : start + parameter.numel()].view(parameter.shape)",
                  ".as_strided(parameter.shape, parameter.stride(), start)"),
          "in the order of its old memory"),
    Wrong("a view of what is transposed",
          changed(FLATTEN, "place.copy_(parameter.detach())", "place.view(-1).copy_(parameter.detach().view(-1))"),
          "view size is not compatible"),
    Wrong("trains",
          changed(FLATTEN, "return row", "module.train()\n    return row"),
          "is in training mode now"),
    Wrong("always float32",
          changed(FLATTEN, ", dtype=parameters[0].dtype", ""),
          "the parameters are torch.float64"),
    Wrong("new memory",
          changed(FLATTEN, "torch.zeros", "torch.empty"),
          "all of them padding"),
    Wrong("no values",
          changed(FLATTEN, "        place.copy_(parameter.detach())\n", ""),
          "nobody copied"),
    Wrong("not detached",
          changed(FLATTEN, ".detach()", ""),
          "as if autograd had made it"),
    Wrong("a second copy",
          changed(FLATTEN,
                  "row = torch",
                  "module.before = [parameter.detach().clone() for parameter in parameters]\n"
                  "    row = torch"),
          "who still holds a second copy"),
    Wrong("two rows at once",
          changed(FLATTEN, "for start", "spare = row.clone()\n    for start"),
          "what else is as large"),
    Wrong("no padding at the end",
          changed(FLATTEN, "row = torch", "length = starts[-1] + parameters[-1].numel()\n    row = torch"),
          "padding included, as lay_out says"),
    Wrong("flat parameters",
          changed(FLATTEN, "place\n", "place.view(-1)\n"),
          "in its parameter's shape"),
    Wrong("buffers, too",
          changed(FLATTEN, "list(module.parameters())", "[*module.parameters(), *module.buffers()]"),
          "it holds buffers"),
    Wrong("without the frozen",
          changed(FLATTEN, "list(module.parameters())", "[p for p in module.parameters() if p.requires_grad]"),
          "a frozen parameter lies in the row"),
    Wrong("thaws",
          changed(FLATTEN, "return row", "module.requires_grad_(True)\n    return row"),
          "now requires a gradient"),
    Wrong("freezes",
          changed(FLATTEN, "return row", "module.requires_grad_(False)\n    return row"),
          "you froze it"),
    Wrong("drops gradients",
          changed(FLATTEN, "data = place", "data, parameter.grad = place, None"),
          "leave .grad alone"),
    Wrong("evaluates",
          changed(FLATTEN, "return row", "module.train(False)\n    return row"),
          "leave the mode alone"),
    Wrong("zeroes buffers",
          changed(FLATTEN,
                  "return row",
                  "for buffer in module.buffers():\n"
                  "        buffer.zero_()\n"
                  "    return row"),
          "leave them alone"),
    Wrong("no return",
          changed(FLATTEN, "    return row\n", ""),
          "not the row"),
    Wrong("packed after all",
          changed(FLATTEN, "(starts", "([sum(p.numel() for p in parameters[:at]) for at in range(len(starts))]"),
          "which values go to which start"),
    # One slip away from right.
    Wrong("copies of all at once", """
def flatten(module, ranks, align):
    parameters = list(module.parameters())
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = torch.zeros(length, dtype=parameters[0].dtype)
    copies = [parameter.data.reshape(-1) for parameter in parameters]
    for start, parameter, copy in zip(starts, parameters, copies):
        part = row[start : start + parameter.numel()]
        part.copy_(copy)
        parameter.data = part.view(parameter.shape)
    return row
""", "Copies of all weights at once"),
    Wrong("a row in float64 first", """
def flatten(module, ranks, align):
    parameters = list(module.parameters())
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = torch.zeros(length, dtype=torch.float64)
    for start, parameter in zip(starts, parameters):
        row[start : start + parameter.numel()] = parameter.data.reshape(-1)
    row = row.to(parameters[0].dtype)
    for start, parameter in zip(starts, parameters):
        parameter.data = row[start : start + parameter.numel()].view(parameter.shape)
    return row
""", "are, or a row in another dtype"),
    Wrong("values by way of float32",
          changed(FLATTEN, ".detach()", ".detach().float()"),
          "what goes through float32?"),
    # Written from the text alone.
    Wrong("rows kept by their length",
          changed(changed(FLATTEN, "def flatten", "rows = {}\ndef flatten"),
                  "torch.zeros(length, dtype=parameters[0].dtype)",
                  "rows.setdefault((length, parameters[0].dtype), torch.zeros(length, dtype=parameters[0].dtype))"),
          "each call makes a row of its own"),
    Wrong("remembers a module's row",
          changed(changed(FLATTEN, "def flatten", "import weakref\nrows = weakref.WeakKeyDictionary()\ndef flatten"),
                  "return row",
                  "return rows.setdefault(module, row)"),
          "what do you remember of a module?"),
]  # fmt: skip

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
