"""Answers to `explain_trace` of lesson 05, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("05_zero_3", "explain_trace")
SUBTRACTS = """
def explain_trace(trace):
    here, away, count, most = set(), set(), 0, 0
    for event, unit in trace:
        if event == "gather":
            count += unit not in here
            here.add(unit)
        elif event == "release":
            count -= 1
            here.discard(unit)
        elif unit not in here:
            away.add(unit)
        most = max(most, count)
    return most, sorted(here), sorted(away)
"""

WRONG = [
    blank("explain_trace"),
    Wrong("the number alone",
          changed(MODEL, "most, sorted(here), sorted(away)", "most"),
          "a number and two lists"),
    Wrong("counts at the end",
          changed(MODEL, "return most", "return len(here)"),
          "the worst moment may lie before"),
    Wrong("counts events",
          changed(MODEL,
                  "        most = max(most, len(here))",
                  "    count = 0\n"
                  "    for event, _ in trace:\n"
                  "        count += (event == 'gather') - (event == 'release')\n"
                  "        most = max(most, count)"),
          "here or not, however often"),
    Wrong("counts all units",
          changed(MODEL, "return most", "return len({unit for _, unit in trace})"),
          "some are gone"),
    Wrong("never released at all",
          changed(MODEL,
                  "sorted(here)",
                  "sorted({u for e, u in trace if e == 'gather'} - {u for e, u in trace if e == 'release'})"),
          "gathered once more"),
    Wrong("used and never released",
          changed(MODEL,
                  "sorted(here)",
                  "sorted(here | {u for e, u in trace if e == 'use' and ('release', u) not in [tuple(t) for "
                  "t in trace]})"),
          "cannot be left over"),
    Wrong("unsorted",
          changed(MODEL, "sorted(here)", "sorted(here, reverse=True)"),
          "Name each once"),
    Wrong("each use",
          changed(MODEL, "sorted(away)", "[u for e, u in trace if e == 'use' and u in away]"),
          "however often it was used"),
    Wrong("keeps those that were gathered",
          changed(MODEL, "unit not in here", "('gather', unit) not in [tuple(t) for t in trace]"),
          "may have been released since"),
    Wrong("looks before the event",
          changed(changed(MODEL,
                          "in trace:\n",
                          "in trace:\n        most = max(most, len(here))\n"),
                  "(unit)\n        most = max(most, len(here))",
                  "(unit)"),
          "look after an event"),
    Wrong("a use brings a unit",
          changed(MODEL, "most = max", "    here.add(unit)\n        most = max"),
          "only a gather does"),
    Wrong("a default argument",
          changed(MODEL, "(trace):\n    here, away, most = set(),", "(trace, away=set()):\n    here, most ="),
          "stays from call to call"),
    Wrong("empties the trace",
          changed(MODEL, "return", "trace.clear()\n    return"),
          "overwrote"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("forgives a use before the gather",
          changed(MODEL, "elif event", "    away.discard(unit)\n        elif event"),
          "used while away, and it is ['a']"),
    Wrong("looks at uses", """
def explain_trace(trace):
    here, away, most = set(), set(), 0
    for event, unit in trace:
        if event == "gather":
            here.add(unit)
        elif event == "release":
            here.discard(unit)
        else:
            most = max(most, len(here))
            away |= {unit} - here
    return max(most, len(here)), sorted(here), sorted(away)
""", "need not be one in which something is used"),
    Wrong("sets without an order",
          changed(MODEL, "sorted(here), sorted", "list(here), list"),
          "in the order of the alphabet"),
    Wrong("subtracts what was away",
          SUBTRACTS,
          "so nothing is subtracted for it"),
    Wrong("as many releases as gathers", """
def explain_trace(trace):
    here, away, count, most = set(), set(), {}, 0
    for event, unit in trace:
        if event == "use" and unit not in here:
            away.add(unit)
        count[unit] = count.get(unit, 0) + (event == "gather") - (event == "release")
        here = here | {unit} if event == "gather" else here - {unit} if event == "release" else here
        most = max(most, len(here))
    return most, sorted(unit for unit in count if count[unit] > 0), sorted(away)
""", "one release sends it away"),
    # Passed once, or their hints spoke of another fault.
    Wrong("counts gathers",
          changed(changed(SUBTRACTS, "unit not in here\n", "1\n"), "count -= 1", "count -= unit in here"),
          "so nothing is added for it"),
    Wrong("begins at one",
          changed(MODEL, "set(), 0", "set(), 1"),
          "begin at 0"),
]  # fmt: skip

RIGHT = [
    Right("sets", """
def explain_trace(trace):
    here, most, bad = set(), 0, set()
    for event, unit in trace:
        if event == "gather":
            here.add(unit)
            most = max(most, len(here))
        elif event == "release":
            here.discard(unit)
        elif unit not in here:
            bad.add(unit)
    return most, sorted(here), sorted(bad)
"""),
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
    Right("reduce of frozensets", """
from functools import reduce
def explain_trace(trace):
    def step(state, entry):
        here, most, away = state
        event, unit = entry
        if event == "gather":
            here = here | {unit}
        if event == "release":
            here = here - {unit}
        if event == "use" and unit not in here:
            away = away | {unit}
        return here, max(most, len(here)), away
    here, most, away = reduce(step, trace, (frozenset(), 0, frozenset()))
    return most, sorted(here), sorted(away)
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
    # Written from the text alone.
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
