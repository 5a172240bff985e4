"""`zerolab plan`: what a run needs, whether it fits, and what to change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import fill
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from zerolab.apps.cli.flags import Flags, name_flags
from zerolab.apps.cost.gpus import GB, GPUS, find_gpu
from zerolab.apps.dialects import DIALECTS
from zerolab.apps.plan.model_lookup import FAMILIES, find_model
from zerolab.apps.plan.shapes import SHAPES
from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.run.spec import Count, Level, Speed, flag
from zerolab.train.outputs import check_output


def wrap_names(names: Iterable[str]) -> str:
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
"""The settings that a plan has flags for, with their defaults."""
EXAMPLES = f"""\
models:
{wrap_names(SHAPES)};
  a config.json of Hugging Face ({", ".join(FAMILIES)}); or sizes, as
  layers=24,hidden=2048,heads=16 and, where they differ from a GPT-2's,
  vocabulary, context, kv_heads, ffn, experts, active

GPUs:
{wrap_names(GPUS)}

  zerolab plan --model llama-3-8b --ranks 8 --gpu H100 --recommend
"""


Share = Annotated[float, Field(gt=0, le=1)]


class PlanFlags(Flags):
    """What one rank of a run holds at most and sends, whether that fits into a GPU, and what would."""

    # The settings of the run are beside these, as they were given.
    model_config = ConfigDict(extra="allow")

    links: ClassVar[tuple[str, ...]] = ("node_size", "link_gbit_per_s", "link_latency_us", "cards", "algorithm")
    model: str = flag("a name, a config.json, or sizes (see below)", ...)
    gpu: str | None = flag("a GPU, whose memory is the limit (see below)")
    gpu_memory: Speed | None = flag("or the limit in GB, 10^9 bytes")
    recommend: bool = flag("pick a stage, and say why", False)
    json_: Path | None = flag("write all to this file, too")
    emit: str | None = flag(f"print the run for {', '.join(DIALECTS)}")
    node_size: Count | None = flag("with --gpu: GPUs of a node (default: 8)")
    link_gbit_per_s: Speed | None = flag("gigabits a second of a card (default: 400)")
    link_latency_us: Level | None = flag("its microseconds a message (default: 14)")
    cards: Count | None = flag("network cards of a node (default: one a GPU)")
    algorithm: Literal["ring", "hierarchical", "best"] | None = flag("of collectives over nodes (default: ring)")
    reached: Share | None = flag("share of the GPU's peak that matrix products reach")


def main(arguments: list[str]) -> int:
    of_run = {name: (RunSpec.model_fields[name], default) for name, default in SETTINGS.items()}
    given = PlanFlags.read("zerolab plan", arguments, of_run, epilog=EXAMPLES)
    if given.emit is not None and given.emit not in DIALECTS:
        raise InputError(f"--emit is {given.emit!r}; choose one of {', '.join(DIALECTS)}")
    try:
        run, limit, gpu = read(given)
    except InputError as error:
        raise InputError(name_flags(str(error), [*SETTINGS, *PlanFlags.model_fields])) from None
    if given.emit is not None and run.attention != "flash":
        raise InputError(f"--attention is {run.attention}, and what is emitted keeps no scores; leave it out")
    if given.emit is not None and run.places.on_disk and "offload_path" not in (given.model_extra or {}):
        raise InputError("what rests on the disk needs a folder there; give --offload-path")
    file = given.json_ and given.json_.expanduser()
    if file is not None:
        model = Path(given.model).expanduser()
        if file.exists() and any(one.exists() and file.samefile(one) for one in (model, model / "config.json")):
            raise InputError(f"--json is {str(file)!r}, which is the model's own file; name another")
        check_output("--json", file, 2**20)
    # All of the rest takes torch.
    from zerolab.apps.cli.plan_text import plan

    plan(given, run, limit, gpu, file)
    return 0


def read(given: PlanFlags) -> tuple[RunSpec, float | None, str]:
    if given.gpu is not None and given.gpu_memory is not None:
        raise InputError(f"--gpu is {given.gpu!r} and --gpu-memory {given.gpu_memory:g}; give one of the two")
    if given.recommend and given.gpu is None and given.gpu_memory is None:
        raise InputError("--recommend needs to know the GPU; give --gpu NAME or --gpu-memory GB")
    if given.gpu is None and (asked := given.model_fields_set & {*given.links, "reached"}):
        name = min(asked).replace("_", "-")
        raise InputError(f"--{name} is given and no GPU; give --gpu NAME")
    limit, gpu = None if given.gpu_memory is None else given.gpu_memory * GB, "the GPU"
    if given.gpu is not None:
        found = find_gpu(given.gpu)
        gpu = f"an {found.name}" if found.name[0] in "AHLM" else f"a {found.name}"
        limit = float(found.memory_gb * GB)
    shape = find_model(given.model)
    settings = dict(given.model_extra or {})
    settings.setdefault("seq_len", min(1024, shape.config.max_seq_len))
    if {"disk", "nvme"} & {settings.get("offload_optimizer"), settings.get("offload_param")}:
        # A plan writes nothing: the folder only stands for one.
        settings.setdefault("offload_path", ".")
    return RunSpec(shape, on_gpus=True, **settings), limit, gpu
