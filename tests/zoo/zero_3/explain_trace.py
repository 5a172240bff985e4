"""Answers to `explain_trace` of lesson 05, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("dict of flags", """
def explain_trace(trace):
    state = {}
    away = {}
    counts = [0]
    for event, unit in trace:
        match event:
            case "gather":
                state[unit] = True
            case "release":
                state[unit] = False
            case "use":
                if not state.get(unit, False):
                    away[unit] = None
        counts.append(sum(state.values()))
    return max(counts), sorted(u for u in state if state[u]), sorted(away)
"""),
    Right("by unit", """
from itertools import accumulate
def explain_trace(trace):
    units = sorted({unit for _, unit in trace})
    present = {u: [] for u in units}
    absent = set()
    for u in units:
        here = False
        for event, unit in trace:
            if unit == u:
                here = event == "gather" or (here and event != "release")
                if event == "use" and not here:
                    absent.add(u)
            present[u].append(here)
    most = max((sum(column) for column in zip(*present.values())), default=0)
    return most, [u for u in units if present[u][-1]], [u for u in units if u in absent]
"""),
    Right("intervals", """
def explain_trace(trace):
    since, spans, away = {}, [], set()
    for at, (event, unit) in enumerate(trace):
        if event == "gather":
            since.setdefault(unit, at)
        if event == "release" and unit in since:
            spans.append((since.pop(unit), at))
        if event == "use" and unit not in since:
            away |= {unit}
    spans += [(start, len(trace)) for start in since.values()]
    most = max((sum(a <= at < b for a, b in spans) for at in range(len(trace))), default=0)
    return most, sorted(since), sorted(away)
"""),
    Right("reduce over frozen sets", """
from functools import reduce
from itertools import accumulate
def explain_trace(trace):
    def after(here, step):
        event, unit = step
        return here | {unit} if event == "gather" else here - {unit} if event == "release" else here
    states = list(accumulate(trace, after, initial=frozenset()))
    away = {unit for (event, unit), here in zip(trace, states) if event == "use" and unit not in here}
    return max(map(len, states)), sorted(states[-1]), sorted(away)
"""),
    Right("a dictionary of flags", """
class Watch:
    def __init__(self):
        self.here, self.most, self.away = {}, 0, []

    def gather(self, unit):
        self.here[unit] = True
        self.most = max(self.most, sum(self.here.values()))

    def release(self, unit):
        self.here[unit] = False

    def use(self, unit):
        if not self.here.get(unit, False) and unit not in self.away:
            self.away.append(unit)


def explain_trace(trace):
    watch = Watch()
    for event, unit in trace:
        getattr(watch, event)(unit)
    return watch.most, sorted(unit for unit, here in watch.here.items() if here), sorted(watch.away)
"""),
]  # fmt: skip
