"""What `zerolab plan` says of time: a step at each stage."""

from __future__ import annotations

import argparse
import sys
from math import inf
from typing import Any

from rich.console import Console
from rich.table import Table

from zerolab.apps.cost import GPU, Machine, Network, find_gpu, machine_of
from zerolab.apps.cost.gpus import LINK_EFFICIENCY
from zerolab.apps.cost.network import ALGORITHMS
from zerolab.apps.plan.footprint import GB, at_stage, gpu_bytes
from zerolab.apps.plan.timing import StepTime, network_of, predict_step
from zerolab.errors import InputError
from zerolab.precision import Precision
from zerolab.run import RunSpec

FLAGS = ("node_size", "link_gbit_per_s", "link_latency_us", "cards", "algorithm", "reached")


def add_flags(group: Any) -> None:
    """The flags of time, all without effect unless --gpu names one."""
    add = group.add_argument
    add("--node-size", type=int, metavar="G", help="GPUs of a node (8)")
    add("--link-gbit-per-s", type=float, metavar="B", help="gigabits a second of a network card (400)")
    add("--link-latency-us", type=float, metavar="A", help="microseconds of a message between nodes (14)")
    add("--cards", type=int, metavar="C", help="network cards of a node, shared by its GPUs (one a GPU)")
    add("--algorithm", choices=ALGORITHMS, help="of collectives over nodes (ring)")
    add("--reached", type=float, metavar="R", help="share of the GPU's peak that large matrix products reach")


RANGES = {
    "node_size": (1, inf, "give a whole number of at least 1"),
    "cards": (1, inf, "give a whole number of at least 1"),
    "link_gbit_per_s": (sys.float_info.min, inf, "give a bandwidth above 0, in gigabits a second"),
    "link_latency_us": (0, inf, "give 0 or more microseconds"),
    "reached": (sys.float_info.min, 1, "give a share of the peak above 0, of at most 1"),
}
"""Flags with the least and the most that they may say, also where a run has no use for them."""


def check_flags(given: argparse.Namespace) -> None:
    """Refuse flags that say something of GPUs that are not named, and values that cannot be."""
    for name, (least, most, wanted) in RANGES.items():
        value = getattr(given, name)
        if value is not None and not (least <= value <= most and value < inf):
            raise InputError(f"--{name.replace('_', '-')} is {value:g}; {wanted}")
    asked = [name for name in FLAGS if getattr(given, name) is not None]
    if asked and given.gpu is None:
        flag = "--" + asked[0].replace("_", "-")
        raise InputError(f"{flag} is given and no GPU, whose speed a step's time needs; give --gpu NAME")


class Timed:
    """The times of a run on a GPU by name."""

    def __init__(self, run: RunSpec, given: argparse.Namespace) -> None:
        self.gpu: GPU = find_gpu(given.gpu)
        self.run = run
        names = ("node_size", "link_latency_us", "cards", "algorithm")
        options = {name.removeprefix("link_"): getattr(given, name) for name in names}
        options["gbit_per_s"] = given.link_gbit_per_s
        self.machine = machine_of(self.gpu, given.reached)
        self.network = network_of(self.gpu, run.ranks, **{k: v for k, v in options.items() if v is not None})
        stages = (run.dtypes or Precision()).stages
        self.stages = {stage: predict_step(at_stage(run, stage), self.machine, self.network) for stage in stages}

    def show(self, console: Console) -> None:
        title = f"a step on {self.run.ranks} {self.gpu.name}, predicted"
        table = Table(title=title, title_justify="left")
        table.add_column("stage")
        for name in ("seconds", "tokens/s", "MFU", "waits, s", "wire, s", "GB", "fits"):
            table.add_column(name, justify="right", no_wrap=True)
        for stage, step in self.stages.items():
            needed = gpu_bytes(at_stage(self.run, stage)) / GB
            mfu = "" if step.mfu is None else f"{step.mfu:.1%}"
            table.add_row(
                f"{stage}{' *' if stage == self.run.stage else ''}", seconds(step.seconds),
                f"{step.tokens_per_s:,.0f}", mfu, seconds(step.exposed), seconds(step.communication),
                f"{needed:,.1f}", "yes" if needed <= self.gpu.memory_gb else "no",
            )  # fmt: skip
        console.print(table)
        console.print("Waits: for collectives, which take the wire so long, most of it beside what is computed.")
        console.print(links_in_words(self.network, self.machine, self.gpu), soft_wrap=True)

    def record(self) -> dict[str, Any]:
        """The same for programs: seconds, tokens a second, shares."""
        return {
            "gpu": self.gpu.name,
            "network": network_record(self.network),
            "by_stage": {str(stage): step_record(step) for stage, step in self.stages.items()},
        }


def step_record(step: StepTime) -> dict[str, Any]:
    return {
        "seconds": step.seconds, "tokens_per_s": step.tokens_per_s, "mfu": step.mfu, "spent": step.time_breakdown,
        "exposed_communication": step.exposed, "communication": step.communication,
    }  # fmt: skip


def network_record(network: Network) -> dict[str, Any]:
    between = network.between
    return {
        "inside_gbit_per_s": network.inside.gbit_per_s, "inside_latency_us": network.inside.latency_us,
        "between_gbit_per_s": between and between.gbit_per_s, "between_latency_us": between and between.latency_us,
        "node_size": network.node_size, "cards": network.cards, "algorithm": network.algorithm,
    }  # fmt: skip


def links_in_words(network: Network, machine: Machine, gpu: GPU) -> str:
    reached = machine.flop["matmul", 2].points[0][1] / 1e12
    said = (
        f"Taken: {reached:.3g} of the {gpu.tflop_per_s:g} TFLOP/s that its data sheet has for 16-bit products "
        f"(--reached), {LINK_EFFICIENCY:.0%} of each link: {network.inside.gbit_per_s:g} Gbit/s inside a node"
    )
    if network.between is not None:
        said += (
            f", {network.cards} x {network.between.gbit_per_s:g} between nodes of {network.node_size}, "
            f"{network.between.latency_us:g} us a message"
        )
    return said + ". benchmarks/README.md says how far such predictions are off."


def seconds(value: float) -> str:
    """Seconds with three digits that count."""
    return f"{value:.3g}" if value else "0"
