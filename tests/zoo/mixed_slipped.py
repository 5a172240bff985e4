"""Wrong answers to exercises of lesson 06 that a check let pass once, or sent elsewhere."""

from zoo.wrong import Wrong

ZOO = [
    Wrong("log2", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    if value == 0:
        return 0.0
    power = max(math.floor(math.log2(abs(value))), 1 - bias)
    unit = 2.0 ** (power - mantissa_bits)
    result = round(value / unit) * unit
    return math.copysign(math.inf, value) if abs(result) / 2 >= 2.0 ** bias else result
""", "math.log2 is rounded itself"),
    Wrong("the magic number", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    if power > bias: return math.copysign(math.inf, value)
    magic = 1.5 * 2.0 ** (power - mantissa_bits + 52)
    result = value + magic - magic
    return math.copysign(math.inf, value) if abs(result) / 2 >= 2.0 ** bias else result
""", "leaves no room for 52 bits"),
    Wrong("floor towards minus infinity", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    unit = 2.0 ** (power - mantissa_bits)
    result = (value // unit) * unit
    return math.copysign(math.inf, value) if abs(result) / 2 >= 2.0 ** bias else result
""", "Below zero you go down, too"),
    Wrong("half up, for negative numbers too", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    unit = 2.0 ** (power - mantissa_bits)
    result = math.floor(value / unit + 0.5) * unit
    return math.copysign(math.inf, value) if abs(result) / 2 >= 2.0 ** bias else result
""", "You send ties up, below zero"),
    Wrong("subnormals one power too deep", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, -bias)
    step = power - mantissa_bits
    result = math.ldexp(round(math.ldexp(value, -step)), step)
    return math.copysign(math.inf, value) if abs(result) / 2 >= 2.0 ** bias else result
""", "1 - bias is the end"),
    Wrong("inf one power too soon", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    step = power - mantissa_bits
    result = math.ldexp(round(math.ldexp(value, -step)), step)
    return math.copysign(math.inf, value) if abs(result) >= 2.0 ** bias else result
""", "That number the format still has"),
    Wrong("positive only", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = 1 - bias
    while value >= 2.0 ** (power + 1) and power <= bias:
        power += 1
    step = power - mantissa_bits
    result = math.ldexp(round(math.ldexp(value, -step)), step)
    return math.copysign(math.inf, value) if abs(result) / 2 >= 2.0 ** bias else result
""", "right for positive numbers"),
    Wrong("another error", "LossScale", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.scale = 2.0 ** initial_power
        self.window, self.hysteresis, self.min_scale = window, hysteresis, min_scale
        self.clean, self.forgiven = 0, hysteresis - 1
    def update(self, overflow):
        if not overflow:
            if self.clean > 0 and self.clean % self.window == 0:
                self.scale *= 2
                self.forgiven = self.hysteresis - 1
            self.clean += 1
        elif self.forgiven > 0:
            self.forgiven -= 1
            self.clean = 0
        elif self.scale == self.min_scale:
            raise ValueError("the smallest scale overflows")
        else:
            self.scale = max(self.scale / 2, self.min_scale)
            self.clean = 0
""", "and nothing else raises"),
    Wrong("always pads one more", "state_bytes", """
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
def state_bytes(numel, ranks, stage, recipe):
    first = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    total = 0
    for state, at in first.items():
        if state == "main_params" and recipe["main_params"] == recipe["params"]:
            continue
        total += BYTES[recipe[state]] * (numel // ranks + 1) * (1 if stage >= at else ranks)
    return total
""", "Where N divides the parameters"),
    Wrong("a whole fp32", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    whole = start.clone()
    main = whole.tensor_split(comm.size)[comm.rank]
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main -= rate * mean.float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main.clone()
""", "elements of the longest fp32 tensor"),
    Wrong("new main from params each step", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main = params.tensor_split(comm.size)[comm.rank].float() - rate * mean.float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "were made from the bf16 ones in a step"),
    Wrong("adds", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main.add_(mean, alpha=rate)
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "the step goes against them"),
    Wrong("maxima added up in fp16", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    most = torch.stack([shard.abs().max() if len(shard) else shard.new_zeros(()) for shard in shards]).max()
    return not comm.all_reduce(most).isfinite().item()
""", "A sum or a norm of many large numbers"),
    Wrong("only nan", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    for handle in handles:
        handle.wait()
    bad = torch.tensor([float(any(shard.isnan().any() for shard in shards))])
    return comm.all_reduce(bad).item() > 0
""", "Is inf an overflow for you"),
    Wrong("a view of the sum", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    part = total.tensor_split(comm.size)[comm.rank]
    comm.reduce_scatter(total, average=True, out=part)
    return part.div_(micro_batches).to(keep)
""", "are alive that it did not return"),
    Wrong("keeps all gradients", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params, main, all_of = start.bfloat16(), start.tensor_split(comm.size)[comm.rank].clone(), []
    for _ in range(steps):
        all_of.append(backward(params))
        mean = comm.reduce_scatter(all_of[-1], average=True)
        main.sub_(mean.float(), alpha=rate)
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "three rows of 16 bits are enough"),
    Wrong("rate in bf16", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params, main = start.bfloat16(), start.tensor_split(comm.size)[comm.rank].clone()
    rate = torch.tensor(rate, dtype=torch.bfloat16)
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main -= rate * mean.float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "what a rate gives that was rounded"),
    Wrong("divides each by the count in bf16", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = (next(gradients) / micro_batches).to(add)
    for gradient in gradients:
        total += gradient / micro_batches
    return comm.reduce_scatter(total, average=True).to(keep)
""", "divided in bf16, before they are added"),
    Wrong("counts the gradients it has seen less one", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    count = 0
    for gradient in gradients:
        total += gradient
        count += 1
    return (comm.reduce_scatter(total, average=True) / max(count, 1)).to(keep)
""", "one micro-batch too few"),
    Wrong("fp8 as two bytes", "state_bytes", """
def state_bytes(numel, ranks, stage, recipe):
    size = lambda kind: 4 if kind == "fp32" else 2
    shard = -(-numel // ranks)
    at = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    states = [s for s in recipe if s != "main_params" or recipe[s] != recipe["params"]]
    return sum(size(recipe[s]) * shard * (1 if stage >= at[s] else ranks) for s in states)
""", "fp8 has one byte"),
    Wrong("one copy is the shard", "state_bytes", """
def state_bytes(numel, ranks, stage, recipe):
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    shard = -(-numel // ranks)
    at = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    skip = "params" if recipe["params"] == recipe["main_params"] else ""
    return sum(size[recipe[s]] * shard * (1 if stage >= at[s] else ranks) for s in recipe if s != skip)
""", "The one copy is the parameters"),
]  # fmt: skip
