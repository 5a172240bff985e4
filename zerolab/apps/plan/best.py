"""The quickest run that fits, for a model on so many GPUs: of each stage, with and without recomputation, the largest
micro-batch that fits, and of those the one with the most tokens a second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerolab.apps.cost import GPU, machine_of
from zerolab.apps.plan.needs import GB, at_stage, fits
from zerolab.apps.plan.shapes import Shape
from zerolab.apps.plan.timing import StepTime, network_of, predict_step
from zerolab.errors import InputError
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

BATCHES = (16, 4, 1)
SPARE = 0.9
"""Of a GPU's memory, what a run may take: the allocator, the CUDA context and NCCL take from the rest."""


@dataclass(frozen=True)
class Best:
    """A model on so many GPUs, the quickest run that fits, and its step; None where none fits."""

    shape: Shape
    ranks: int
    run: RunSpec | None = None
    step: StepTime | None = None


def candidates(run: RunSpec, limit: float, batches: Sequence[int] = BATCHES) -> Iterator[RunSpec]:
    """Of each stage with and without recomputation the run with the largest micro-batch that fits `limit` bytes."""
    for stage in (run.dtypes or Precision()).stages if run.ranks > 1 else (0,):
        for recomputes in (False, True):
            for batch in batches:
                one = at_stage(run, stage).but(micro_batch_size=batch, checkpoint_activations=recomputes)
                if fits(one, limit):
                    yield one
                    break


def best_runs(
    shapes: Sequence[Shape],
    ranks: Sequence[int],
    gpu: GPU,
    seq_len: int = 2048,
    precision: str = "bf16",
    batches: Sequence[int] = BATCHES,
    gbit_per_s: float = 400.0,
) -> list[list[Best]]:
    """A row for each shape, a cell for each number of ranks; some seconds a cell for models of a hundred layers.

    seq_len     tokens of a sequence, or the model's context if that is shorter
    batches     sequences of a micro-batch that are tried, the largest first
    gbit_per_s  of a network card; each GPU of a node of 8 has one

    Raises InputError for no shapes, no ranks or no batches, and for what a `RunSpec` refuses.
    """
    for what, given in (("shapes", shapes), ("ranks", ranks), ("batches", batches)):
        if not given:
            raise InputError(f"{what} is empty; give one at least")
    machine, limit = machine_of(gpu), SPARE * gpu.memory_gb * GB
    found = []
    for shape in shapes:
        row = []
        for count in ranks:
            run = RunSpec(shape, ranks=count, stage=0, precision=precision, seq_len=min(seq_len, shape.context))
            network = network_of(gpu, count, gbit_per_s=gbit_per_s)
            timed = [(one, predict_step(one, machine, network)) for one in candidates(run, limit, batches)]
            if timed:
                row.append(Best(shape, count, *max(timed, key=lambda pair: pair[1].tokens_per_s)))
            else:
                row.append(Best(shape, count))
        found.append(row)
    return found
