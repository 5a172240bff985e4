"""Wrong answers to the exercises of lesson 00."""

from zoo.wrong import Wrong, changed

STATES = """
def state_bytes(parameters, ranks, stage, recipe):
    shard = -(-parameters // ranks)
    return {
        "parameters": recipe[0] * (shard if stage >= 3 else parameters),
        "gradients": recipe[1] * (shard if stage >= 2 else parameters),
        "optimizer_states": recipe[2] * (shard if stage >= 1 else parameters),
    }
"""
CHOOSE = """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    for stage in range(4):
        if sum(state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes:
            return stage
    return None
"""
MOST = """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    fits, too_many = 0, gpu_bytes * ranks + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if sum(state_bytes(middle, ranks, stage, recipe).values()) <= gpu_bytes:
            fits = middle
        else:
            too_many = middle
    return fits
"""
PEAK = """
def name_the_peak(samples):
    totals = [sum(sample.values()) for sample in samples]
    at = totals.index(max(totals))
    return at, max(samples[at], key=samples[at].get)
"""
FEWEST = """
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    left = sum(recipe) - factor * whole
    if left <= 0:
        return None
    return math.ceil(factor * shared / left)
"""
COUNT = """
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    for ranks in range(1, {bound} + 1):
        if (whole + shared) * ranks >= factor * (whole * ranks + shared):
            return ranks
    return None
"""
ENDLESS = """
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if not shared or factor * whole >= whole + shared:
        return None
    ranks = 1
    while OURS < THEIRS:
        ranks += 1
    return ranks
"""


def blank(exercise: str) -> Wrong:
    return Wrong("blank", exercise, f"def {exercise}(*args):\n    raise NotImplementedError()", "not written yet")


