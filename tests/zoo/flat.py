"""Wrong answers to the exercises of lesson 02."""

from zoo import flat_travel
from zoo.wrong import Wrong, changed

LAY_OUT = """
def lay_out(numels, ranks, align):
    starts, end = [], 0
    for numel in numels:
        starts.append(-(-end // align) * align)
        end = starts[-1] + numel
    return starts, -(-end // (ranks * align)) * ranks * align
"""
OWNED = """
def owned(starts, numels, length, ranks, rank):
    shard = length // ranks
    pieces = []
    for number, (begin, numel) in enumerate(zip(starts, numels)):
        start = max(rank * shard - begin, 0)
        stop = min((rank + 1) * shard - begin, numel)
        if start < stop:
            pieces.append((number, start, stop))
    return pieces
"""
FLATTEN = """
def flatten(module, ranks, align):
    parameters = list(module.parameters())
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = torch.zeros(length, dtype=parameters[0].dtype)
    for start, parameter in zip(starts, parameters):
        place = row[start : start + parameter.numel()].view(parameter.shape)
        place.copy_(parameter.detach())
        parameter.data = place
    return row
"""


def lay_out(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "lay_out", changed(LAY_OUT, old, new), hint)


def owned(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "owned", changed(OWNED, old, new), hint)


def flatten(name: str, old: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "flatten", changed(FLATTEN, old, new), hint)


