"""Right answers of lesson 06 in yet more styles."""

from zoo.right.answer import Right

RIGHT = [
    Right("ldexp", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = max(math.frexp(value)[1] - 1, 1 - bias) if value else 1 - bias
    if exponent > bias:
        return math.copysign(math.inf, value)
    steps = round(math.ldexp(value, mantissa_bits - exponent))
    if abs(steps) >= 1 << (bias + 1 - exponent + mantissa_bits):
        return math.inf if value > 0 else -math.inf
    return math.ldexp(steps, exponent - mantissa_bits)
"""),
    Right("fractions", "nearest", """
from fractions import Fraction
def nearest(value, exponent_bits, mantissa_bits):
    if value == 0:
        return 0.0
    bias, size = 2 ** (exponent_bits - 1) - 1, abs(Fraction(value))
    power = 1 - bias
    while Fraction(2) ** (power + 1) <= size and power < 1100:
        power += 1
    step = Fraction(2) ** (power - mantissa_bits)
    found = round(size / step) * step
    found = math.inf if found >= Fraction(2) ** (bias + 1) else float(found)
    return found if value > 0 else -found
"""),
    Right("torch in fp64", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    x = torch.tensor(value, dtype=torch.float64)
    power = max(int(torch.frexp(x).exponent) - 1, 1 - bias)
    quantum = 2.0 ** (power - mantissa_bits)
    y = torch.round(x / quantum) * quantum
    return math.copysign(math.inf, value) if abs(y.item()) > (2 - 2.0 ** -mantissa_bits) * 2.0 ** bias else y.item()
"""),
    Right("sub with alpha", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.to(torch.bfloat16)
    main = start.tensor_split(comm.size)[comm.rank].clone()
    while steps:
        steps -= 1
        main.sub_(comm.reduce_scatter(backward(params), average=True), alpha=rate)
        params = comm.all_gather(main.to(torch.bfloat16), numel=start.numel())
    return params, main
"""),
    Right("cast into a view of the row", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = torch.empty_like(start, dtype=torch.bfloat16).copy_(start)
    own = params.tensor_split(comm.size)[comm.rank]
    main = start.tensor_split(comm.size)[comm.rank].clone(memory_format=torch.contiguous_format)
    for _ in range(steps):
        g = backward(params)
        main -= comm.reduce_scatter(g, average=True).to(torch.float32).mul_(rate)
        own.copy_(main)
        comm.all_gather(own, out=params)
    return params, main
"""),
    Right("any stops early", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    bad = any(not handle.wait().isfinite().all() for handle in handles)
    return comm.all_reduce(torch.tensor(int(bad))).item() != 0
"""),
    Right("zero times", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    vote = torch.zeros(1)
    for handle, shard in zip(handles, shards):
        handle.wait()
        vote += (shard * 0).sum().float()
    return bool(comm.all_reduce(vote).isnan())
"""),
    Right("differences with itself", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    for h in reversed(handles):
        h.wait()
    mine = sum(int((s - s != 0).sum()) for s in shards)
    return max(comm.all_gather(torch.tensor([mine]), comm.size).tolist()) > 0
"""),
    Right("property and a tuple", "LossScale", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self._fixed = window, hysteresis, min_scale
        self._state = (2.0 ** initial_power, 0, hysteresis)
    @property
    def scale(self):
        return self._state[0]
    def update(self, overflow):
        window, hysteresis, least = self._fixed
        scale, clean, left = self._state
        if overflow and left > 1:
            self._state = (scale, 0, left - 1)
        elif overflow:
            if scale == least:
                raise OverflowError(f"at {least}")
            self._state = (max(scale / 2, least), 0, left)
        elif clean > 0 and clean % window == 0:
            self._state = (scale * 2, clean + 1, hysteresis)
        else:
            self._state = (scale, clean + 1, left)
"""),
    Right("divides before it reduces", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = None
    for g in gradients:
        total = g.to(add) if total is None else total.add_(g)
    return comm.reduce_scatter(total.div_(micro_batches), average=True).to(keep)
"""),
    Right("zeros to begin with", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    first = next(gradients)
    total = torch.zeros_like(first, dtype=add)
    total += first
    del first
    for _ in range(micro_batches - 1):
        total += next(gradients)
    return comm.reduce_scatter(total).div_(comm.size * micro_batches).to(keep)
"""),
    Right("in fp32, Python floats", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient.float() / scale, average=True)
    squares = comm.all_reduce(mean.double().pow(2).sum()).item()
    if not math.isfinite(squares):
        return False
    norm = math.sqrt(squares)
    main.sub_(mean, alpha=rate * (limit / norm if norm > limit else 1.0))
    comm.all_gather(main.to(params.dtype), params.numel(), params)
    return True
"""),
    Right("a vote, then vector_norm", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    mean = comm.reduce_scatter(gradient, average=True).to(torch.float32)
    bad = torch.zeros(1) if mean.isfinite().all() else torch.ones(1)
    if comm.all_reduce(bad).sum() > 0:
        return False
    mean /= scale
    own = torch.linalg.vector_norm(mean).view(1)
    norm = torch.linalg.vector_norm(comm.all_gather(own, comm.size)).item()
    if norm > limit:
        mean *= limit / norm
    main.add_(mean, alpha=-rate)
    params.copy_(comm.all_gather(main.half(), params.numel()))
    return True
"""),
    Right("itemsize", "state_bytes", """
def state_bytes(numel, ranks, stage, recipe):
    sizes = dict(fp32=torch.float32.itemsize, bf16=torch.bfloat16.itemsize, fp16=torch.half.itemsize, fp8=1)
    padded = numel + -numel % ranks
    total = 0
    for first, names in ((3, ["params"]), (2, ["main_grads"]), (1, ["main_params", "exp_avg", "exp_avg_sq"])):
        for name in names:
            if name == "main_params" and recipe[name] == recipe["params"]:
                continue
            total += sizes[recipe[name]] * (padded // ranks if stage >= first else padded)
    return total
"""),
]  # fmt: skip
