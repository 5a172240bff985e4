"""Right answers of lesson 06 in yet other styles."""

from zoo.right.answer import Right

RIGHT = [
    Right("bisection over codes", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = (1 << (exponent_bits - 1)) - 1
    per_power = 1 << mantissa_bits
    def number(code):
        exponent, mantissa = divmod(code, per_power)
        if exponent == 0:
            return math.ldexp(mantissa, 1 - bias - mantissa_bits)
        return math.ldexp(per_power + mantissa, exponent - bias - mantissa_bits)
    size = abs(value)
    end = per_power * (2 * bias + 1)
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        if number(middle) <= size:
            low = middle
        else:
            high = middle
    top = math.ldexp(1.0, bias + 1) if bias < 1023 else math.inf
    above = top if high == end else number(high)
    from fractions import Fraction
    down, up = Fraction(size) - Fraction(number(low)), Fraction(above) - Fraction(size)
    if up < down or (up == down and low % 2):
        low = high
    save = math.inf if low == end else number(low)
    return -save if value < 0 else save
"""),
    Right("Decimal remainder_near, prints", "nearest", """
from decimal import Decimal, getcontext
def nearest(value, exponent_bits, mantissa_bits):
    getcontext().prec = 1500
    bias = 2 ** (exponent_bits - 1) - 1
    load = Decimal(value)
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    unit = Decimal(2) ** (power - mantissa_bits)
    result = load - load.remainder_near(unit)
    print(value, "->", result)
    if abs(result) >= Decimal(2) ** (bias + 1):
        return math.inf if load > 0 else -math.inf
    return float(result)
"""),
    Right("the format string", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    step = 2.0 ** (power - mantissa_bits)
    size = float(f"{abs(value) / step:.0f}") * step
    return math.copysign(size if size < 2.0 ** (bias + 1) else math.inf, value)
"""),
    Right("views of a big bf16 row, methods save and load", "train_mixed", """
class Shard:
    def __init__(self, comm, start):
        self.row = torch.empty(start.numel(), dtype=torch.bfloat16)
        self.row[:] = start
        self.view = self.row.tensor_split(comm.size)[comm.rank]
        self.master = start.tensor_split(comm.size)[comm.rank].detach().clone()
    def load(self, mean, rate):
        self.master.add_(mean.to(self.master.dtype) * -rate)
    def save(self, comm):
        self.view.copy_(self.master)
        comm.all_gather(self.view, out=self.row)
def train_mixed(comm, start, backward, steps, rate):
    shard = Shard(comm, start)
    for step in range(steps):
        shard.load(comm.reduce_scatter(backward(shard.row), average=True), rate)
        shard.save(comm)
    return (shard.row, shard.master)
"""),
    Right("asynchronous, a list comes back", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = torch.zeros(start.shape, dtype=torch.bfloat16).copy_(start)
    bounds = [0]
    for part in start.tensor_split(comm.size):
        bounds.append(bounds[-1] + len(part))
    main = start[bounds[comm.rank] : bounds[comm.rank + 1]].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter_async(backward(params), average=True).wait()
        main = torch.add(main, mean.float(), alpha=-rate)
        params = comm.all_gather_async(main.bfloat16(), start.numel()).wait()
    return params, main
"""),
    Right("set_", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params, main = start.bfloat16(), start.tensor_split(comm.size)[comm.rank].clone()
    remaining = iter(range(steps))
    while next(remaining, None) is not None:
        mean = comm.reduce_scatter(backward(params), average=True)
        with torch.no_grad():
            main.subtract_(torch.mul(mean.float(), rate))
        params.set_(comm.all_gather(main.bfloat16(), params.numel()))
    return params, main
"""),
    Right("map and amax of flags", "agreed_overflow", """
import logging
def agreed_overflow(comm, shards, handles):
    list(map(lambda handle: handle.wait(), handles))
    flags = torch.tensor([float(sum(int(x.numel() - x.isfinite().sum()) for x in shards))], dtype=torch.float64)
    everybody = comm.all_gather(flags.clamp(max=1), comm.size)
    logging.getLogger("overflow").debug("votes %s", everybody)
    return everybody.amax().item() == 1.0
"""),
    Right("named differently, enum of events", "LossScale", """
from enum import Enum
class Event(Enum):
    CLEAN, OVERFLOW = range(2)
class LossScale:
    def __init__(self, power, every, patience, floor):
        self.scale = 1.0
        for _ in range(power):
            self.scale += self.scale
        self.every, self.patience, self.floor = every, patience, floor
        self.number, self.overflows = 0, 0
    def update(self, flag):
        {Event.CLEAN: self.clean, Event.OVERFLOW: self.burst}[Event(int(flag))]()
    def clean(self):
        if self.number >= self.every and not self.number % self.every:
            self.scale, self.overflows = self.scale * 2.0, 0
        self.number += 1
    def burst(self):
        forgiven = self.overflows < self.patience - 1
        lower = self.scale if forgiven else max(self.floor, self.scale * 0.5)
        if not forgiven and self.scale == self.floor:
            raise OverflowError(f"{self.scale} is the floor")
        self.scale, self.number, self.overflows = lower, 0, self.overflows + 1
"""),
    Right("walrus and default", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).type(add)
    while (gradient := next(gradients, None)) is not None:
        torch.Tensor.add_(total, gradient)
    own = comm.reduce_scatter(total)
    own.mul_(1.0 / (comm.size * micro_batches))
    return own if own.dtype == keep else own.to(keep)
"""),
    Right("a buffer and copy_", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    buffer = None
    for number in range(1, micro_batches + 1):
        gradient = next(gradients)
        if buffer is None:
            buffer = torch.empty(gradient.shape, dtype=add)
            buffer.copy_(gradient)
        else:
            buffer += gradient
    out = torch.empty(len(buffer.tensor_split(comm.size)[comm.rank]), dtype=add)
    comm.reduce_scatter_async(buffer, average=True, out=out).wait()
    result = torch.empty(out.shape, dtype=keep)
    torch.div(out, micro_batches, out=out)
    return result.copy_(out)
"""),
    Right("each divided by its share in fp32 sums", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total.add_(gradient)
    total /= micro_batches
    return comm.reduce_scatter(total, average=True).to(keep)
"""),
    Right("functions for each part, getattr", "mended_step", """
def whole_norm(comm, part):
    squares = part.double().square().sum().reshape(1)
    comm.all_reduce(squares)
    return math.sqrt(squares.item()) if math.isfinite(squares.item()) else math.inf
def mended_step(comm, params, main, gradient, scale, limit, rate):
    part = comm.reduce_scatter(gradient, average=True).to(main.dtype).mul(1.0 / scale)
    if (norm := whole_norm(comm, part)) == math.inf:
        return False
    getattr(main, "sub_")(part, alpha=rate if norm <= limit else rate * limit / norm)
    for rank, piece in enumerate(params.tensor_split(comm.size)):
        if rank == comm.rank:
            piece.copy_(main)
            comm.all_gather(piece, out=params)
    return True
"""),
    Right("two collectives in one, foreach", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    shard = comm.reduce_scatter(gradient, average=True).float()
    shard.div_(scale)
    sums = comm.all_gather(shard.square().sum().view(1), comm.size)
    if sums.isinf().any() or sums.isnan().any():
        return False
    norm = float(sums.sum().sqrt())
    factor = 1.0
    if norm > limit:
        factor = limit / norm
    torch._foreach_add_([main], [shard], alpha=-rate * factor)
    params[:] = comm.all_gather(main.half(), params.numel())
    return True
"""),
    Right("torch's own clipping of a parameter", "mended_step", """
def mended_step(comm, params, main, gradient, scale, limit, rate):
    shard = comm.reduce_scatter(gradient, average=True).float() * (1 / scale)
    everything = comm.all_gather(shard, gradient.numel())
    if not bool(everything.isfinite().all()):
        return False
    norm = everything.norm()
    if norm > limit:
        shard = shard * (limit / norm)
    main.data -= rate * shard
    comm.all_gather(main.to(torch.float16), out=params)
    return True
"""),
    Right("a frozen dataclass", "state_bytes", """
from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    width: int
    cut_at: int

    def nbytes(self, numel, ranks, stage):
        each = math.ceil(numel / ranks)
        return self.width * (each if stage >= self.cut_at else each * ranks)


def state_bytes(numel, ranks, stage, recipe):
    width = lambda state: int(recipe[state][2:]) // 8
    states = [
        State(width("params"), 3),
        State(width("main_grads"), 2),
        State(width("exp_avg"), 1),
        State(width("exp_avg_sq"), 1),
    ]
    if recipe["params"] != recipe["main_params"]:
        states += [State(width("main_params"), 1)]
    return sum(state.nbytes(numel, ranks, stage) for state in states)
"""),
    Right("recursion over the buckets", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    def bad(index):
        if index == len(handles):
            return 0
        handles[index].wait()
        here = torch.nan_to_num(shards[index].float(), nan=math.inf, posinf=math.inf).abs().ge(1e30).any().item()
        return int(here) | bad(index + 1)
    vote = torch.zeros(1, dtype=torch.int64)
    vote[0] = bad(0)
    comm.all_reduce(vote)
    return True if vote[0] > 0 else False
"""),
    Right("waits for the last, which ends last", "agreed_overflow", """
def agreed_overflow(comm, shards, handles):
    handles[-1].wait()
    bad = torch.cat(shards).isfinite().logical_not().any()
    return bool(comm.all_gather(bad.float().view(1)).any())
"""),
]  # fmt: skip
