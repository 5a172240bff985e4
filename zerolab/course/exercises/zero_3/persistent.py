"""The exercise of lesson 05 on the persistence threshold: which tensors are too small to cut."""

from __future__ import annotations

from random import Random

import torch

from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import calls_are, never
from zerolab.course.judge.draw import DTYPES, fine
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives, does
from zerolab.course.judge.same import alike, by_dtype
from zerolab.errors import InputError

TEXT = """
What is too small to cut

A bias has few numbers, and gathering it costs a message's latency like a large matrix does. So stage 3 has a
**persistence threshold**: a tensor of *fewer* than `threshold` elements stays whole on every rank. All others are
cut. The threshold looks at each tensor by itself; it is no budget for all of them together.

Write a class. `Persistent(comm, tensors, threshold)` gets whole tensors of any shape, the same on every rank, and
calls no collective.

- `self.kept` is a list or a tuple: for each tensor, in order, what this rank keeps of it, whole or a shard.
- `whole(index)` returns a tensor, whole and in its shape, as often as it is asked. It gathers what was cut, each
  time, and calls nothing for what was not. (On one rank, too, what reaches the threshold counts as cut.)
- Once the caller drops its tensors, nothing but `kept` may stay in memory, also after `whole`; and once the caller
  drops a `Persistent`, nothing of it. The check counts storages. (`functools.cache` on a method keeps each `self`
  that it was called for, so what you remember belongs in `self`.)
- The caller's tensors, and its list of them, stay as they are. Several `Persistent` may be alive at once.

The check draws tensors in float32, float64 and bfloat16, transposed in memory, without dimensions or without
elements, and thresholds from 0 to more than any tensor has. About twelve lines.
"""


class Persistent:
    """Tensors, cut over the ranks unless they are small."""

    ### BEGIN SOLUTION
    def __init__(self, comm, tensors, threshold):
        self.comm, self.threshold = comm, threshold
        self.shapes = [tensor.shape for tensor in tensors]
        self.kept = [self.part(tensor) for tensor in tensors]

    def part(self, tensor):
        if tensor.numel() < self.threshold:
            return tensor
        return tensor.flatten().tensor_split(self.comm.size)[self.comm.rank].clone()

    def whole(self, index):
        shape, part = self.shapes[index], self.kept[index]
        small = shape.numel() < self.threshold
        return part if small else self.comm.all_gather(part, shape.numel()).view(shape)

    ### END SOLUTION


MISTAKES = r"""
the right numbers in the wrong shape: what was cut is flat
    .view(shape) =>
the numbers in the order in which they lie in memory: flatten() goes row by row, whatever the strides
    tensor.flatten() => tensor.as_strided((tensor.numel(),), (1,))
Tensors of fewer elements stay whole, one of exactly as many is cut
    comm, threshold => comm, threshold + 1
You cut the small ones and keep the large ones
    tensor.numel() < => tensor.numel() >=
    shape.numel() < => shape.numel() >=
You measure the shard; the threshold is for the whole tensor
    comm, threshold => comm, threshold * comm.size
"""
STUCK = r"""
What belongs to one Persistent has its place in self, not in the class
    self.shapes = => Persistent.shapes =
"""


def persistent_cases(rng: Random) -> list[Case]:
    def case(ranks: int, threshold: int | None = None, world: str = "lockstep") -> Case:
        """As in a model: matrices, and biases that are much smaller. Without a threshold it is as many elements as the
        first matrix has."""
        width = rng.randint(3, 6)
        shapes = [(width, width), (width,), (width + 1, width), (width + 1,), (5 * width, width), (3,), (), (0, 2)]
        tensors = [fine(rng, torch.Size(shape).numel(), rng.choice(DTYPES)).view(shape) for shape in shapes]
        # A matrix may lie in memory as its transpose does.
        tensors[0] = tensors[0].t().contiguous().t()
        return Case([(tensors, tensors[0].numel() if threshold is None else threshold)] * ranks, world)

    return [
        *(case(ranks, number) for ranks, most in ((2, 8), (3, 0), (4, 1), (1, 10_000)) for number in (None, most)),
        # Alone, a shard of a row looks like the row: whether it is gathered must not hang on that.
        case(1, 3),
        case(5, 8),
        case(2, 8, "processes"),
    ]


def run_persistent(fn, comm, tensors, threshold):
    """Hand whole tensors to the answer, ask for each one, twice, and once more when a second answer is alive beside it.
    The answer is returned, too, though only its type's name gets out: while it lives, what it holds is measured."""
    own = [tensor.clone() for tensor in tensors]
    answer = fn(comm, own, threshold)
    if not isinstance(answer.kept, list | tuple):
        kind = type(answer.kept).__name__
        raise InputError(f"`kept` is a {kind}, and a list is due, with one tensor for each that it got, in order")
    held = [answer.whole(index) for index in range(len(tensors))]
    first = [whole.clone() for whole in held]
    # What the first round gave is still in use.
    twice = [answer.whole(index).clone() for index in range(len(tensors))]
    del held
    changed = not alike(own, tensors)
    del own
    others = [-tensor for tensor in reversed(tensors)]
    second = fn(comm, others, 2 * threshold + 1).whole(len(others) - 1).clone()
    del others
    again = [answer.whole(index).clone() for index in range(len(tensors))]
    later = {"asked once more": twice, "of a second Persistent": second, "once a second Persistent is alive": again}
    numels = [part.numel() for part in answer.kept]
    return {"first": first, "later": later, "changed": changed, "numels": numels, "kept": list(answer.kept), "": answer}


def later_said(args, got, want):
    when = next(when for when in want if not alike(got[when], want[when]))
    look = "what belongs to one has its place in self" if "second" in when else "what has the first time changed?"
    return f"gets other numbers from whole() {when}: {look}"


EXERCISE: Exercise = Exercise(
    "Persistent",
    persistent_cases,
    (
        Claim(
            "it gives each tensor back, whole, in its shape and its dtype",
            Gives("first", "look at what `whole` gives for a matrix and for a bias", tolerance=by_dtype),
        ),
        Claim("it gives it each time, and each Persistent its own", Gives("later", say=later_said)),
        Claim(
            "it leaves the caller's tensors as they are",
            never("changed", "the list of tensors that it got, or a tensor in it, has changed: work on a copy"),
        ),
        Claim(
            "it keeps small tensors whole and a shard of the others",
            Gives(
                "numels",
                "A tensor stays whole if its numel() is less than the threshold, whatever the others are; the others "
                "are cut with tensor_split",
                say=lambda args, got, want: f"keeps {got} elements, and {want} are due",
            ),
        ),
        Claim(
            "it gathers what is cut, and nothing else",
            calls_are(
                lambda case, rank: does(EXERCISE, case).records[rank].calls,
                "what is cut is gathered each time, on one rank, too, and also while somebody still uses what the last "
                "time gave; what is whole already needs no call",
            ),
        ),
    ),
    run=run_persistent,
    hints=(
        "Make two lists in __init__, of self: the shapes, and what you keep.",
        "In `whole`, kept[index] has fewer elements than its shape if it was cut; but on one rank, and for an empty "
        "shape, it has not. So decide by the threshold, in both places.",
        "A shard is tensor.flatten().tensor_split(comm.size)[comm.rank]. Whose memory is that?",
    ),
    memory=True,
    mistakes=MISTAKES,
    stuck=STUCK,
    without=frozenset({"dtype", "late"}),
    text=TEXT,
    answer=(Persistent,),
    points=2,
)
