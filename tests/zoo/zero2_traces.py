"""Wrong answers to the exercises of lesson 04 that return the right numbers, or nearly always do."""

from zoo.wrong import Wrong, changed
from zoo.zero2 import ACCUMULATE, IN_FLIGHT, IN_TIME, KEEP, MENDED
from zoo.zero2_norm import CLIP

RUN = "    model(inputs.detach()).square()"

ZOO = [
    Wrong("backward's order, turned round", "shards_in_time",
          changed(IN_TIME, "[shards[parameter] for parameter in model.parameters()]", "list(shards.values())[::-1]"),
          "in backward's order, turned round"),
    Wrong("remembers shards", "shards_in_time",
          "shards = {}\n" + changed(IN_TIME, "    shards = {}\n", ""), "which name outside the function"),
    Wrong("an attribute of the model", "shards_in_time", changed(IN_TIME, RUN, "    model.shards = shards\n" + RUN),
          "model.shards is there after the call"),
    Wrong("another mode", "shards_in_time", changed(IN_TIME, RUN, "    model.train(False)\n" + RUN),
          "model.training is False after the call"),
    Wrong("gradients of inputs", "shards_in_time", changed(IN_TIME, RUN, "    inputs.requires_grad_()\n" + RUN),
          "inputs.requires_grad is True after the call"),
    Wrong("frozen", "shards_in_time",
          changed(IN_TIME, "    return [", "    model.requires_grad_(False)\n    return ["),
          "requires_grad is False after the call"),
    Wrong("in evaluation", "shards_in_time",
          changed(IN_TIME, RUN, "    before = model.training\n    model.eval()\n" + RUN)
          .replace("    return [", "    model.train(before)\n    return ["), "the gradients of a model in evaluation"),
    Wrong("in training", "shards_in_time",
          changed(IN_TIME, RUN, "    before = model.training\n    model.train()\n" + RUN)
          .replace("    return [", "    model.train(before)\n    return ["), "the gradients of a model in training"),
    Wrong("trains what is frozen", "shards_in_time",
          changed(IN_TIME, "def shards_in_time(comm, model, inputs):\n",
                  "def shards_in_time(comm, model, inputs):\n"
                  "    frozen = [each for each in model.parameters() if not each.requires_grad]\n"
                  "    model.requires_grad_(True)\n")
          .replace("    return [", "    for each in frozen:\n        each.requires_grad_(False)\n    return ["),
          "a gradient of a frozen parameter"),
    Wrong("by memory, not by rows", "shards_in_time",
          changed(IN_TIME, "parameter.grad.flatten()", "parameter.grad.as_strided((parameter.numel(),), (1,)).clone()"),
          "a gradient in the order in which it lies in memory"),
    Wrong("forward twice", "shards_in_time", changed(IN_TIME, RUN, "    model(inputs)\n" + RUN),
          "one forward, one backward"),
    Wrong("double precision", "shards_in_time", changed(IN_TIME, "flatten(), average", "flatten().double(), average"),
          "torch.float64, not torch.float32: keep the dtype"),

    Wrong("waits though there is room", "in_flight",
          changed(IN_FLIGHT, "        if len(under_way) == limit:", "        while len(under_way) > max(limit - 2, 0) "
                  "and (shards or len(under_way) == limit):"),
          "do not wait while there is room"),
    Wrong("waits at once for a single one", "in_flight",
          changed(IN_FLIGHT, "average=True))\n", "average=True))\n        if limit == 1:\n"
                  "            shards.append(under_way.pop(0).wait())\n"),
          "waited with 1 under way and no gradient at hand"),
    Wrong("four at most", "in_flight", changed(IN_FLIGHT, "== limit", "== min(limit, 4)"),
          "never more than 4 under way"),
    Wrong("skips empty ones", "in_flight",
          changed(IN_FLIGHT, "    for gradient in gradients:", "    for gradient in gradients:\n"
                  "        if not gradient.numel():\n            continue"),
          "gradients without elements"),
    Wrong("all-reduce, then cut", "in_flight",
          changed(IN_FLIGHT, "reduce_scatter_async", "all_reduce_async")
          .replace(".wait()", ".wait().tensor_split(comm.size)[comm.rank]"),
          "is all_reduce of"),
    Wrong("arrived, not waited for", "in_flight", changed(IN_FLIGHT, "[handle.wait()", "[handle.arrived()"),
          "had met no wait()"),
    Wrong("double precision", "in_flight", changed(IN_FLIGHT, "(gradient, average", "(gradient.double(), average"),
          "torch.float64, not torch.float32: keep the dtype"),

    Wrong("adds and subtracts again", "accumulate",
          changed(ACCUMULATE, "whole = first.clone()", "whole = first")
          .replace("        total = comm.reduce_scatter(whole, average=True)",
                   "        total = comm.reduce_scatter(whole, average=True)\n"
                   "        for gradient in others:\n            whole.sub_(gradient)"),
          "even if their numbers are as before"),
    Wrong("double precision", "accumulate", changed(ACCUMULATE, "return total.div_", "return total.double().div_"),
          "torch.float64, not torch.float32: keep the dtype"),

    Wrong("replaces the shards", "clip_",
          changed(CLIP, "        for gradient in gradients:\n            gradient.mul_(limit / norm)",
                  "        for index, shard in enumerate(shards):\n            shards[index] = shard * (limit / norm)"),
          "became another tensor"),
    Wrong("whole norm types", "clip_", changed(CLIP, "    gradients =", "    norm_type = norm_type if norm_type == "
                                               "torch.inf else int(norm_type)\n    gradients ="),
          "need not be a whole number"),
    Wrong("large is inf", "clip_", changed(CLIP, "norm_type == torch.inf", "norm_type > 10"), "large is not yet inf"),
    Wrong("a little more", "clip_", changed(CLIP, "limit / norm", "limit / (norm + 1e-6)"), "larger by 1e-6"),
    Wrong("no limit at 0", "clip_", changed(CLIP, "limit < norm", "0 < limit < norm"), "0 is a limit like any other"),
    Wrong("inf for nan", "clip_",
          changed(CLIP, "return norm.item()", "return norm.item() if norm == norm else float('inf')"),
          "Say which of the two it is"),

    Wrong("removes its hooks", "MendedBackward",
          changed(MENDED, "            parameter.register", "            self.times[index] = 0\n"
                  "            self.hooks[index] = parameter.register")
          .replace("self.comm = comm", "self.comm, self.hooks, self.times = comm, {}, {}")
          + "        self.times[index] += 1\n        if self.times[index] == 2:\n"
          "            self.hooks[index].remove()\n",
          "does every hook still run?"),
    Wrong("adds to the first", "MendedBackward",
          changed(MENDED, KEEP, "self.first.setdefault(index, shard)\n        self.shards[index] = shard if "
                  "self.shards[index] is None else self.first[index] + shard")
          .replace("self.comm = comm", "self.comm, self.first = comm, {}"),
          "those in between are lost"),
    Wrong("a log", "MendedBackward",
          changed(MENDED, "        parameter.grad = None", "        self.log.append(shard)\n"
                  "        parameter.grad = None")
          .replace("self.comm = comm", "self.comm, self.log = comm, []"),
          "what has been added up is not needed any more"),
    Wrong("double precision", "MendedBackward",
          changed(MENDED, "average=True)\n", "average=True).double()\n"),
          "torch.float64, not torch.float32: keep the dtype"),
]  # fmt: skip
