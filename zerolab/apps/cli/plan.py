"""`zerolab plan`: what a run needs, whether it fits, and what to change; nothing is trained and no model is built."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.table import Table

from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser, add_flag, name_flags, with_dashes
from zerolab.apps.cli.plan_time import Timed, add_flags, check_flags
from zerolab.apps.cli.tables import rendered
from zerolab.apps.cost import GPUS, find_gpu
from zerolab.apps.dialects import DIALECTS
from zerolab.apps.plan import GB, advice, gpu_bytes, predict_memory
from zerolab.apps.plan.describe import as_settings, describe_plan, explain_table
from zerolab.apps.plan.footprint import name_changes
from zerolab.apps.plan.guide import (
    against_memory,
    against_slowness,
    count_buckets,
    kept_by_threshold,
    recommend,
    seconds_on_links,
    traffic,
    traffic_bytes,
)
from zerolab.apps.plan.mixture import parameter_count
from zerolab.apps.plan.model_lookup import FAMILIES, find_model
from zerolab.apps.plan.shapes import SHAPES
from zerolab.errors import InputError
from zerolab.memory.kinds import KINDS, OFFLOADED
from zerolab.run import RunSpec


def listed(names: Iterable[str]) -> str:
    return fill(", ".join(names), 78, initial_indent="  ", subsequent_indent="  ")


SETTINGS = {
    "ranks": 8,
    "zero_stage": 0,
    "num_distributed_optimizer_instances": 1,
    "precision": "bf16",
    "offload_optimizer": "device",
    "offload_param": "device",
    "offload_path": None,
    "batch_size": "one for each",
    "seq_len": "1024, or the model's context if it is shorter",
    "grad_accum_steps": 1,
    "defer_reduction": False,
    "checkpoint_activations": False,
    "attention": "flash",
}
"""The settings that a plan has flags for, and what help says of what they are by default."""
EXAMPLES = f"""\
models:
{listed(SHAPES)};
  a config.json of Hugging Face ({", ".join(FAMILIES)}); or sizes, as
  layers=24,hidden=2048,heads=16 and, where they differ from a GPT-2's,
  vocabulary, context, kv_heads, ffn, experts, active

GPUs:
{listed(GPUS)}

examples:
  zerolab plan --model llama-3-8b --ranks 8 --gpu H100 --recommend
  zerolab plan --model llama-3-405b --ranks 1024 --gpu H100 --zero-stage 3 --seq-len 8192 --checkpoint-activations
  zerolab plan --model ./config.json --ranks 64 --gpu-memory 40 --zero-stage 2 --json plan.json
