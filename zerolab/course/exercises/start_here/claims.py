"""What answers to lesson 00 are held to: plain integers, and a hint for each way in which people miss them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from zerolab.course.judge.case import Case, Observation, Record, plural
from zerolab.course.judge.claims import each_rank
from zerolab.course.judge.same import alike, is_whole, short

Recipe = tuple[int, int, int]
"""Bytes a parameter: for itself, its gradient, its optimizer states."""

GB = 10**9
RECIPE = "(for itself, for its gradient, for its optimizer states)"
PADDED = 64
"""Elements that one may have too many of by rounding up too far."""
SHARDED_FROM = {"parameters": 3, "gradients": 2, "optimizer_states": 1}
FP32: Recipe = (4, 4, 8)
MOMENTUM: Recipe = (4, 4, 4)
MIXED: Recipe = (2, 2, 12)
MEGATRON: Recipe = (2, 4, 12)
PLAIN_SGD: Recipe = (4, 4, 0)
RECIPES = {
    FP32: "fp32 with Adam",
    MIXED: "mixed precision",
    MEGATRON: "mixed precision with fp32 gradients",
    MOMENTUM: "fp32 with momentum",
}


def state_bytes(parameters: int, ranks: int, stage: int, recipe: Recipe) -> dict[str, int]:
    """Bytes that the fullest rank keeps of each kind: shards hold whole elements."""
    shard = -(-parameters // ranks)
    return {
        kind: each * (shard if stage >= first else parameters)
        for (kind, first), each in zip(SHARDED_FROM.items(), recipe, strict=True)
    }


def needs(parameters: int, ranks: int, stage: int, recipe: Recipe) -> int:
    return sum(state_bytes(parameters, ranks, stage, recipe).values())


# 1. What a rank keeps.


@each_rank
def measured_right(case: Case, rank: int, record: Record) -> str | None:
    """Each rank's answer is what it held itself after a real step."""
    said, held, _ = record.value
    want = state_bytes(*case.args[0])
    if held is not None and held != want:
        return f"rank {rank} held {short(held)}, and {short(want)} was due; run the check again"
    return None if held is None else states_wrong(case, said, want, f"rank {rank} really holds")


def computed_right(case: Case, seen: Observation) -> str | None:
    """The answer is right for sizes that no laptop holds, too."""
    return states_wrong(case, seen.records[0].value[0], state_bytes(*case.args[0]), "the fullest rank keeps")


def states_wrong(case: Case, said: object, want: Mapping[str, int], who: str) -> str | None:
    if not isinstance(said, dict):
        return f"you return {short(said)}, and a dict with the keys {', '.join(want)} is due"
    if said.keys() != want.keys():
        return f"your dict has the keys {', '.join(map(str, said))}, and {', '.join(want)} are due"
    kind = next((kind for kind in want if not alike(said[kind], want[kind])), None)
    if kind is None:
        return None
    why = why_states(kind, said[kind], *case.args[0])
    return f"{kind}: you say {short(said[kind])} bytes, and {who} {want[kind]}. {why}"


