"""Answers to `where_time_goes` of lesson 09, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("09_cost_and_scale", "where_time_goes")

RIGHT = [
    Right("torch, matrices of overlaps", """
def where_time_goes(trace, latency):
    def table(spans, kind):
        rows = [span[1:] for span in spans if span[0] == kind]
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).T

    def overlaps(start, stop, computes):
        both = torch.minimum(stop[:, None], computes[1]) - torch.maximum(start[:, None], computes[0])
        return both.clamp(min=0).sum(1)

    calls = [table(spans, "collective") for spans in trace]
    joined = torch.stack([call[0] for call in calls]).max(0).values
    parts = torch.zeros(5, dtype=torch.float64)
    for spans, (start, stop, messages) in zip(trace, calls):
        computes = table(spans, "compute")
        hidden = overlaps(joined, stop, computes)
        wire = stop - joined
        waiting = joined - start - overlaps(start, joined, computes)
        share = (messages * latency / wire.clamp(min=1e-9)).clamp(max=1)
        parts += torch.stack([(computes[1] - computes[0]).sum(), hidden.sum(), (wire - hidden).sum(), waiting.sum(),
                              ((wire - hidden) * share).sum()])
    computing, hidden, exposed, waiting, late = parts.tolist()
    if exposed + waiting < (computing + exposed + waiting) / 10:
        return computing, hidden, exposed, waiting, "none"
    return computing, hidden, exposed, waiting, max([
        (waiting, "straggler"), (late, "latency"), (exposed - late, "bandwidth")])[1]
"""),
    Right("nanosecond by nanosecond sets, in thousands", """
import bisect


def where_time_goes(trace, latency):
    names = ("computing", "hidden", "exposed", "waiting")
    sums = dict.fromkeys(names, 0)
    costs = {"bandwidth": 0.0, "latency": 0.0}
    nth = [[s for s in spans if s[3] or s[0] == "collective"] for spans in trace]
    for rank, spans in enumerate(trace):
        edges, before = [0], [0]
        for kind, start, stop, _ in spans:
            if kind == "compute":
                edges += [start, stop]
                before += [before[-1], before[-1] + stop - start]
        sums["computing"] += before[-1]

        def computed(time):
            at = bisect.bisect_right(edges, time) - 1
            running = at % 2 == 1
            return before[at] + (time - edges[at] if running else 0)

        for k, (_, start, stop, messages) in enumerate(nth[rank]):
            middle = max(other[k][1] for other in nth)
            hidden = computed(stop) - computed(middle)
            bare = (stop - middle) - hidden
            sums["hidden"] += hidden
            sums["exposed"] += bare
            sums["waiting"] += (middle - start) - (computed(middle) - computed(start))
            if bare:
                part = min(bare, bare * messages * latency / (stop - middle))
                costs["latency"] += part
                costs["bandwidth"] += bare - part
    costs["straggler"] = sums["waiting"]
    lost = sums["exposed"] + sums["waiting"]
    ranked = sorted(costs, key=costs.__getitem__)
    return tuple(sums[name] for name in names) + ("none" if lost / (lost + sums["computing"]) < 0.1 else ranked[-1],)
"""),
    Right("NumPy, between all borders", """
import numpy as np


def where_time_goes(trace, latency):
    borders = np.unique([0] + [time for spans in trace for span in spans for time in span[1:3]])
    width, middle = np.diff(borders), (borders[1:] + borders[:-1]) / 2
    calls = [[span for span in spans if span[0] == "collective"] for spans in trace]
    sums, late = np.zeros(4, dtype=np.int64), 0.0
    for spans, mine in zip(trace, calls):
        busy = np.zeros(len(middle), dtype=bool)
        for kind, start, stop, _ in spans:
            busy |= (kind == "compute") & (start < middle) & (middle < stop)
        sums[0] += width[busy].sum()
        for k, (_, start, stop, messages) in enumerate(mine):
            joined = max(those[k][1] for those in calls)
            wire = (joined < middle) & (middle < stop)
            bare = width[wire & ~busy].sum()
            sums[1:] += width[wire & busy].sum(), bare, width[(start < middle) & (middle < joined) & ~busy].sum()
            late += bare * min(1, messages * latency / max(stop - joined, 1))
    computing, hidden, exposed, waiting = sums
    worst = int(np.argmax([waiting, late, exposed - late]))
    small = (exposed + waiting) / (computing + exposed + waiting) < 0.1
    return computing, hidden, exposed, waiting, "none" if small else ["straggler", "latency", "bandwidth"][worst]
"""),
    Right("exact fractions of a span", "from fractions import Fraction\n"
          + changed(MODEL, "min(1, messages * latency / (stop - middle))",
                    "Fraction(min(stop - middle, messages * latency), stop - middle)")),
]  # fmt: skip
