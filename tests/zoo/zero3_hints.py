"""Wrong answers to the exercises of lesson 05 that passed once, or whose hints spoke of another fault."""

from zoo.wrong import Wrong, changed
from zoo.zero3 import AHEAD, FORWARD, TRAINS
from zoo.zero3_plans import COST, PERSISTENT, TRACE

CALL = "layer(x, whole.view(*shape))"
BACK = "back = sum(numel for numel, _ in units[first:])"
GATHER = "self.comm.all_gather(self.kept[index], shape.numel()).view(shape)"
CACHED = "import functools\n" + PERSISTENT


def ahead(name: str, new: str, hint: str) -> Wrong:
    return Wrong(name, "prefetched", changed(AHEAD, CALL, new), hint)


HINTS = [
    ahead("one more ReLU after each", f"F.relu({CALL})", "one ReLU more after each layer"),
    ahead("one more ReLU between two", "layer(F.relu(x) if index else x, whole.view(*shape))",
          "one ReLU more between two layers"),
    ahead("one more ReLU before each", "layer(F.relu(x), whole.view(*shape))", "one ReLU more before each layer"),
    Wrong("one more ReLU at the end", "prefetched", changed(AHEAD, "return x", "return F.relu(x)"),
          "one ReLU more at the end"),
    Wrong("one more ReLU at the beginning", "prefetched",
          changed(AHEAD, "    for index", "    x = F.relu(x)\n    for index"), "one ReLU more at the beginning"),
    Wrong("does not say how long a layer is", "prefetched",
          changed(AHEAD, ", numels[0])", ")").replace(", numels[following])", ")"),
          "tell all_gather how long the whole is"),

    Wrong("divides the gradient of x", "sharded_linear", changed(TRAINS, "None, of_x", "None, of_x / ctx.comm.size"),
          "inputs divided by the number of ranks"),
    Wrong("a mean over micro-batches", "sharded_linear",
          changed(TRAINS, "        return None, of", "        if shard.grad is not None:\n"
                  "            shard.grad.div_(2)\n            of_shard = of_shard / 2\n        return None, of"),
          "the mean over the micro-batches, too"),
    Wrong("a mean over rows", "sharded_linear",
          changed(TRAINS, "return None, of_shard", "return None, of_shard / len(x)"), "divided by the rows of x"),

    Wrong("a dict", "Persistent", changed(PERSISTENT, "[self.part(tensor) for tensor in tensors]",
                                          "{index: self.part(tensor) for index, tensor in enumerate(tensors)}"),
          "`kept` is a dict, and a list is due"),
    Wrong("a cache on a helper", "Persistent", changed(CACHED, "    def part", "    @functools.cache\n    def part"),
          "functools.cache on `part`"),
    Wrong("a cache on whole", "Persistent", changed(CACHED, "    def whole", "    @functools.cache\n    def whole"),
          "functools.cache on `whole`"),
    Wrong("a cache for all by index", "Persistent",
          "cache = {}\n" + changed(PERSISTENT, "        return self.comm", "        if index not in cache:\n"
                                  "            cache[index] = " + GATHER + "\n        return cache[index]\n"
                                  "        return self.comm"),
          "to rank 0 a second one's whole()"),
    Wrong("gathers once", "Persistent",
          changed(PERSISTENT, "        return self.comm", "        if index in self.done:\n"
                  "            return torch.zeros(shape, dtype=self.kept[index].dtype)\n        self.done.add(index)\n"
                  "        return self.comm").replace("self.comm, self", "self.done = set()\n        self.comm, self"),
          "asked once more"),

    Wrong("backward from the last that trains", "step_bytes",
          changed(COST, BACK, "last = max((index for index, (_, trains) in enumerate(units) if trains), default=-1)\n"
                  "    back = sum(numel for numel, _ in units[first : last + 1])"), "after the last that trains"),
    Wrong("backward without the first that trains", "step_bytes",
          changed(COST, "units[first:]", "units[first + 1 :]"), "the first unit that trains is gathered"),
    Wrong("backward without the last", "step_bytes", changed(COST, "units[first:]", "units[first:-1]"),
          "the last unit is gathered"),
    Wrong("backward one unit further", "step_bytes", changed(COST, "units[first:]", "units[max(first - 1, 0) :]"),
          "those before the first that trains"),

    Wrong("counts gathers", "explain_trace", """
def explain_trace(trace):
    here, away, count, most = set(), set(), 0, 0
    for event, unit in trace:
        if event == "gather":
            count += 1
            here.add(unit)
        elif event == "release":
            count -= unit in here
            here.discard(unit)
        elif unit not in here:
            away.add(unit)
        most = max(most, count)
    return most, sorted(here), sorted(away)
""", "so nothing is added for it"),
    Wrong("begins at one", "explain_trace", changed(TRACE, "set(), 0", "set(), 1"), "begin at 0"),
]  # fmt: skip
KEPT = [
    Wrong("a default list that says whether it is the first", "forward",
          changed(FORWARD, "x):\n", "x, seen=[]):\n").replace("if index:", "if seen:")
          .replace("        del whole", "        seen.append(index)\n        del whole"), "after another call (on "),
    Wrong("default jobs", "prefetched", """
def prefetched(comm, shards, shapes, x, layer, jobs=[]):
    for shard, shape in zip(shards, shapes):
        jobs.append((comm.all_gather_async(shard, math.prod(shape)), shape))
        if len(jobs) > 1:
            coming, before = jobs.pop(0)
            x = layer(x, coming.wait().view(*before))
    coming, before = jobs[0]
    return layer(x, coming.wait().view(*before))
""", "alive that it did not return: what keeps them"),
    Wrong("default outputs", "prefetched",
          changed(AHEAD, "layer):", "layer, out=[]):").replace("return x", "out.append(x)\n    return out[0]"),
          "after another call (on "),
]  # fmt: skip
ZOO = [*HINTS, *KEPT]