def why_states(kind: str, said: object, parameters: int, ranks: int, stage: int, recipe: Recipe) -> str:
    """What gave these bytes, if it is a known mistake."""
    kinds = dict(zip(SHARDED_FROM, recipe, strict=True))
    first, each = SHARDED_FROM[kind], kinds[kind]
    of_fp32 = dict(zip(SHARDED_FROM, FP32, strict=True))[kind]
    shard = -(-parameters // ranks)
    sharded = stage >= first
    elements = shard if sharded else parameters
    if isinstance(said, float):
        return "Bytes are whole numbers: divide elements with //, rounding up"
    if not is_whole(said):
        return "A whole number of bytes is due, of type int"
    if sharded:
        known = [
            (each * parameters, f"That is all of them: from which stage on are {kind} shared out?"),
            (each * (parameters // ranks), "That is the smallest rank's: the first ranks take what is left over"),
            (-(-each * parameters // ranks), "You cut bytes: cut elements, and no rank keeps a part of one"),
            (each // ranks * parameters, "You cut the bytes of a parameter: cut elements"),
            (
                each * (parameters // ranks + parameters % ranks),
                "You give all that is left over to one rank: no rank has more than one element of it",
            ),
        ]
    else:
        known = [
            (each * (parameters // ranks), f"At stage {stage} {kind} are not shared out yet"),
            (each * shard, f"At stage {stage} {kind} are not shared out yet"),
            (each * shard * ranks, "That is more than there is: where nothing is cut, nothing is rounded"),
        ]
    known += [
        (of_fp32 * elements, "Those are the bytes of fp32 with Adam: read them from recipe"),
        (elements, "You counted elements: what does each take?"),
        *((other * elements, f"Those are the bytes of {name}: recipe is {RECIPE}") for name, other in kinds.items()),
        (each * elements * ranks, "That is all ranks together: say what one keeps"),
    ]
    otherwise = "Bytes a parameter, times the elements that the rank keeps of this kind"
    if kind == "optimizer_states" and said == each * elements + 4 and not (sharded and each == 4):
        otherwise = "Four bytes too many: the optimizer's step counter is left out"
    elif isinstance(said, int) and 0 < said - each * elements <= PADDED * each:
        otherwise = "A few elements too many: round up where it does not divide, and pad nothing"
    return next((why for value, why in known if said == value), otherwise)


AGAIN = 3
"""A later call asks for so many times as many parameters."""


def wider(recipe: Recipe) -> Recipe:
    """Another recipe for a later call: each state in twice the bytes."""
    return (2 * recipe[0], 2 * recipe[1], 2 * recipe[2])


def calls_again(parameters: int, ranks: int, stage: int, recipe: Recipe) -> list[tuple[int, int, int, Recipe]]:
    """What later calls ask: for more parameters, and with another recipe."""
    return [(AGAIN * parameters, ranks, stage, recipe), (parameters, ranks, stage, wider(recipe))]


@each_rank
def again_right(case: Case, rank: int, record: Record) -> str | None:
    """Later calls do not give what the first one left behind."""
    said, _, answers = record.value
    for (parameters, ranks, stage, recipe), again in zip(calls_again(*case.args[0]), answers, strict=True):
        want = state_bytes(parameters, ranks, stage, recipe)
        if again == want:
            continue
        told = f"called again, for {parameters:,} parameters"
        told += f" and recipe {recipe}" if recipe != case.args[0][-1] else ""
        if again == said:
            return f"{told}, you say the same as before: what stays behind from call to call? A default argument does"
        return f"{told}, you say {short(again)}, and {short(want)} is due: does the first call change the second?"
    return None


# 2. The lowest stage.


def lowest(parameters: int, ranks: int, gpu_bytes: int, recipe: Recipe) -> int | None:
    return next((stage for stage in range(4) if needs(parameters, ranks, stage, recipe) <= gpu_bytes), None)


Asked = tuple[int, int, int, Recipe]


def stages_again(parameters: int, ranks: int, gpu_bytes: int, recipe: Recipe) -> dict[str, Asked]:
    """What later calls ask, each with one thing changed, by what that is."""
    return {
        "for 1 rank": (parameters, 1, gpu_bytes, recipe),
        f"for recipe {wider(recipe)}": (parameters, ranks, gpu_bytes, wider(recipe)),
        f"for {gpu_bytes // 2:,} bytes": (parameters, ranks, gpu_bytes // 2, recipe),
        f"for {3 * parameters:,} parameters": (3 * parameters, ranks, gpu_bytes, recipe),
    }


def stage_again_right(case: Case, seen: Observation) -> str | None:
    """Later calls do not give what the first one left behind."""
    for (how, asked), got in zip(stages_again(*case.args[0]).items(), seen.records[0].value[1], strict=True):
        if got != (want := lowest(*asked)):
            return f"called again, {how}, you say {got}, and {want} is due: what stays from call to call?"
    return None


def stage_right(case: Case, seen: Observation) -> str | None:
    parameters, ranks, gpu_bytes, recipe = case.args[0]
    each = [needs(parameters, ranks, stage, recipe) for stage in range(4)]
    want = lowest(parameters, ranks, gpu_bytes, recipe)
    got = seen.records[0].value[0]
    together = next((stage for stage in range(4) if each[stage] * ranks <= gpu_bytes), None)
    if alike(got, want):
        return None
    if got is not None and (not is_whole(got) or got not in range(4)):
        return f"you say {short(got)}, and a stage from 0 to 3, or None, is due"
    said = f"you say {got}"
    if want is None:
        return f"{said}, which keeps {each[got]} bytes. No stage fits here, not even 3: return None"
    if got is not None and got < want:
        return f"{said}, which keeps {each[got]} bytes. {why_low(got, *case.args[0])}"
    if each[want] == gpu_bytes:
        return f"{said}, and stage {want} keeps {each[want]} bytes. What fills the memory to the last byte fits"
    if got == together and want < 3:
        all_ranks = f"all {ranks} together keep {each[want] * ranks}, but each has a GPU of its own"
        return f"{said}, and stage {want} keeps {each[want]} bytes on a rank, which fit; {all_ranks}"
    if got is None:
        kept = f"and stage {want} keeps {each[want]} bytes"
        return f"{said}, {kept}. {why_no_stage(want)}, {by_kind(want, *case.args[0])}"
    fits = f"stage {want} fits already, with {each[want]} bytes"
    return f"{said}, and {fits}: the lowest is asked for, a higher one may send more, {by_kind(want, *case.args[0])}"


def by_kind(stage: int, parameters: int, ranks: int, gpu_bytes: int, recipe: Recipe) -> str:
    """What to hold one's own bytes against."""
    kinds = state_bytes(parameters, ranks, stage, recipe)
    said = ", ".join(f"{kind.replace('_', ' ')} {nbytes}" for kind, nbytes in kinds.items())
    return f"and are these your bytes at stage {stage}: {said}?"


def why_no_stage(want: int) -> str:
    """What made it seem that no stage fits."""
    if want == 0:
        return "Stage 0 is a stage, though it counts as False"
    if want == 3:
        return "Is 3 among the stages that you try, and are parameters shared out there"
    return "It need not leave anything free"


def why_low(got: int, parameters: int, ranks: int, gpu_bytes: int, recipe: Recipe) -> str:
    """What made a stage that does not fit seem to fit."""
    kinds = state_bytes(parameters, ranks, got, recipe)
    if sum(unrounded(parameters, ranks, got, recipe)) <= gpu_bytes:
        return "Its fullest shard is rounded up to whole elements"
    # Of what seems to fit, the lowest is taken: so would a stage below it, were the sizes those of all GPUs.
    pooled = next((stage for stage in range(4) if needs(parameters, ranks, stage, recipe) <= gpu_bytes * ranks), None)
    if pooled == got and max(kinds.values()) > gpu_bytes:
        return "The bytes are those of one GPU, and what one rank keeps must fit"
    if sum(kinds.values()) == gpu_bytes + 1:
        return "That is a byte more than there is: allow none"
    return f"Sum up all three kinds, {by_kind(got, parameters, ranks, gpu_bytes, recipe)}"


def unrounded(parameters: int, ranks: int, stage: int, recipe: Recipe) -> list[Fraction]:
    return [
        each * (Fraction(parameters, ranks) if stage >= first else Fraction(parameters))
        for first, each in zip(SHARDED_FROM.values(), recipe, strict=True)
    ]


# 3. The largest model.


def most(gpu_bytes: int, ranks: int, stage: int, recipe: Recipe) -> int:
    """The most parameters whose states fit: no more than even shares allow, and less by what rounding up takes."""
    each = sum(unrounded(1, ranks, stage, recipe))
    parameters = int(gpu_bytes / each)
    while needs(parameters, ranks, stage, recipe) > gpu_bytes:
        parameters -= 1
    return parameters


def most_right(case: Case, seen: Observation) -> str | None:
    gpu_bytes, ranks, stage, recipe = case.args[0]
    got, want = seen.records[0].value, most(*case.args[0])
    if alike(got, want):
        return None
    said = f"you say {short(got)}"
    if not is_whole(got):
        return f"{said}, and a whole number of parameters is due"
    if got < 0:
        return f"{said}: no model has fewer than 0 parameters"
    if got > want == 0:
        return f"{said}, whose states take {needs(got, ranks, stage, recipe)} bytes. Not even one fits: 0 is the answer"
    if got > want:
        too_many = f"{said}, whose states take {needs(got, ranks, stage, recipe)} bytes"
        even = int(gpu_bytes / sum(unrounded(1, ranks, stage, recipe)))
        if got == want + 1 and got > even:
            return f"{too_many}: that is one too many. Return the last that fits, not the first that does not"
        if got <= even:
            return f"{too_many}. They would fit in even shares, but no rank keeps a part of an element"
        if got == most(gpu_bytes * ranks, ranks, stage, recipe):
            return f"{too_many}. That is for the memory of all ranks together, but each keeps its own"
        if got == most(gpu_bytes, ranks, 3, recipe):
            return f"{too_many}. At stage {stage} not everything is cut in {ranks}"
        if got == gpu_bytes // recipe[0]:
            return f"{too_many}. You left room for the parameters alone"
        return f"{too_many}: which kind did you leave out?"
    if got == most(gpu_bytes - 1, ranks, stage, recipe):
        return f"{said}, and {want} take {gpu_bytes} bytes: what fills the memory to the last byte fits"
    if got == most(gpu_bytes, 1, stage, recipe):
        return f"{said}, and {want} fit: {ranks} ranks share something out at stage {stage}"
    if got == want - 1:
        return f"{said}, and one more fits: where does your search stop?"
    if got == most(gpu_bytes, ranks, stage, FP32):
        return f"{said}, and {want} fit: bytes a parameter come from recipe"
    if 0 < want - got <= ranks:
        return f"{said}, and {want} fit: you are {plural(want - got, 'parameter')} short, so look at how you round"
    return f"{said}, and {want} fit, with {needs(want, ranks, stage, recipe)} bytes"
