"""Wrong answers to lesson 06 that fail at an edge alone, or in a second call."""

from zoo.wrong import Wrong

ZOO = [
    Wrong("ldexp beyond the largest Python float", "nearest", """
import math
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    e = max(math.frexp(value)[1] - 1, 1 - bias)
    r = math.ldexp(round(math.ldexp(value, mantissa_bits - e)), e - mantissa_bits)
    return math.copysign(math.inf, value) if abs(r) >= 2.0 ** (bias + 1) else r
""", "math.ldexp and powers raise"),
    Wrong("remembers main parameters", "train_mixed", """
mains = {}
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    key = (comm.rank, comm.size, start.numel())
    main = mains.setdefault(key, start.tensor_split(comm.size)[comm.rank].clone())
    for _ in range(steps):
        main -= rate * comm.reduce_scatter(backward(params), average=True).float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "a second call changes what the first one gave"),
    Wrong("main parameters made anew after the first step", "train_mixed", """
def train_mixed(comm, start, backward, steps, rate):
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for number in range(steps):
        if number:
            main = params.tensor_split(comm.size)[comm.rank].float()
        main -= rate * comm.reduce_scatter(backward(params), average=True).float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
""", "in the second step"),
    Wrong("a power kept below the floor", "LossScale", """
import math
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.power, self.window, self.h, self.floor = initial_power, window, hysteresis, min_scale
        self.left, self.n = hysteresis - 1, 0
    @property
    def scale(self):
        return max(2.0**self.power, self.floor)
    def update(self, overflow):
        if overflow:
            if self.left:
                self.left -= 1
            elif self.scale == self.floor:
                raise OverflowError
            else:
                self.power -= 1
            self.n = 0
            return
        if self.n and self.n % self.window == 0:
            self.power += 1
            self.left = self.h - 1
        self.n += 1
""", "A doubling doubles the scale as it is"),
    Wrong("divides, converts, and sums up what is left", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    return comm.reduce_scatter((total / micro_batches).to(keep), average=True)
""", "a ring adds up in the dtype that it sends"),
    Wrong("all of the mean for everybody", "mean_gradient", """
def mean_gradient(comm, gradients, micro_batches, add, keep):
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    comm.all_reduce(total)
    return total.tensor_split(comm.size)[comm.rank].div(micro_batches * comm.size).to(keep)
""", "and reduce_scatter of"),
]  # fmt: skip
