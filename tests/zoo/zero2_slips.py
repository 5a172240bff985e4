"""Wrong answers to the exercises of lesson 04 that passed once, since nothing drawn told them from right ones."""

from zoo.wrong import Wrong, changed
from zoo.zero2 import ACCUMULATE, IN_FLIGHT, IN_TIME, KEEP, MENDED
from zoo.zero2_norm import CLIP

RUN = "    model(inputs.detach()).square()"
REDUCE = """        shards[parameter] = comm.reduce_scatter(parameter.grad.flatten(), average=True)
        parameter.grad = None
"""
LATER = "    for hook in hooks:\n        hook.remove()\n"

ZOO = [
    Wrong("a list of numbers, reduced after backward", "shards_in_time",
          changed(IN_TIME, REDUCE, "        lists[parameter] = parameter.grad.flatten().tolist()\n"
                  "        parameter.grad = None\n")
          .replace("    shards = {}\n", "    shards, lists = {}, {}\n")
          .replace(LATER, LATER + "    for parameter, numbers in lists.items():\n"
                   "        row = torch.tensor(numbers, dtype=parameter.dtype)\n"
                   "        shards[parameter] = comm.reduce_scatter(row, average=True)\n"),
          "and 0 reductions had begun: reduce each in its own hook"),
    Wrong("one hook late", "shards_in_time",
          changed(IN_TIME, REDUCE, """        if waiting:
            first = waiting.pop()
            shards[first[0]] = first[1].wait()
        whole, parameter.grad = parameter.grad.flatten(), None
        waiting.append((parameter, comm.reduce_scatter_async(whole, average=True)))
""").replace("    shards = {}\n", "    shards, waiting = {}, []\n")
          .replace(LATER, LATER + "    shards[waiting[0][0]] = waiting[0][1].wait()\n"),
          "1 still there: which name, attribute, list or handle"),
    Wrong("scales a copy", "shards_in_time",
          changed(IN_TIME, "comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "comm.reduce_scatter(parameter.grad.flatten() / comm.size)"),
          "what makes a copy of it"),
    Wrong("a view of its part", "shards_in_time",
          changed(IN_TIME, REDUCE, """        whole, parameter.grad = parameter.grad.flatten(), None
        mine = whole.tensor_split(comm.size)[comm.rank]
        shards[parameter] = comm.reduce_scatter(whole, average=True, out=mine)
"""), "a view of something whole keeps all of its memory"),
    Wrong("leaves gradients in inputs", "shards_in_time", changed(IN_TIME, "inputs.detach()", "inputs"),
          "inputs.grad is another one after the call"),
    Wrong("inputs without a gradient from now on", "shards_in_time",
          changed(IN_TIME, RUN, "    inputs.requires_grad_(False)\n" + RUN),
          "inputs.requires_grad is False after the call"),
    Wrong("train mode", "shards_in_time", changed(IN_TIME, RUN, "    model.train()\n" + RUN),
          "model.training is True after the call"),
    Wrong("a private attribute", "shards_in_time",
          changed(IN_TIME, "        parameter.grad = None\n", "        parameter.grad = None\n"
                  "        parameter._reduced = True\n"), "weight._reduced is there after the call"),
    Wrong("single precision", "shards_in_time", changed(IN_TIME, "flatten(), average", "flatten().float(), average"),
          "torch.float32, not torch."),
    Wrong("on the wire in single precision", "shards_in_time",
          changed(IN_TIME, "comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "comm.reduce_scatter(parameter.grad.flatten().float(), average=True).to(parameter.dtype)"),
          "right to single precision only"),
    Wrong("none for a frozen parameter", "shards_in_time",
          changed(IN_TIME, "torch.zeros_like(part)", "None"), "that got no gradient: a shard of zeros is due"),
    Wrong("skips a frozen parameter", "shards_in_time",
          changed(IN_TIME, "for parameter in model.parameters()]\n", "for parameter in model.parameters() if parameter "
                  "in arrived]\n").replace("    for parameter in model.parameters():",
                                           "    arrived = set(shards)\n    for parameter in model.parameters():")
          .replace("return [shards[parameter] for parameter in model.parameters()]",
                   "return [shards[parameter] for parameter in model.parameters() if parameter in arrived]"),
          "of those parameters alone that got a gradient"),

    Wrong("single precision", "in_flight", changed(IN_FLIGHT, "(gradient, average", "(gradient.float(), average"),
          "torch.float32, not torch.float64"),
    Wrong("one gradient ahead", "in_flight", """
def in_flight(comm, gradients, limit):
    under_way, shards, last = [], [], None
    for gradient in gradients:
        if last is not None:
            if len(under_way) == limit:
                shards.append(under_way.pop(0).wait())
            under_way.append(comm.reduce_scatter_async(last, average=True))
        last = gradient
    if len(under_way) == limit:
        shards.append(under_way.pop(0).wait())
    under_way.append(comm.reduce_scatter_async(last, average=True))
    return shards + [handle.wait() for handle in under_way]
""", "start each as it comes"),
    Wrong("the newest first, put in order", "in_flight", """
def in_flight(comm, gradients, limit):
    under_way, shards = {}, {}
    for index, gradient in enumerate(gradients):
        if len(under_way) == limit:
            newest = max(under_way)
            shards[newest] = under_way.pop(newest).wait()
        under_way[index] = comm.reduce_scatter_async(gradient, average=True)
    shards |= {index: handle.wait() for index, handle in under_way.items()}
    return [shards[index] for index in sorted(shards)]
""", "while call 1 was under way: which handle is the oldest?"),

    Wrong("zeros in single precision", "accumulate", """
def accumulate(comm, micro_batches, each):
    parts = micro_batches if each else [torch.stack(micro_batches).sum(0)]
    total = torch.zeros(len(micro_batches[0].tensor_split(comm.size)[comm.rank]))
    for gradient in parts:
        total += comm.reduce_scatter(gradient, average=True)
    return total / len(micro_batches)
""", "torch.float32, not torch.float64: keep the dtype"),
    Wrong("divides the only one in place", "accumulate",
          changed(ACCUMULATE, "return total.div_(len(micro_batches))", "return total")
          .replace("first.clone()", "first if not others else first.clone()")
          .replace("comm.reduce_scatter(whole, average", "comm.reduce_scatter(whole.div_(len(micro_batches)), average")
          .replace("total.add_(comm.reduce_scatter(gradient, average=True))",
                   "total.add_(comm.reduce_scatter(gradient, average=True))\n        total.div_(len(micro_batches))"),
          "wrote to the gradients [0], even if"),

    Wrong("Python's max over shards", "clip_",
          changed(CLIP, "sizes.max()", "max([float(each.abs().max()) for each in gradients if len(each)])")
          .replace("own = max", "own = sizes.new_tensor(max").replace("if len(each)])", "if len(each)]))"),
          "drop a nan that does not come first"),
    Wrong("a norm of zero divides", "clip_",
          changed(CLIP, "if limit < norm < torch.inf", "if limit <= norm < torch.inf"),
          "a norm of 0 is above no limit"),
    Wrong("the smaller of 1 and a quotient", "clip_",
          changed(CLIP, "    if limit < norm < torch.inf:\n", "    factor = min(1.0, limit / norm.item())\n"
                  "    if norm < torch.inf:\n").replace("mul_(limit / norm)", "mul_(factor)"),
          "division by zero"),
    Wrong("signs and all", "clip_", changed(CLIP, ".double().abs()", ".double()"), "The signs count there"),
    Wrong("nearly float64", "clip_", changed(CLIP, ".double().abs()", ".abs()")
          .replace("own.view(1)", "own.double().view(1)"), "convert the gradients before you take powers and sums"),

    Wrong("a fraction in between", "sent_bytes", """
def sent_bytes(numel, ranks, micro_batches, each):
    return int(((micro_batches if each else 1) + 1) * 4 * numel * (ranks - 1) / ranks)
""", "a fraction in between is rounded"),

    Wrong("the newest one's shards", "MendedBackward",
          changed(MENDED, "        self.shards = [None] * len(parameters)\n",
                  "        self.shards[:] = [None] * len(parameters)\n")
          .replace("class MendedBackward:\n", "class MendedBackward:\n    shards = []\n\n"),
          "belongs to the class, and all share it"),
    Wrong("by memory, not by rows", "MendedBackward",
          changed(MENDED, "parameter.grad.flatten()", "parameter.grad.as_strided((parameter.numel(),), (1,)).clone()"),
          "a gradient in the order in which it lies in memory"),
    Wrong("shards of the class", "MendedBackward",
          changed(MENDED, "    def __init__(self, comm, parameters):\n", "    shards = {}\n\n"
                  "    def __init__(self, comm, parameters):\n")
          .replace("        self.shards = [None] * len(parameters)\n", "")
          .replace(KEEP, "self.shards[index] = self.shards[index] + shard if index in self.shards else shard"),
          "and a list is due"),
    Wrong("a mean over backwards", "MendedBackward",
          changed(MENDED, KEEP, "self.times[index] += 1\n        old = self.shards[index]\n"
                  "        self.shards[index] = shard if old is None else old + (shard - old) / self.times[index]")
          .replace("self.comm = comm", "self.comm, self.times = comm, [0] * len(parameters)"),
          "what several of them bring is added up"),
    Wrong("views of whole gradients", "MendedBackward",
          changed(MENDED, "shard = self.comm.reduce_scatter(parameter.grad.flatten(), average=True)",
                  "whole = parameter.grad.flatten()\n"
                  "        shard = whole.tensor_split(self.comm.size)[self.comm.rank]\n"
                  "        self.comm.reduce_scatter(whole, average=True, out=shard)"),
          "a view of something whole keeps all of its memory"),
    Wrong("zeros in single precision", "MendedBackward",
          changed(MENDED, "[None] * len(parameters)", "[torch.zeros(len(each.detach().flatten().tensor_split(comm.size)"
                  "[comm.rank])) for each in parameters]"), "torch.float32, not torch."),
]  # fmt: skip
