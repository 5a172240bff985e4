"""What was found, as a text for people: on the screen, in a file, in an issue."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import zerolab


@dataclass(frozen=True)
class Finding:
    """A claim that was held, or not. `ok` is None where it was not tried; then `found` says why not."""

    check: str
    claim: str
    ok: bool | None
    found: str

    @property
    def word(self) -> str:
        return {True: "ok", False: "FAILED", None: "left out"}[self.ok]


@dataclass
class Outcome:
    """All findings of a check, the seconds it took, and what else it shows (Markdown)."""

    name: str
    findings: list[Finding]
    seconds: float = 0.0
    appendix: str = ""


def system(device: str) -> list[tuple[str, str]]:
    """What it was tried on: names and versions."""
    rows = [
        ("zerolab", zerolab.__version__),
        ("torch", torch.__version__),
        ("Python", platform.python_version()),
        ("system", platform.platform()),
        ("cores", str(os.cpu_count())),
    ]
    if device != "cuda":
        return [("GPUs", "none: tried on the CPU, with gloo in NCCL's place"), *rows]
    names = [torch.cuda.get_device_properties(at) for at in range(torch.cuda.device_count())]
    gpus = ", ".join(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in names)
    return [
        ("GPUs", f"{len(names)}: {gpus}"),
        ("driver", driver()),
        ("CUDA", str(torch.version.cuda)),
        ("NCCL", ".".join(map(str, torch.cuda.nccl.version()))),
        *rows,
        ("visible", os.environ.get("CUDA_VISIBLE_DEVICES", "all")),
    ]


def driver(command: Sequence[str] = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")) -> str:
    """The driver's version, as its own tool says it."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"not known ({type(error).__name__})"
    return said.stdout.split("\n")[0].strip() or "not known"


def verdict(outcomes: Sequence[Outcome]) -> str:
    """One sentence on all of them."""
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    count = {word: sum(finding.word == word for finding in findings) for word in ("ok", "FAILED", "left out")}
    failed = f"{count['FAILED']} of {count['ok'] + count['FAILED']} claims FAILED" if count["FAILED"] else ""
    held = failed or f"all {count['ok']} claims hold"
    return f"{held}; {count['left out']} left out" if count["left out"] else held


def text(rows: Sequence[tuple[str, str]], outcomes: Sequence[Outcome], title: str) -> str:
    """The whole report, in Markdown."""
    lines = [f"## {title}: {verdict(outcomes)}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    lines += ["", "| check | claim | | found |", "|---|---|---|---|"]
    for outcome in outcomes:
        for finding in outcome.findings:
            lines.append(
                "| " + " | ".join(map(cell, (finding.check, finding.claim, finding.word, finding.found))) + " |"
            )
    lines += ["", "Seconds: " + ", ".join(f"{outcome.name} {outcome.seconds:.0f}" for outcome in outcomes) + "."]
    for outcome in outcomes:
        if outcome.appendix:
            lines += ["", outcome.appendix.strip()]
    return "\n".join(lines) + "\n"


def cell(words: str) -> str:
    """Words that fit a table's cell."""
    return " ".join(words.replace("|", "\\|").split())


def way(values: dict[str, torch.Tensor], others: dict[str, torch.Tensor], first: dict[str, torch.Tensor]) -> float:
    """How far two results lie apart: the largest difference of an element, over the longest way that one went from its
    first value. 0: the same. Infinite for what is no number, and for results of other parameters."""
    if not values.keys() == others.keys() == first.keys():
        return float("inf")
    apart = max(_largest(values[name].float() - others[name].float()) for name in first)
    went = max(_largest(others[name].float() - first[name]) for name in first)
    return apart / went if apart < float("inf") and 0 < went < float("inf") else float("inf")


def _largest(difference: torch.Tensor) -> float:
    most = difference.abs().max().item() if difference.numel() else 0.0
    return most if most == most else float("inf")
