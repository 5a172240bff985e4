"""Right answers to lesson 06 that have to hold at its edges."""

from zoo.right.answer import Right

RIGHT = [
    Right("whole numbers and shifts", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    n, d = abs(value).as_integer_ratio()
    # multiply by 2^k so that the result is in units of the subnormal step
    n <<= bias - 1 + mantissa_bits if bias - 1 + mantissa_bits > 0 else 0
    q, r = divmod(n, d)
    drop = max(q.bit_length() - (mantissa_bits + 1), 0)
    low = q & ((1 << drop) - 1)
    kept = q >> drop
    if drop:
        half = 1 << (drop - 1)
        up = low > half or (low == half and (r or kept & 1))
    else:
        up = 2 * r > d or (2 * r == d and kept & 1)
    kept = (kept + bool(up)) << drop
    if kept >= 1 << (bias + 1 + bias - 1 + mantissa_bits):
        size = float("inf")
    else:
        size = kept / (1 << (bias - 1 + mantissa_bits))
    return size if value >= 0 else -size
"""),
    Right("torch in double precision", "nearest", """
import torch
def nearest(value, exponent_bits, mantissa_bits):
    x = torch.tensor(value, dtype=torch.float64)
    bias = 2 ** (exponent_bits - 1) - 1
    e = torch.frexp(x).exponent.clamp(min=2 - bias).item() - 1
    step = torch.tensor(2.0, dtype=torch.float64) ** (e - mantissa_bits)
    r = (x / step).round() * step
    return torch.where(r.abs() >= 2.0 ** (bias + 1), r.sign() * torch.inf, r).item()
"""),
    Right("reduces into the gradient, casts into the row", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    mine = params.tensor_split(comm.size)[comm.rank]
    main = torch.empty_like(mine, dtype=torch.float32)
    main.copy_(start.tensor_split(comm.size)[comm.rank])
    while steps > 0:
        grad = backward(params)
        part = grad.tensor_split(comm.size)[comm.rank]
        comm.reduce_scatter(grad, average=True, out=part)
        main -= part.to(torch.float32).mul_(rate)
        mine.copy_(main)
        comm.all_gather(mine, out=params)
        del grad, part
        steps -= 1
    return params, main
"""),
    Right("recursion, gathers in advance", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    main = start.tensor_split(comm.size)[comm.rank] * 1.0
    params = torch.empty(start.shape, dtype=torch.bfloat16)
    def go(left):
        comm.all_gather(main.bfloat16(), out=params)
        if left:
            step = comm.reduce_scatter(backward(params)).div_(comm.size).float()
            main.add_(step.mul_(-rate))
            go(left - 1)
    params.copy_(start)
    if steps:
        step = comm.reduce_scatter(backward(params)).div_(comm.size).float()
        main.add_(step.mul_(-rate))
        go(steps - 1)
    return params, main
"""),
    Right("plays the past again", "LossScale", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self._rule = initial_power, window, hysteresis, min_scale
        self._past = []
        self.scale = self._play(())
    def _play(self, past):
        power, window, hysteresis, floor = self._rule
        scale, number, used = 2.0**power, -1, 0
        for overflow in past:
            if overflow:
                if used == hysteresis - 1:
                    if scale <= floor:
                        raise OverflowError
                    scale = max(floor, scale * 0.5)
                else:
                    used += 1
                number = -1
            else:
                number += 1
                if number > 0 and number % window == 0:
                    scale += scale
                    used = 0
        return scale
    def update(self, overflow):
        self.scale = self._play([*self._past, overflow])
        self._past.append(overflow)
"""),
    Right("reduces in place, clones", "mean_gradient", """
import itertools
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).type(add)
    for gradient in itertools.islice(gradients, micro_batches - 1):
        torch.add(total, gradient, out=total)
    part = total.tensor_split(comm.size)[comm.rank]
    comm.reduce_scatter_async(total, average=True, out=part).wait()
    return part.div(micro_batches).to(keep).clone()
"""),
    Right("a sum of zeros, and out=", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = None
    for gradient in gradients:
        if total is None:
            total = torch.zeros(gradient.numel(), dtype=add)
        total.add_(gradient)
    mine = total.tensor_split(comm.size)[comm.rank]
    shard = torch.empty_like(mine)
    comm.reduce_scatter(total, out=shard)
    result = torch.empty_like(shard, dtype=keep)
    return result.copy_(shard.true_divide(micro_batches * comm.size))
"""),
]  # fmt: skip