ZOO = [
    blank("state_bytes"),
    Wrong("all of it at every stage", "state_bytes",
          changed(STATES, "-(-parameters // ranks)", "parameters"),
          "from which stage on are optimizer_states shared out?"),
    Wrong("a stage late", "state_bytes", changed(STATES, "stage >= 3", "stage > 3"),
          "from which stage on are parameters shared out?"),
    Wrong("gradients with the optimizer", "state_bytes", changed(STATES, "stage >= 2", "stage >= 1"),
          "At stage 1 gradients are not shared out yet"),
    Wrong("all shared at once", "state_bytes",
          changed(changed(STATES, "stage >= 2", "stage"), "stage >= 3", "stage"),
          "At stage 1 parameters are not shared out yet"),
    Wrong("drops the remainder", "state_bytes", changed(STATES, "-(-parameters // ranks)", "parameters // ranks"),
          "That is the smallest rank's"),
    Wrong("cuts bytes", "state_bytes",
          "def state_bytes(parameters, ranks, stage, recipe):\n"
          "    kinds = ('parameters', 'gradients', 'optimizer_states')\n"
          "    return {kind: -(-each * parameters // (ranks if stage >= first else 1))\n"
          "            for kind, each, first in zip(kinds, recipe, (3, 2, 1))}",
          "You cut bytes: cut elements"),
    Wrong("fractions", "state_bytes", changed(STATES, "-(-parameters // ranks)", "parameters / ranks"),
          "Bytes are whole numbers"),
    Wrong("elements", "state_bytes", changed(STATES, "recipe[1] * ", "1 * "), "You counted elements"),
    Wrong("fp32 by heart", "state_bytes", changed(STATES, "recipe[2]", "8"), "Those are the bytes of fp32 with Adam"),
    Wrong("all that is left over to one rank", "state_bytes",
          changed(STATES, "-(-parameters // ranks)", "parameters // ranks + parameters % ranks"),
          "You give all that is left over to one rank"),
    Wrong("cuts the recipe", "state_bytes",
          changed(STATES, "recipe[1] * (shard if", "recipe[1] // (ranks if stage >= 2 else 1) * (parameters if"),
          "You cut the bytes of a parameter"),
    Wrong("reads the recipe from its end", "state_bytes",
          changed(changed(STATES, "recipe[2]", "recipe[-3]"), "recipe[0]", "recipe[2]"),
          "Those are the bytes of optimizer_states"),
    Wrong("tensors", "state_bytes", changed("import torch\n" + STATES, "recipe[0] *", "torch.tensor(recipe[0]) *"),
          "A whole number of bytes is due"),
    Wrong("pads to 16", "state_bytes",
          changed(STATES, "-(-parameters // ranks)", "-(-parameters // (16 * ranks)) * 16"),
          "pad nothing"),
    Wrong("all ranks", "state_bytes", changed(STATES, "recipe[0] *", "ranks * recipe[0] *"),
          "That is all ranks together"),
    Wrong("whole from padded shards", "state_bytes",
          changed(STATES, "stage >= 3 else parameters", "stage >= 3 else shard * ranks"),
          "where nothing is cut, nothing is rounded"),
    Wrong("a sum", "state_bytes", changed(STATES, "return {", "return sum({").replace("    }\n", "    }.values())\n"),
          "and a dict with the keys parameters, gradients, optimizer_states is due"),
    Wrong("names of its own", "state_bytes", changed(STATES, '"optimizer_states"', '"optimizer"'),
          "your dict has the keys parameters, gradients, optimizer, and"),
    Wrong("counts the step counter", "state_bytes", changed(STATES, "recipe[2] *", "4 + recipe[2] *"),
          "step counter is left out"),
    Wrong("remembers the first call", "state_bytes", changed(STATES, "recipe):\n    shard = -(-parameters // ranks)\n",
          "recipe, seen={}):\n    shard = seen.setdefault((ranks, stage, recipe), -(-parameters // ranks))\n"
          "    parameters = seen.setdefault((ranks, recipe), parameters)\n"),
          "A default argument does"),

    blank("choose_stage"),
    Wrong("the one that keeps least", "choose_stage", changed(CHOOSE, "range(4)", "range(3, -1, -1)"),
          "the lowest is asked for"),
    Wrong("less than the memory", "choose_stage", changed(CHOOSE, "<=", "<"),
          "What fills the memory to the last byte fits"),
    Wrong("3 where nothing fits", "choose_stage", changed(CHOOSE, "return None", "return 3"),
          "No stage fits here, not even 3"),
    Wrong("-1 where nothing fits", "choose_stage", changed(CHOOSE, "return None", "return -1"),
          "you say -1, and a stage from 0 to 3, or None, is due"),
    Wrong("0 counts as False", "choose_stage",
          CHOOSE.replace("choose_stage", "first") + "\ndef choose_stage(*args):\n    return first(*args) or None\n",
          "Stage 0 is a stage"),
    Wrong("all GPUs as one", "choose_stage", changed(CHOOSE, "<= gpu_bytes", "<= gpu_bytes * ranks"),
          "The bytes are those of one GPU"),
    Wrong("remembers by parameters", "choose_stage",
          changed("SIZES = {}\n" + CHOOSE, "sum(state_bytes(parameters, ranks, stage, recipe).values()) <=",
                  "SIZES.setdefault((parameters, stage), "
                  "sum(state_bytes(parameters, ranks, stage, recipe).values())) <="),
          "what stays from call to call?"),
    Wrong("the largest kind alone", "choose_stage", changed(CHOOSE, "sum(", "max("), "Sum up all three kinds"),
    Wrong("even shares", "choose_stage",
          "def choose_stage(parameters, ranks, gpu_bytes, recipe):\n"
          "    for stage in range(4):\n"
          "        whole, shared = sum(recipe[:3 - stage]), sum(recipe[3 - stage:])\n"
          "        if parameters * whole + parameters * shared // ranks <= gpu_bytes:\n"
          "            return stage",
          "Its fullest shard is rounded up"),
    Wrong("never stage 3", "choose_stage", changed(CHOOSE, "range(4)", "range(3)"), "Is 3 among the stages"),
    Wrong("a float", "choose_stage", changed(CHOOSE, "return stage", "return float(stage)"),
          "0, and a stage from 0 to 3, or None, is due"),

    blank("most_parameters"),
    Wrong("the first that does not fit", "most_parameters", changed(MOST, "return fits", "return too_many"),
          "that is one too many"),
    Wrong("less than the memory", "most_parameters", changed(MOST, "<= gpu", "< gpu"),
          "what fills the memory to the last byte fits"),
    Wrong("one short", "most_parameters", changed(MOST, "return fits", "return fits - 1"), "and one more fits"),
    Wrong("even shares", "most_parameters",
          "def most_parameters(gpu_bytes, ranks, stage, recipe):\n"
          "    whole, shared = sum(recipe[:3 - stage]), sum(recipe[3 - stage:])\n"
          "    return gpu_bytes * ranks // (whole * ranks + shared)",
          "They would fit in even shares"),
    Wrong("everything cut", "most_parameters", changed(MOST, "ranks, stage, recipe).v", "ranks, 3, recipe).v"),
          "At stage 1 not everything is cut"),
    Wrong("nothing cut", "most_parameters", changed(MOST, "ranks, stage, recipe).v", "ranks, 0, recipe).v"),
          "ranks share something out at stage"),
    Wrong("all GPUs as one", "most_parameters", changed(MOST, "<= gpu_bytes", "<= gpu_bytes * ranks"),
          "That is for the memory of all ranks together"),
    Wrong("parameters alone", "most_parameters",
          "def most_parameters(gpu_bytes, ranks, stage, recipe):\n    return gpu_bytes // recipe[0]",
          "You left room for the parameters alone"),
    Wrong("a fraction", "most_parameters", changed(MOST, "return fits", "return float(fits)"),
          "and a whole number of parameters is due"),
    Wrong("multiples of N", "most_parameters", changed(MOST, "return fits", "return fits // ranks * ranks"),
          "short, so look at how you round"),

    blank("name_the_peak"),
    Wrong("the tallest kind anywhere", "name_the_peak", PEAK.replace(
          "max(samples[at], key=samples[at].get)",
          "max(samples[0], key=lambda kind: max(sample[kind] for sample in samples))"),
          "It is the tallest of all at some other moment"),
    Wrong("max of the names", "name_the_peak", changed(PEAK, ", key=samples[at].get", ""),
          "Did max compare the names?"),
    Wrong("the highest kind", "name_the_peak", changed(PEAK, "sum(sample", "max(sample"),
          "a moment's height is the sum of its kinds"),
    Wrong("model states alone", "name_the_peak", changed(PEAK, "sum(sample.values())",
          "sum(sample[kind] for kind in ('parameters', 'gradients', 'optimizer_states'))"),
          "what passes counts, too"),
    Wrong("the last moment", "name_the_peak", changed(PEAK, "totals.index(max(totals))", "len(samples) - 1"),
          "That is the last moment"),
    Wrong("counts from 1", "name_the_peak", changed(PEAK, "return at, ", "return at + 1, "), "Python counts from 0"),
    Wrong("the steepest", "name_the_peak", PEAK.replace(
          "totals.index(max(totals))",
          "max(range(1, len(totals)), key=lambda at: totals[at] - totals[at - 1])"),
          "There the most is added"),
    Wrong("bytes for a name", "name_the_peak", changed(PEAK, "max(samples[at], key=samples[at].get)",
          "max(samples[at].values())"),
          "and a kind is due, such as"),
    Wrong("the name alone", "name_the_peak", changed(PEAK, "return at, ", "return "), "two things are due"),
    Wrong("the first peak that it meets", "name_the_peak", changed(PEAK, "totals.index(max(totals))",
          "next((i for i in range(1, len(totals) - 1) if totals[i - 1] < totals[i] > totals[i + 1]), 0)"),
          "a higher one comes after it"),
    Wrong("the last of the highest", "name_the_peak", changed(PEAK, "totals.index(max(totals))",
          "samples.index(max(reversed(samples), key=lambda sample: sum(sample.values())))"),
          "Several moments are as high"),
    Wrong("the total for the index", "name_the_peak", changed(PEAK, "return at, ", "return totals[at], "),
          "is no index of"),
    Wrong("drops what it has seen", "name_the_peak", changed(
          PEAK, "return at, max(samples[at], key=samples[at].get)",
          "kind = max(samples[at], key=samples[at].get)\n    samples[0].clear()\n    return at, kind"),
          "it overwrote rank 0's input"),
    Wrong("rounds to KiB", "name_the_peak", changed(PEAK, "sum(sample.values())", "round(sum(sample.values()) / 1024)"),
          "both are as high, so do not round"),
    Wrong("adds up in float32", "name_the_peak",
          changed(changed(PEAK, "totals.index(max(totals))", "int(tensor.argmax())"), "    at =",
                  "    import torch\n    tensor = torch.tensor(totals, dtype=torch.float32)\n    at ="),
          "compare whole bytes, unrounded"),
    Wrong("rounds the kinds", "name_the_peak",
          changed(PEAK, "key=samples[at].get", "key=lambda kind: samples[at][kind] // 512"),
          "compare bytes, unrounded"),
    Wrong("skips the first", "name_the_peak", changed(PEAK, "totals.index(max(totals))",
          "max(range(1, len(totals)), key=totals.__getitem__) if totals[1:] else 0"),
          "The highest is the first moment here"),
    Wrong("skips the last", "name_the_peak", changed(PEAK, "max(totals)", "max(totals[:-1] or totals)"),
          "The highest is the last moment here"),

    blank("fewest_ranks"),
    Wrong("rounds down", "fewest_ranks", changed(FEWEST, "math.ceil", "int"), "round up"),
    Wrong("one more", "fewest_ranks", changed(FEWEST, "math.ceil(factor * shared / left)",
          "int(factor * shared / left) + 1"), "exactly, which is enough"),
    Wrong("one more, always", "fewest_ranks", changed(FEWEST, "left)", "left) + 1"), "one rank fewer is enough"),
    Wrong("the factor itself", "fewest_ranks", "def fewest_ranks(factor, stage, recipe):\n    return math.ceil(factor)",
          "Only what is shared out shrinks with N"),
    Wrong("the limit as reached", "fewest_ranks", '''
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    ranks = 1
    while round(sum(recipe) / (whole + shared / ranks), 2) < factor:
        ranks += 1
        if ranks > 10_000:
            return None
    return ranks
''', "is the limit, which no number of ranks reaches"),
    Wrong("never says never", "fewest_ranks", changed(FEWEST, "return None", "return 10**6"),
          "is the limit"),
    Wrong("divides by nothing", "fewest_ranks", changed(FEWEST, "if left <= 0", "if left < 0"), "ZeroDivisionError"),
    Wrong("a negative number", "fewest_ranks", changed(FEWEST, "if left <= 0", "if left == 0"),
          "and a whole number of ranks from 1 on, or None, is due"),
    Wrong("fp32 by heart", "fewest_ranks", changed(FEWEST, "    whole", "    recipe = (4, 4, 8)\n    whole"),
          "In fp32 with Adam it never is"),
    Wrong("a stage too low", "fewest_ranks",
          changed(FEWEST, "    whole", "    stage = max(stage - 1, 1)\n    whole"),
          "shares out one kind more"),
    Wrong("a stage too high", "fewest_ranks", changed(FEWEST, "    whole", "    stage = min(stage + 1, 3)\n    whole"),
          "which kinds stay whole?"),
    Wrong("powers of two", "fewest_ranks", changed(FEWEST, "return math.ceil(factor * shared / left)",
          "return 2 ** math.ceil(math.log2(factor * shared / left))"), "Ranks need not be a power of two"),
    Wrong("stops counting at 64", "fewest_ranks", COUNT.format(bound=64), "ranks it is reached: so close"),
    Wrong("stops counting at 200,000", "fewest_ranks", COUNT.format(bound=200_000), "then count without a bound"),
    Wrong("allows a tolerance", "fewest_ranks", changed(FEWEST, "left <= 0", "left < 0.05"),
          "with 1226 ranks it is reached: so close"),
    Wrong("nearly there", "fewest_ranks",
          changed(changed(ENDLESS, "OURS", "(whole + shared) / (whole + shared / ranks) + 1e-12"), "THEIRS", "factor"),
          "0000000002274: allow no tolerance"),
    Wrong("as good as there", "fewest_ranks",
          changed(changed(ENDLESS, "OURS < THEIRS", "not (OURS >= factor or math.isclose(OURS, factor))"), "OURS",
                  "(whole + shared) / (whole + shared / ranks)"), "a hair less than 3.99"),
    Wrong("divides by the factor", "fewest_ranks", '''
def fewest_ranks(factor, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    if not shared or factor * whole >= whole + shared:
        return None
    return math.ceil(shared / ((whole + shared) / factor - whole))
''', "which is enough: where you divide, it rounds"),
    Wrong("compares quotients", "fewest_ranks",
          changed(changed(ENDLESS, "OURS", "(whole + shared) / (whole + shared / ranks)"), "THEIRS", "factor"),
          "on 3 it is 2.25 exactly"),
    Wrong("compares products of quotients", "fewest_ranks",
          changed(changed(ENDLESS, "OURS", "whole + shared"), "THEIRS", "factor * (whole + shared / ranks)"),
          "on 4 ranks it saves 2.666667 times, and on 3"),
    Wrong("rounds to a digit first", "fewest_ranks", changed(FEWEST, "factor * shared / left",
          "round(factor * shared / left, 1)"), "a hair less than"),
]  # fmt: skip
