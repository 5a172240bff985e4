"""Answers to `fit_link` of lesson 09, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("09_cost_and_scale", "fit_link")

WRONG = [
    blank("fit_link"),
    Wrong("an all-reduce of one round",
          changed(MODEL, '"all_reduce": 2', '"all_reduce": 1'),
          "two rounds of N-1 steps"),
    Wrong("a round is a step",
          changed(MODEL, "(rounds[name] * (ranks - 1))", "rounds[name]"),
          "You take one step for a round"),
    Wrong("N steps",
          changed(MODEL, "(ranks - 1)", "ranks"),
          "You take N steps for a round"),
    Wrong("two rounds for all",
          changed(MODEL, '{"reduce_scatter": 1, "all_gather": 1,', '{"reduce_scatter": 2, "all_gather": 2,'),
          "Two rounds are for an all-reduce alone"),
    Wrong("the latency once", """
def fit_link(samples):
    rounds = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}
    points = [(rounds[name] * (n - 1) * size / n, seconds) for name, n, size, seconds in samples if n > 1]
    (x1, y1), (x2, y2) = min(points), max(points)
    slope = (y2 - y1) / (x2 - x1)
    return y1 - slope * x1, 1 / slope
""", "you have it once in a collective"),
    Wrong("the whole in each step",
          changed(MODEL, "(nbytes / ranks,", "(nbytes,"),
          "an N-th of the bytes travels"),
    Wrong("bytes through seconds",
          changed(changed(MODEL, "(nbytes / ranks,", "(nbytes,"), "(rounds[name] * (ranks - 1))", "1"),
          "bytes of the whole through seconds"),
    Wrong("bits of bytes",
          changed(MODEL, "(nbytes / ranks,", "(8 * nbytes / ranks,"),
          "Those are bits a second"),
    Wrong("bytes taken for bits",
          changed(MODEL, "(nbytes / ranks,", "(nbytes / 8 / ranks,"),
          "You took the bytes for bits"),
    Wrong("the wrong way round",
          changed(MODEL, "return quick - short / bandwidth, bandwidth", "return bandwidth, quick - short / bandwidth"),
          "The latency comes first"),
    Wrong("seconds a byte",
          changed(MODEL, "/ bandwidth, bandwidth", "/ bandwidth, 1 / bandwidth"),
          "bytes a second are asked for"),
    Wrong("microseconds",
          changed(MODEL, "return quick - short / bandwidth", "return 1e6 * (quick - short / bandwidth)"),
          "asked for in seconds"),
    Wrong("gigabits",
          changed(MODEL, "/ bandwidth, bandwidth", "/ bandwidth, 8e-9 * bandwidth"),
          "Gbit/s are for people"),
    Wrong("the bus bandwidth of the longest", """
def fit_link(samples):
    rounds = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}
    best = max(rounds[name] * (n - 1) / n * size / seconds for name, n, size, seconds in samples if n > 1)
    least = min(seconds / rounds[name] / (n - 1) - size / n / best for name, n, size, seconds in samples if n > 1)
    return least, best
""", "That is the bus bandwidth"),
    Wrong("no latency taken out",
          changed(MODEL, "return quick - short / bandwidth,", "return quick,"),
          "take its part out of a step's seconds"),
    Wrong("one rank counts as two",
          changed(changed(MODEL, "(ranks - 1)", "max(ranks - 1, 1)"), "if ranks > 1", "if True"),
          "leave its samples out"),
    Wrong("one rank counts as two, least squares", """