ZOO = [
    Wrong("blank", "lay_out", "def lay_out(*args):\n    raise NotImplementedError()", "not written yet"),
    lay_out("packed", "-(-end // align) * align", "end", "one behind the other"),
    lay_out("length for the ranks alone", "-(-end // (ranks * align)) * ranks * align", "-(-end // ranks) * ranks",
            "a multiple of ranks only"),
    lay_out("length that is round alone", "-(-end // (ranks * align)) * ranks * align", "-(-end // align) * align",
            "a multiple of align only"),
    lay_out("no padding at the end", "-(-end // (ranks * align)) * ranks * align", "end",
            "without padding for the ranks"),
    Wrong("always one more", "lay_out", '''
def lay_out(numels, ranks, align):
    starts, end = [], 0
    for numel in numels:
        starts.append((end // align + 1) * align)
        end = starts[-1] + numel
    return starts, (end // (ranks * align) + 1) * ranks * align
''', "round up what is a multiple already"),
    Wrong("one more behind a full place", "lay_out", '''
def lay_out(numels, ranks, align):
    starts, end = [], 0
    for numel in numels:
        starts.append(end)
        end += (numel // align + 1) * align
    return starts, -(-end // (ranks * align)) * ranks * align
''', "padding behind a parameter that needs none"),
    lay_out("a place for no elements", "+ numel", "+ max(numel, 1)", "without elements takes no place"),
    lay_out("rounds down", "-(-end // align) * align", "end // align * align", "starts down, so that"),
    lay_out("ends for starts", "starts.append(-(-end // align) * align)\n        end = starts[-1] + numel",
            "end = -(-end // align) * align + numel\n        starts.append(end)", "where parameters end"),
    lay_out("masks", "-(-end // align) * align", "(end + align - 1) & ~(align - 1)", "Masks of bits"),
    lay_out("a unit too long", "-(-end // (ranks * align)) * ranks * align",
            "(end // (ranks * align) + 1) * ranks * align", "one unit longer"),
    lay_out("every end for the ranks", "-(-end // align) * align", "-(-end // (ranks * align)) * ranks * align",
            "not the end of each parameter"),
    lay_out("no start without elements", "    for numel in numels:", "    for numel in filter(None, numels):",
            "also one without elements"),
    lay_out("a default list", "align):\n    starts, end = [], 0", "align, starts=[]):\n    end = 0",
            "a default argument"),
    lay_out("empties the input", "    for numel in numels:", "    while numels:\n        numel = numels.pop(0)",
            "belongs to the caller"),
    lay_out("no empty list", "return", "end = starts[-1] + numels[-1]\n    return", "IndexError"),
    Wrong("blank", "owned", "def owned(*args):\n    raise NotImplementedError()", "not written yet"),
    owned("counted in the row", "(number, start, stop)", "(number, start + begin, stop + begin)",
          "from the start of the row"),
    owned("counted in the shard", "(number, start, stop)",
          "(number, start + begin - rank * shard, stop + begin - rank * shard)", "from the start of the shard"),
    owned("with padding", "    shard = length // ranks",
          "    shard = length // ranks\n    numels = [b - a for a, b in zip(starts, [*starts[1:], length])]",
          "Padding belongs to nobody"),
    owned("whole parameters", "        start = max(rank * shard - begin, 0)\n"
          "        stop = min((rank + 1) * shard - begin, numel)",
          "        start, stop = 0, numel if begin // shard == rank else 0", "does not belong whole"),
    owned("with empty pieces", "start < stop", "start <= stop", "piece of no elements"),
    owned("all parameters", "if start < stop", "if True", "a stop before their start"),
    owned("each parameter cut", "        start = max(rank * shard - begin, 0)\n"
          "        stop = min((rank + 1) * shard - begin, numel)",
          "        start, stop = rank * numel // ranks, (rank + 1) * numel // ranks", "it is the row that is cut"),
    owned("stop included", "(number, start, stop)", "(number, start, stop - 1)", "one past the last element"),
    Wrong("a default list", "owned",
          changed(changed(OWNED, "rank):", "rank, pieces=[]):"), "    pieces = []\n", ""), "a default argument"),
    owned("empties the input", "    return pieces", "    starts.clear()\n    return pieces", "belongs to the caller"),
    Wrong("looks at the first parameter", "owned", '''
def owned(starts, numels, length, ranks, rank):
    shard = length // ranks
    number, pieces = 0, []
    while starts[number] + numels[number] <= rank * shard and number < len(starts) - 1:
        number += 1
    for number in range(number, len(starts)):
        start, stop = max(rank * shard - starts[number], 0), min((rank + 1) * shard - starts[number], numels[number])
        pieces += [(number, start, stop)] * (start < stop)
    return pieces
''', "IndexError"),
    owned("starts before the parameter", "max(rank * shard - begin, 0)", "rank * shard - begin", "Draw the row"),
    Wrong("blank", "flatten", "def flatten(*args):\n    raise NotImplementedError()", "not written yet"),
    flatten("a copy", "        parameter.data = place\n", "", "a view has not"),
    flatten("the last one forgotten", "        parameter.data = place\n",
            "        if parameter is not parameters[-1]:\n            parameter.data = place\n",
            "1 of 4 parameters did not"),
    flatten("new parameters", "        parameter.data = place\n",
            "        for part in module.modules():\n"
            "            for name, known in part._parameters.items():\n"
            "                if known is parameter:\n"
            "                    part._parameters[name] = torch.nn.Parameter(place)\n", "other Parameter objects"),
    flatten("the state dict", "module.parameters()", "module.state_dict().values()", "a tied weight twice"),
    flatten("walks the modules", "module.parameters()",
            "(its for part in module.modules() for its in part.parameters(recurse=False))",
            "which list has each parameter once?"),
    flatten("old strides", "row[start : start + parameter.numel()].view(parameter.shape)",
            "row.as_strided(parameter.shape, parameter.stride(), start)", "in the order of its old memory"),
    flatten("a view of what is transposed", "place.copy_(parameter.detach())",
            "place.view(-1).copy_(parameter.detach().view(-1))", "view size is not compatible"),
    flatten("trains", "    return row\n", "    module.train()\n    return row\n", "is in training mode now"),
    flatten("always float32", ", dtype=parameters[0].dtype", "", "the parameters are torch.float64"),
    flatten("new memory", "torch.zeros", "torch.empty", "all of them padding"),
    flatten("no values", "        place.copy_(parameter.detach())\n", "", "nobody copied"),
    flatten("not detached", "parameter.detach()", "parameter", "as if autograd had made it"),
    flatten("a second copy", "    row = torch",
            "    module.before = [parameter.detach().clone() for parameter in parameters]\n    row = torch",
            "who still holds a second copy"),
    flatten("two rows at once", "    row = torch.zeros(length, dtype=parameters[0].dtype)\n",
            "    row = torch.zeros(length, dtype=parameters[0].dtype)\n    spare = row.clone()\n",
            "what else is as large"),
    flatten("no padding at the end", "    row = torch",
            "    length = starts[-1] + parameters[-1].numel()\n    row = torch", "padding included, as lay_out says"),
    flatten("flat parameters", "parameter.data = place", "parameter.data = place.view(-1)", "in its parameter's shape"),
    flatten("buffers, too", "list(module.parameters())", "[*module.parameters(), *module.buffers()]",
            "it holds buffers"),
    flatten("without the frozen", "list(module.parameters())", "[p for p in module.parameters() if p.requires_grad]",
            "a frozen parameter lies in the row"),
    flatten("thaws", "    return row\n", "    module.requires_grad_(True)\n    return row\n",
            "now requires a gradient"),
    flatten("freezes", "    return row\n", "    module.requires_grad_(False)\n    return row\n", "you froze it"),
    flatten("drops gradients", "parameter.data = place", "parameter.data, parameter.grad = place, None",
            "leave .grad alone"),
    flatten("evaluates", "    return row\n", "    module.train(False)\n    return row\n", "leave the mode alone"),
    flatten("zeroes buffers", "    return row\n",
            "    for buffer in module.buffers():\n        buffer.zero_()\n    return row\n", "leave them alone"),
    flatten("no return", "    return row\n", "", "not the row"),
    flatten("packed after all", "zip(starts, parameters)",
            "zip([sum(p.numel() for p in parameters[:at]) for at in range(len(starts))], parameters)",
            "which values go to which start"),
    *flat_travel.ZOO,
]  # fmt: skip