"""


def main(arguments: list[str]) -> int:
    given = make_parser().parse_args(with_dashes(arguments))
    if given.emit is not None and given.emit not in DIALECTS:
        raise InputError(f"--emit is {given.emit!r}; choose one of {', '.join(DIALECTS)}")
    check_flags(given)
    try:
        run, limit, gpu = read(given)
    except InputError as error:
        raise InputError(name_flags(str(error), vars(given))) from None
    if given.json is not None:
        from zerolab.train.outputs import check_output, write_output

        given.json = given.json.expanduser()
        if is_same_file(given.json, given.model):
            raise InputError(f"--json is {str(given.json)!r}, which is the model's own file; name another")
        check_output("--json", given.json, 2**20)
    chosen, reasons = recommend(run, limit) if given.recommend and limit is not None else (None, [])
    if given.emit is not None and given.recommend and chosen is None:
        raise InputError("no stage fits, so there is no run to emit; see --recommend without --emit for what would")
    timed = None if given.gpu is None or run.instances > 1 else Timed(run, given)
    if given.emit is not None:
        ending.show(emitted(chosen or run, given))
        if given.emit == "deepspeed" and given.checkpoint_activations:
            ending.say(
                "zerolab plan: --checkpoint-activations is in no DeepSpeed configuration; switch it on in the model, "
                "in transformers by gradient_checkpointing_enable()"
            )
        if limit is not None and gpu_bytes(chosen or run) > limit:
            ending.say(f"zerolab plan: {verdict(chosen or run, limit, gpu)}")
    else:
        ending.show(rendered(lambda console: show(console, run, limit, gpu)))
        if timed is not None:
            ending.show(rendered(timed.show))
        elif given.gpu is not None:
            ending.show("A step's time is predicted of one instance only.\n")
        if given.recommend:
            ending.show(rendered(lambda console: show_recommended(console, run, chosen, reasons, limit)))
    if given.json is not None:
        record = describe_plan(run, limit)
        if timed is not None:
            record["time"] = timed.record()
        if given.recommend:
            record["recommended"] = {
                "run": None if chosen is None else describe_plan(chosen, limit), "reasons": reasons,
                "memory_remedies": [remedy_record(remedy, limit) for remedy in against_memory(chosen or run)],
                "seconds_on_links": seconds_on_links(chosen or run),
                "speed_remedies": [remedy_record(remedy, limit) for remedy in against_slowness(chosen or run)],
            }  # fmt: skip
        write_output("the plan", given.json, json.dumps(record, indent=1) + "\n")
    return 0


def is_same_file(written: Path, model: str) -> bool:
    """Whether a model is read from the file that is to be written."""
    read = os.path.expanduser(model)
    read = os.path.join(read, "config.json") if os.path.isdir(read) else read
    return os.path.isfile(read) and os.path.isfile(written) and os.path.samefile(read, written)


def emitted(run: RunSpec, given: Any) -> str:
    """The run in the words of a dialect. Raises InputError for what no emitted run does."""
    if run.attention != "flash":
        raise InputError(
            f"--attention is {run.attention}, and what is emitted trains with attention that keeps no scores; leave it "
            "out with --emit"
        )
    settings = as_settings(run)
    if "disk" in (run.places.optimizer, run.places.parameters):
        if given.offload_path is None:
            raise InputError("what rests on the disk needs a folder in the run that is emitted; give --offload-path")
        settings["offload_path"] = given.offload_path
    return DIALECTS[given.emit](settings)


def make_parser() -> Parser:
    parser = Parser(
        prog="zerolab plan",
        description="What one rank of a training run holds at the highest moment of a step, whether that fits into a "
        "GPU, what it sends, and the smallest change that makes it fit. Nothing is trained, no weights are needed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, help="a name, a config.json, or sizes (see below)")
    add("--gpu", metavar="NAME", help="a GPU, whose memory is the limit (see below)")
    add("--gpu-memory", type=float, metavar="GB", help="or the limit in GB, 10^9 bytes")
    for name, default in SETTINGS.items():
        add_flag(parser, name, RunSpec.model_fields[name], default)
    add("--recommend", action="store_true", help="pick a stage, say why, and what each remedy would bring")
    add("--json", type=Path, metavar="FILE", help="write everything to this file, too, for programs")
    add("--emit", metavar="DIALECT", help=f"print the run in other words, and no table: {', '.join(DIALECTS)}")
    add_flags(parser.add_argument_group("time of a step, with --gpu"))
    return parser


def read(given: Any) -> tuple[RunSpec, float | None, str]:
    """The run, the bytes of a GPU and what to call it."""
    if given.gpu is not None and given.gpu_memory is not None:
        raise InputError(f"--gpu is {given.gpu!r} and --gpu-memory {given.gpu_memory:g}; give one of the two")
    if given.gpu_memory is not None and not 0 < given.gpu_memory < float("inf"):
        raise InputError(f"--gpu-memory is {given.gpu_memory:g}; give GB above 0")
    if given.recommend and given.gpu is None and given.gpu_memory is None:
        raise InputError("--recommend needs to know the GPU; give --gpu NAME or --gpu-memory GB")
    limit, gpu = None if given.gpu_memory is None else given.gpu_memory * GB, "the GPU"
    if given.gpu is not None:
        found = find_gpu(given.gpu)
        gpu = f"an {found.name}" if found.name[0] in "AHLM" else f"a {found.name}"
        limit = float(found.memory_gb * GB)
    shape = find_model(given.model)
    settings = {name: getattr(given, name) for name in SETTINGS if getattr(given, name) is not None}
    settings.setdefault("seq_len", min(1024, shape.config.max_seq_len))
    if {"disk", "nvme"} & {given.offload_optimizer, given.offload_param}:
        # A plan writes nothing: the folder only stands for one.
        settings["offload_path"] = "."
    return RunSpec(shape, on_gpus=True, **settings), limit, gpu


def show(console: Console, run: RunSpec, limit: float | None, gpu: str) -> None:
    found = predict_memory(run)
    console.print(headline(run), soft_wrap=True)
    console.print(explain_table(run), soft_wrap=True)
    table = plain_table(f"one GPU at the peak of a step ({found.peak.where})", "kind", "GB", "rests")
    for kind in KINDS:
        if nbytes := found.peak.bytes.get(kind):
            table.add_row(kind.replace("_", " "), gb(nbytes), "from step to step" if kind in found.states else "")
    table.add_row("total", gb(found.peak.total), "")
    console.print(table)
    away = {kind: size for kind, size in found.states.items() if kind.startswith(OFFLOADED) and size}
    if away:
        table = plain_table("a rank's states outside its GPU", "place", "kind", "GB")
        for kind, nbytes in away.items():
            place, _, name = kind.partition(":")
            table.add_row(place, name.replace("_", " "), gb(nbytes))
        console.print(table)
    if sent := traffic(run):
        table = plain_table("sent by a rank in a step (rings)", "phase", "collective", "GB")
        for phase, calls in sent.items():
            for name, nbytes in calls.items():
                table.add_row(phase, name, gb(nbytes))
        table.add_row("total", "", gb(traffic_bytes(run)))
        console.print(table)
    console.print(verdict(run, limit, gpu), soft_wrap=True)
    fp8 = ", 8-bit copies of linear layers" if run.dtypes is not None and run.dtypes.fp8 else ""
    console.print(
        "Not counted: what the allocator loses between tensors, the CUDA context, NCCL's buffers"
        f"{fp8}; leave a few GB free.",
        soft_wrap=True,
    )


def headline(run: RunSpec) -> str:
    batch = f"{run.micro_batches} x {run.micro_batch_size}" if run.micro_batches > 1 else str(run.micro_batch_size)
    what = f"{run.model_name}: {parameter_count(run.architecture):,} parameters; {run.ranks} ranks at stage {run.stage}"
    recipe = run.precision if isinstance(run.precision, str) else "fp32"
    what += f" in {run.instances} instances" if run.instances > 1 else ""
    how = ", activations recomputed" if run.checkpoint_activations else ""
    return f"{what}, {recipe}; {batch} x {run.seq_len} tokens a rank, {run.attention} attention{how}"


def verdict(run: RunSpec, limit: float | None, gpu: str) -> str:
    needed = gpu_bytes(run)
    if limit is None:
        return f"A GPU needs {gb(needed)} GB. (--gpu or --gpu-memory says whether that fits, and what would.)"
    if needed <= limit:
        return f"Fits: {gb(needed)} GB of the {limit / GB:g} GB of {gpu}."
    found = advice(run, limit)
    does_not = f"Does not fit: {gb(needed)} GB are more than the {limit / GB:g} GB of {gpu}"
    if found is None:
        return f"{does_not}, and no stage on up to 8192 ranks makes it fit."
    what = " and ".join(name_changes(run, found))
    return f"{does_not}. The smallest change that fits: {what}, {gb(gpu_bytes(found))} GB."


def show_recommended(
    console: Console, run: RunSpec, chosen: RunSpec | None, reasons: list[str], limit: float | None
) -> None:
    assert limit is not None
    console.print(f"\nRecommended: {'nothing of all this' if chosen is None else f'stage {chosen.stage}'}")
    for reason in reasons:
        console.print(f"  {reason}", soft_wrap=True)
    base = chosen or run.but(stage=3)
    for title, remedies in (
        ("if memory runs out", against_memory(base)),
        ("if it is too slow", against_slowness(base)),
    ):
        table = plain_table(f"{title}: each change alone", "change", "GB", "by", "fits", "sent, GB", "and")
        table.add_row(
            "as recommended" if chosen else "stage 3", gb(gpu_bytes(base)), "", "", gb(traffic_bytes(base)), ""
        )
        for remedy in remedies:
            needed = gpu_bytes(remedy.run)
            by = f"{(needed - gpu_bytes(base)) / GB:+.2f}"
            sent = gb(traffic_bytes(remedy.run))
            table.add_row(remedy.what, gb(needed), by, "yes" if needed <= limit else "no", sent, remedy.note)
        if table.row_count > 1:
            console.print(table)
    console.print(
        "On a link alone, with all computing hidden behind it, the bytes of a step take "
        + ", ".join(f"{seconds:.3g} s ({link})" for link, seconds in seconds_on_links(base).items())
        + "; overlap_comm changes no byte and hides at most the shorter of the two.",
        soft_wrap=True,
    )
    for numel in (None, 500_000_000, 50_000_000):
        count, largest = count_buckets(base, numel)
        what = "whole units (the default)" if numel is None else f"at most {numel:.0e} elements"
        console.print(f"Buckets of {what}: {count} a step, the largest of {largest:,} elements.", soft_wrap=True)
    if base.stage == 3:
        console.print(
            f"A persistence threshold of 100,000 elements keeps {kept_by_threshold(base) / GB:.4f} GB whole; it is "
            "DeepSpeed's default, so setting it to that frees nothing.",
            soft_wrap=True,
        )


def remedy_record(remedy: Any, limit: float | None) -> dict[str, Any]:
    needed = gpu_bytes(remedy.run)
    return {
        "change": remedy.what, "gpu_bytes": needed, "fits": None if limit is None else needed <= limit,
        "sent_bytes": traffic_bytes(remedy.run), "note": remedy.note,
    }  # fmt: skip


def plain_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        numbers = name in ("GB", "by", "sent, GB")
        table.add_column(name, justify="right" if numbers else "left", no_wrap=name not in ("and", "change"))
    return table


def gb(nbytes: float) -> str:
    """GB with two digits behind the point, or more where that would be nought."""
    return f"{nbytes / GB:,.2f}" if nbytes >= GB / 100 else f"{nbytes / GB:.2g}"
