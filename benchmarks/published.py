"""Published runs of data-parallel training, predicted: `python -m benchmarks.published` (half a minute;
nothing runs on a GPU).

Of each GPU one row says which share of its peak large matrix products reach; all others are predicted with it. No row
has tensor or pipeline parallelism. Only figures are taken: tokens a second and GPU, and memory where it is told.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.plan import fill_readme
from zerolab.apps.cost import find_gpu, machine_of
from zerolab.apps.plan import SHAPES, Shape, gpu_bytes, make_gpt
from zerolab.apps.plan.timing import StepTime, network_of, predict_step
from zerolab.models import LlamaConfig
from zerolab.precision import Precision
from zerolab.run import RunSpec

BEGIN = "<!-- python -m benchmarks.published --readme -->"
SOURCES = {
    "M": "MosaicML's (Databricks') tables of MPT models with FSDP: github.com/mosaicml/llm-foundry, "
    "scripts/train/benchmarking/README.md. A100: 1600 Gbit/s between nodes; H100: not told, taken as 3200",
    "T": "torchtitan's tables of FSDP2: github.com/pytorch/torchtitan, docs/performance.md at 0413364; 64 A100. Links "
    "not told, taken as 1600 Gbit/s a node",
    "K": "Kempner Institute's table of FSDP on nodes of 4 H200: github.com/KempnerInstitute/KempnerForge, "
    "benchmarks/mfu_scaling/mfu_scaling_2026-04-05.md. Links not told, taken as 400 Gbit/s a GPU. "
    "Gradients are reduced once a step, compiled but for the 13B",
    "V": "Kempner Institute's report on its configurations, on the same nodes: github.com/KempnerInstitute/"
    "KempnerForge, benchmarks/config_validation/config_validation_2026-04-06.md, its rows of FSDP alone but for two "
    "tests of 20 and 77 million parameters; batches from configs/train. 400 Gbit/s a GPU",
    "I": "IBM's table of FSDP: github.com/foundation-model-stack/fms-fsdp, README.md at 4ffb9bd, its rows of whole "
    "sharding and full recomputation. Sequences by its default; 400 Gbit/s a node of A100, 800 of H100",
}
PURE = Precision("bf16", reduce="bf16", sharded_main=True)
"""Parameters rest in fp32, and all that travels is bf16."""


def mpt(name: str, layers: int, width: int, heads: int) -> Shape:
    return make_gpt(f"MPT {name}", layers, width, heads, 50368)


MPT = {
    name: mpt(name, *sizes)
    for name, sizes in {
        "125M": (12, 768, 12), "350M": (24, 1024, 16), "760M": (24, 1536, 12), "1B": (24, 2048, 16),
        "3B": (32, 2560, 20), "7B": (32, 4096, 32), "13B": (40, 5120, 40), "30B": (48, 7168, 56), "70B": (80, 8192, 64),
    }.items()
}  # fmt: skip
LLAMA_34B = Shape(LlamaConfig(32000, 8192, 48, 64, 8, 22016, 4096, tied_head=False), "Llama 2 34B")
LLAMA_14B = Shape(LlamaConfig(128256, 5120, 40, 40, 8, 17920, 4096, tied_head=False), "Llama 3 as 13B")


@dataclass(frozen=True)
class Row:
    """A published run: source, GPU, model, GPUs, sequences of a micro-batch, micro-batches, tokens of a sequence,
    whether layers are recomputed, tokens a second and GPU, GB of a GPU if they are told, GPUs of a node, and Gbit/s of
    each one's link out of it (None: as those of its kind have)."""

    source: str
    gpu: str
    shape: Shape
    ranks: int
    batch: int
    micro_batches: int
    tokens: int
    recomputes: bool
    speed: float
    precision: Precision | str = "fsdp2"
    memory: float | None = None
    node_size: int = 8
    gbit: float | None = None

    @property
    def run(self) -> RunSpec:
        return RunSpec(
            self.shape, ranks=self.ranks, stage=3, precision=self.precision, micro_batch_size=self.batch,
            seq_len=self.tokens, checkpoint_activations=self.recomputes, micro_batches=self.micro_batches,
            defer_reduction=self.source in ("K", "V"),
        )  # fmt: skip


def mosaic(gpu: str, name: str, *figures: float, pure: bool = False) -> Row:
    ranks, batch, micro_batches, tokens, recomputes, speed = figures
    counts = (int(ranks), int(batch), int(micro_batches), int(tokens))
    shape = Shape(replace(MPT[name].config, max_seq_len=counts[3]), f"MPT {name}")
    return Row("M", gpu, shape, *counts, bool(recomputes), speed, PURE if pure else "fsdp2")