def fit_link(samples):
    rounds = {"reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}
    points = [(size / n, seconds / (rounds[name] * max(n - 1, 1))) for name, n, size, seconds in samples]
    mx = sum(x for x, _ in points) / len(points)
    my = sum(y for _, y in points) / len(points)
    slope = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
    return my - slope * mx, 1 / slope
""", "say nothing of the link: leave them out"),
    Wrong("the first two alone",
          changed(MODEL, "min(steps), max(steps)", "steps[0], steps[1]"),
          "raised ZeroDivisionError"),
    Wrong("one rank is not left out",
          changed(MODEL, "if ranks > 1", "if True"),
          "of them of one rank: rank 0 raised ZeroDivisionError"),
    Wrong("only the bandwidth",
          changed(MODEL, "return quick - short / bandwidth, bandwidth", "return bandwidth"),
          "two numbers are due"),
    Wrong("the list is sorted in place",
          changed(MODEL, '    rounds = {"', '    samples.sort(key=lambda sample: sample[2])\n    rounds = {"'),
          "it overwrote rank 0's input"),
]  # fmt: skip

RIGHT = [
    Right("least squares by hand", """
def fit_link(samples):
    x, y = [], []
    for name, ranks, nbytes, seconds in samples:
        if ranks == 1:
            continue
        steps = (ranks - 1) * (2 if name == "all_reduce" else 1)
        x.append(nbytes / ranks)
        y.append(seconds / steps)
    n = len(x)
    slope = (n * sum(a * b for a, b in zip(x, y)) - sum(x) * sum(y)) / (n * sum(a * a for a in x) - sum(x) ** 2)
    return (sum(y) - slope * sum(x)) / n, 1 / slope
"""),
    Right("torch.linalg.lstsq on steps and bytes that travel", """
def fit_link(samples):
    rows, times = [], []
    for name, ranks, nbytes, seconds in samples:
        steps = {"all_reduce": 2}.get(name, 1) * (ranks - 1)
        rows.append([steps, steps * nbytes / ranks])
        times.append([seconds])
    rows = torch.tensor(rows, dtype=torch.float64)
    scale = rows.max(0).values
    found = torch.linalg.lstsq(rows / scale, torch.tensor(times, dtype=torch.float64)).solution.flatten() / scale
    return found[0].item(), 1 / found[1].item()
"""),
    Right("fractions and two equations", """
from fractions import Fraction


def fit_link(samples):
    steps = {}
    for name, ranks, nbytes, seconds in samples:
        if ranks > 1:
            count = (ranks - 1) * (1 + (name == "all_reduce"))
            steps[Fraction(nbytes, ranks)] = Fraction(seconds) / count
    (x, y), (z, w), *_ = sorted(steps.items(), reverse=True)
    per_byte = (y - w) / (x - z)
    return float(w - z * per_byte), float(1 / per_byte)
"""),
    Right("statistics.linear_regression", """
from statistics import linear_regression


def fit_link(samples):
    real = [sample for sample in samples if sample[1] != 1]
    seconds = [t / (n - 1) / (2 if name == "all_reduce" else 1) for name, n, _, t in real]
    line = linear_regression([size / n for _, n, size, _ in real], seconds)
    return [line.intercept, 1.0 / line.slope]
"""),
    Right("a tensor of two", """
def fit_link(samples):
    table = torch.tensor([[b / n, s / (n - 1) / (1 + (k == "all_reduce"))] for k, n, b, s in samples if n > 1],
                         dtype=torch.double)
    low, high = table[table[:, 0].argmin()], table[table[:, 0].argmax()]
    slope = (high[1] - low[1]) / (high[0] - low[0])
    return torch.stack([low[1] - slope * low[0], 1 / slope])
"""),
    Right("Cramer's rule on the first two that differ", """
def fit_link(samples):
    rounds = dict(reduce_scatter=1, all_gather=1, all_reduce=2)
    rows = [(rounds[k] * (n - 1), rounds[k] * (n - 1) * b / n, s) for k, n, b, s in samples if n > 1]
    a, b, s = rows[0]
    for c, d, t in rows[1:]:
        det = a * d - b * c
        if abs(det) > 1e-9 * abs(a * d):
            return (s * d - b * t) / det, det / (a * t - s * c)
"""),
    Right("an array of NumPy", """
import numpy as np


def fit_link(samples):
    kept = [sample for sample in samples if sample[1] > 1]
    steps = np.array([(2.0 if name == "all_reduce" else 1.0) * (ranks - 1) for name, ranks, _, _ in kept])
    x = np.array([nbytes / ranks for _, ranks, nbytes, _ in kept])
    y = np.array([seconds for *_, seconds in kept]) / steps
    slope, latency = np.polyfit(x, y, 1)
    return np.array([latency, 1 / slope])
"""),
]  # fmt: skip