A40, A80, H100, H200 = "A100 40GB", "A100 80GB", "H100", "H200"
# The first row of each GPU is the one that its share is taken from.
ROWS = [
    mosaic(A40, "7B", 8, 12, 4, 2048, True, 3679, pure=True),
    mosaic(A40, "70B", 128, 4, 1, 2048, True, 376, pure=True),
    mosaic(A40, "70B", 64, 2, 1, 2048, True, 276, pure=True),
    mosaic(A40, "30B", 128, 6, 1, 2048, True, 865, pure=True),
    mosaic(A40, "30B", 32, 4, 1, 2048, True, 857, pure=True),
    mosaic(A40, "13B", 128, 16, 1, 2048, True, 1972, pure=True),
    mosaic(A40, "13B", 16, 10, 1, 2048, True, 1993, pure=True),
    mosaic(A40, "13B", 8, 4, 16, 2048, True, 1668, pure=True),
    mosaic(A40, "7B", 128, 18, 1, 2048, True, 3623, pure=True),
    mosaic(A40, "3B", 128, 6, 1, 2048, False, 9538, pure=True),
    mosaic(A40, "3B", 16, 5, 1, 2048, False, 9750, pure=True),
    mosaic(A40, "3B", 8, 5, 8, 2048, False, 10065, pure=True),
    mosaic(A40, "1B", 128, 10, 1, 2048, False, 18647, pure=True),
    mosaic(A40, "1B", 32, 10, 1, 2048, False, 15555, pure=True),
    mosaic(A40, "350M", 128, 18, 1, 2048, False, 51934, pure=True),
    mosaic(A40, "125M", 128, 26, 1, 2048, False, 123936, pure=True),
    mosaic(A80, "7B", 8, 6, 2, 2048, False, 4641),
    mosaic(A80, "70B", 64, 8, 4, 2048, True, 410, pure=True),
    mosaic(A80, "70B", 32, 2, 16, 2048, True, 373, pure=True),
    mosaic(A80, "30B", 8, 3, 21, 2048, True, 916),
    mosaic(A80, "13B", 8, 2, 3, 2048, False, 2262),
    mosaic(A80, "13B", 8, 10, 3, 4096, True, 2060),
    mosaic(A80, "7B", 8, 2, 2, 32768, True, 1672),
    mosaic(A80, "3B", 8, 10, 2, 2048, False, 10811),
    mosaic(A80, "1B", 8, 14, 4, 2048, False, 20513),
    mosaic(A80, "125M", 8, 40, 2, 2048, False, 142830),
    Row("T", A80, SHAPES["Llama 2 13B"], 64, 2, 1, 4096, False, 2162),
    Row("T", A80, SHAPES["Llama 2 70B"], 64, 2, 1, 4096, True, 353),
    Row("T", A80, SHAPES["Llama 3 70B"], 64, 1, 1, 8192, True, 331),
    Row("I", A80, LLAMA_34B, 128, 2, 1, 4096, True, 700, gbit=400 / 8),
    Row("I", A80, SHAPES["Llama 2 70B"], 128, 2, 1, 4096, True, 370, gbit=400 / 8),
    mosaic(H100, "7B", 8, 6, 1, 2048, False, 10643),
    mosaic(H100, "70B", 64, 8, 4, 2048, True, 1039),
    mosaic(H100, "70B", 32, 2, 16, 2048, True, 882),
    mosaic(H100, "30B", 32, 14, 3, 2048, True, 2308),
    mosaic(H100, "30B", 8, 3, 21, 2048, True, 2002),
    mosaic(H100, "13B", 64, 2, 1, 2048, False, 4800),
    mosaic(H100, "13B", 8, 2, 1, 2048, False, 4792),
    mosaic(H100, "7B", 8, 2, 2, 32768, True, 3318),
    mosaic(H100, "3B", 64, 6, 3, 2048, False, 22525),
    mosaic(H100, "1B", 64, 20, 1, 2048, False, 44402),
    mosaic(H100, "760M", 32, 24, 1, 2048, False, 67971),
    Row("I", H100, LLAMA_34B, 96, 2, 1, 4096, True, 1550, gbit=800 / 8),
    Row("I", H100, SHAPES["Llama 2 70B"], 96, 2, 1, 4096, True, 800, gbit=800 / 8),
    Row("K", H200, SHAPES["Llama 3 8B"], 4, 4, 2, 4096, True, 9746, "pure_bf16", 61.1, 4),
    Row("K", H200, SHAPES["Llama 3 8B"], 1, 2, 4, 4096, True, 10471, "pure_bf16", 80.7, 4),
    Row("K", H200, SHAPES["Llama 3 8B"], 2, 2, 4, 4096, True, 9364, "pure_bf16", 62.4, 4),
    Row("K", H200, LLAMA_14B, 8, 4, 4, 4096, True, 4426, "pure_bf16", 88.5, 4),
    Row("V", H200, SHAPES["Llama 3 8B"], 4, 8, 4, 4096, True, 38_858 / 4, "pure_bf16", 81.0, 4),
    Row("V", H200, SHAPES["Llama 3 8B"], 32, 4, 4, 4096, True, 297_384 / 32, "pure_bf16", 51.3, 4),
]


def step_of(row: Row, reached: float) -> StepTime:
    gpu = find_gpu(row.gpu)
    gbit = row.gbit or (200.0 if gpu.name.startswith("A100") else 400.0)
    return predict_step(row.run, machine_of(gpu, reached), network_of(gpu, row.ranks, row.node_size, gbit))


def speed_of(row: Row, reached: float) -> float:
    """Tokens a second and GPU."""
    return step_of(row, reached).tokens_per_s / row.ranks


def share_of(row: Row) -> float:
    """The share of a GPU's peak with which a row is predicted as it was published; at most 1."""
    low, high = 0.05, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if speed_of(row, middle) < row.speed else (low, middle)
    return high


@dataclass(frozen=True)
class Found:
    """A row with its predictions: tokens a second and GPU, the share of the step that waits for collectives, and GB."""

    row: Row
    calibrates: bool
    speed: float
    waits: float
    memory: float | None

    @property
    def error(self) -> float:
        return self.speed / self.row.speed - 1

    @property
    def memory_error(self) -> float | None:
        told = self.row.memory
        return None if told is None or self.memory is None else self.memory / told - 1


def predict(rows: Sequence[Row] = tuple(ROWS)) -> Iterator[Found]:
    shares: dict[str, float] = {}
    for row in rows:
        calibrates = row.gpu not in shares
        if calibrates:
            shares[row.gpu] = share_of(row)
        step = step_of(row, shares[row.gpu])
        memory = gpu_bytes(row.run) / 1e9 if row.memory else None
        yield Found(row, calibrates, step.tokens_per_s / row.ranks, step.exposed / step.seconds, memory)


def table(found: Sequence[Found]) -> list[str]:
    """Lines of Markdown: sources, rows and the errors."""
    lines = [f"- {key}: {said}." for key, said in SOURCES.items()]
    lines += [
        "",
        "| source | GPU | model | GPUs | batch | tokens | recomputes | tokens/s and GPU | predicted | error | waits | "
        "GB | predicted | error |",
        "|---|---|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in found:
        row = one.row
        error = "taken from it" if one.calibrates else f"{one.error:+.1%}"
        memory = ["", "", ""]
        if one.memory_error is not None:
            memory = [f"{row.memory:g}", f"{one.memory:.1f}", f"{one.memory_error:+.1%}"]
        cells = [
            row.source, row.gpu, row.shape.name, row.ranks, f"{row.micro_batches} x {row.batch}", row.tokens,
            "yes" if row.recomputes else "no", f"{row.speed:,.0f}", f"{one.speed:,.0f}", error, f"{one.waits:.0%}",
            *memory,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    errors = sorted(abs(one.error) for one in found if not one.calibrates)
    memories = sorted(abs(one.memory_error) for one in found if one.memory_error is not None)
    shares = ", ".join(f"{one.row.gpu} {share_of(one.row):.1%}" for one in found if one.calibrates)
    lines += [
        "",
        f"Of {len(errors)} predicted rows the median error of throughput is {median(errors):.1%}, the worst "
        f"{errors[-1]:.1%}; {sum(error <= 0.15 for error in errors)} are within 15 %. Shares of the peak: {shares}.",
    ]
    if memories:
        lines[-1] += f" Of {len(memories)} rows that tell memory the median error is {median(memories):.1%}, "
        lines[-1] += f"the worst {memories[-1]:.1%}."
    return lines


def collapse() -> list[str]:
    """Lines of Markdown: stage 3 of GPT-3 6.7B on nodes of 8 H100, tokens a second and GPU by batch and GPUs."""
    gpu, counts = find_gpu("H100"), (8, 64, 256, 1024, 4096)
    lines = [f"| sequences a GPU | 8 GPUs | {' | '.join(f'{ranks:,}' for ranks in counts[1:])} |", "|---:" * 6 + "|"]
    for batch in (1, 4, 16):
        runs = [
            RunSpec(SHAPES["GPT-3 6.7B"], ranks=ranks, stage=3, precision="bf16", micro_batch_size=batch, seq_len=2048)
            for ranks in counts
        ]
        steps = [predict_step(run, machine_of(gpu), network_of(gpu, run.ranks)) for run in runs]
        speeds = [f"{step.tokens_per_s / run.ranks:,.0f}" for run, step in zip(runs, steps, strict=True)]
        lines.append(f"| {batch} | {' | '.join(speeds)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.add_argument("--readme", action="store_true", help="write the table into benchmarks/README.md, too")
    parser.add_argument("--collapse", action="store_true", help="only stage 3 at small batches on many GPUs, predicted")
    given = parser.parse_args()
    if given.collapse:
        print("\n".join(collapse()))
        return
    lines = table(list(predict()))
    print("\n".join(lines))
    if given.readme:
        fill_readme(BEGIN, "\n".join(lines))


if __name__ == "__main__":
    main()
