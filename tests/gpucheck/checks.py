"""The checks: each trains on real ranks, compares, and says what it found beside its limit."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpucheck import training
from gpucheck.report import Finding, Outcome, way
from gpucheck.streams import STREAMS, host_waits
from gpucheck.training import Parameters, Size
from zerolab.offload import Offload
from zerolab.ranks import launch

STAGES = (0, 1, 2, 3)
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240.0
"""Until a launch of a check is given up; a hang is then named."""
COMMAND_SECONDS = 900.0
"""The same of a command, which may start many."""

ROUNDING = 1e-3
"""How far results of two orders of addition may lie apart, by `report.way`: float32 rounds in the seventh digit, and
six steps make of it a few of the fifth. One gradient that is missing, stale or not averaged makes a tenth or more."""
ROUNDING_BF16 = 5e-2
"""The same where a difference in the last digit of float32 may be one in the third of bfloat16."""


FULL = Size()
SMALL = Size(width=16, layers=2, length=8, rows=8, steps=3)
"""What trains on a CPU in a moment."""


@dataclass(frozen=True)
class Place:
    """Where the checks run: on the GPUs that there are, or, to try the checks, on the CPU."""

    device: str
    gpus: int
    size: Size = FULL
    ranks_wanted: int | None = None

    @property
    def ranks(self) -> int:
        """Of our engine: one alone would shard nothing, so two share the only GPU."""
        return self.ranks_wanted or max(2, self.gpus)

    @property
    def joined(self) -> bool:
        """Whether torch's own collectives join these ranks: NCCL wants a GPU for each; on the CPU it is gloo."""
        return self.device == "cpu" or self.ranks <= self.gpus

    @property
    def impls(self) -> tuple[str, ...]:
        return ("torch", "ring") if self.joined else ("ring",)

    @property
    def peers(self) -> int:
        """Ranks of DDP and FSDP2, which cannot share a GPU; together they see the same batches."""
        return self.ranks if self.joined else 1

    def start(self, fn: Callable[..., Any], *args: Any, ranks: int | None = None, **kwargs: Any) -> Any:
        """What `fn` returns on each rank."""
        return launch(
            fn, self.size, *args, kwargs=kwargs, ranks=ranks or self.ranks, collectives="transport",
            device=self.device, timeout=SECONDS, collective_timeout=60.0, prints="quiet",
            env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        )  # fmt: skip

    def words(self, impl: str) -> str:
        return {"torch": "NCCL" if self.device == "cuda" else "gloo"}.get(impl, impl)


Check = Callable[[Place], Outcome]


def largest(by_rank: Sequence[list[Parameters]], others: list[Parameters], first: Parameters) -> list[float]:
    """By stage, the largest distance on any rank."""
    return [max(way(of[at], others[at], first) for of in by_rank) for at in range(len(others))]


def spread(name: str, claim: str, distances: Sequence[float], limit: float) -> Finding:
    shown = ", ".join(f"{distance:.1e}" for distance in distances)
    return Finding(name, claim, max(distances) <= limit, f"{shown} (at most {limit:g})")


def beside_torch(place: Place) -> Outcome:
    """Every stage ends where DDP and FSDP2 do."""
    name, first = "beside torch", training.first_values(place.size)
    kinds = set(launch(training.kind, place.size, ranks=place.ranks, device=place.device, timeout=SECONDS))
    taken = {"cuda": "TorchCollectives" if place.joined else "RingCollectives", "cpu": "SharedMemoryCollectives"}
    findings = [
        Finding(name, f'collectives "auto" are {taken[place.device]}', kinds == {taken[place.device]}, ", ".join(kinds))
    ]
    peers = place.start(training.peers, training.PEERS, ranks=place.peers)[0]
    for impl in place.impls:
        on = f"{place.ranks} ranks, {place.words(impl)}"
        found = place.start(training.ours, impl, STAGES)
        distances = largest(found, [peers["DDP"]] * 4, first)
        findings.append(spread(name, f"stages 0 to 3 end where DDP does ({on})", distances, ROUNDING))
        for stage, peer in ((2, "FSDP2, no reshard"), (3, "FSDP2")):
            distance = max(way(of[stage], peers[peer], first) for of in found)
            findings.append(spread(name, f"stage {stage} ends where {peer} does ({on})", [distance], ROUNDING))
        of_bf16 = place.start(training.ours, impl, (3,), precision="fsdp2")
        # What the engine hands out is what it computes with: the main parameters, rounded.
        rounded = {key: value.bfloat16() for key, value in peers["FSDP2, bf16"].items()}
        apart = largest(of_bf16, [rounded], first)
        findings.append(
            spread(name, f'stage 3 with precision "fsdp2" ends where FSDP2 in bf16 does ({on})', apart, ROUNDING_BF16)
        )
    return Outcome(name, findings)


EXACT: dict[str, dict[str, Any]] = {
    "fp32": {},
    "accumulation, clipping, checkpointing, gathers behind the step": {
        "micro_batches": 2, "clip_norm": 0.2, "checkpoint": True, "overlap_gather": True,
    },
    **{name: {"precision": name} for name in ("bf16", "fp16", "fp8", "bf16_fp8_moments")},
}  # fmt: skip


def same_bits(place: Place) -> Outcome:
    """Over the ring, whose order of addition is fixed, all stages end with the same bits, in each precision."""
    name, findings = "same bits", []
    for case, settings in EXACT.items():
        found = place.start(training.ours, "ring", STAGES, exact=True, by=training.adamw, **settings)
        same = all(equal(of[stage], found[0][0]) for of in found for stage in STAGES)
        claim = f"stages 0 to 3 end with the same bits (ring, {place.ranks} ranks; {case})"
        findings.append(Finding(name, claim, same, "the same" if same else "other bits"))
    return Outcome(name, findings)


def equal(one: Parameters, other: Parameters) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def offload(place: Place) -> Outcome:
    """Host and disk change no bit of what is stepped there."""
    name, findings = "offload", []
    with tempfile.TemporaryDirectory() as folder:
        tiers = (("host", "device"), ("host", "host"), ("disk", "device"), ("disk", "disk"))
        found = [
            place.start(
                training.ours,
                "ring",
                (3,),
                exact=True,
                by=training.adamw,
                offload=Offload(*of, path=Path(folder), sub_group_numel=50_000),
            )
            for of in tiers
        ]
    for of, ended in zip(tiers[1:], found[1:], strict=True):
        same = all(equal(ours[0], found[0][0][0]) for ours in ended)
        claim = f"optimizer on the {of[0]}, parameters on the {of[1]}: the bits of the optimizer on the host"
        findings.append(Finding(name, claim, same, "the same" if same else "other bits"))
    return Outcome(name, findings)


def late_streams(place: Place) -> Outcome:
    """A stream that is late changes nothing: whoever needs what it does waits for it."""
    name = "late streams"
    if place.device == "cpu":
        return Outcome(name, [Finding(name, "a stream that is late changes nothing", None, "a CPU has no streams")])
    findings, first = [], training.first_values(place.size)
    for impl in place.impls:
        limit = 0.0 if impl == "ring" else ROUNDING
        calm = place.start(training.ours, impl, STAGES, exact=True)
        for slow in STREAMS:
            found = place.start(training.ours, impl, STAGES, slow, exact=True)
            distances = largest(found, calm[0], first)
            claim = f"the stream of the {slow} is late: stages 0 to 3 end where they do ({place.words(impl)})"
            findings.append(spread(name, claim.replace("the computing", "what computes"), distances, limit))
    return Outcome(name, findings)


WAITING: dict[str, dict[str, Any]] = {
    **{f"stage {stage}": {"stage": stage} for stage in STAGES},
    **{f"stage {stage}, clipped": {"stage": stage, "clip_norm": 0.1} for stage in STAGES},
    "stage 3, bf16": {"stage": 3, "precision": "bf16", "clip_norm": 0.1},
    "stage 3, fp8": {"stage": 3, "precision": "fp8", "clip_norm": 0.1},
}


def host_waits_once(place: Place) -> Outcome:
    """The host waits for the GPU at most once a step: a wait empties the GPU's queue."""
    name = "host waits"
    claim = "the host waits for the GPU at most once a step"
    if place.device == "cpu":
        return Outcome(name, [Finding(name, claim, None, "a CPU is not waited for")])
    # Ranks that share a GPU wait for each message, which goes by the host: there one rank is looked at alone.
    ranks, impls = (place.ranks, place.impls) if place.joined else (1, ("torch",))
    findings = []
    for impl in impls:
        found = place.start(training.waits, impl, tuple(WAITING.values()), host_waits, ranks=ranks)
        for at, case in enumerate(WAITING):
            most = max((of[at] for of in found), key=lambda seen: sum(seen.values()))
            where = ", ".join(f"{site} {count}" for site, count in most.items())
            findings.append(
                Finding(
                    name,
                    f"{claim} ({case}, {place.words(impl)}, {ranks} rank{'s' * (ranks > 1)})",
                    sum(most.values()) <= 1,
                    f"{sum(most.values())}: {where or 'nowhere'}",
                )
            )
    return Outcome(name, findings)


BLOCK = 512
"""Bytes to which torch's allocator rounds up each tensor."""


def memory(place: Place) -> Outcome:
    """What the layout predicts is what torch's allocator has; and the peaks beside those of DDP and FSDP2."""
    name = "memory"
    if place.device == "cpu":
        return Outcome(name, [Finding(name, "the allocator has what is predicted", None, "it is the GPU's allocator")])
    impl = place.impls[0]
    by_rank = place.start(training.our_memory, impl, STAGES)
    findings, rows = [], []
    for stage in STAGES:
        of = max((found[stage] for found in by_rank), key=lambda found: found["peak"])
        rows.append((f"stage {stage} ({place.ranks} ranks)", of))
        findings.append(kept_as_predicted(stage, of))
    names = training.PEERS[:3]
    by_rank = place.start(training.peers_memory, names, ranks=place.peers)
    for peer in names:
        rows.append((f"{peer} ({place.peers} ranks)", max((of[peer] for of in by_rank), key=lambda of: of["peak"])))
    peaks = [of["peak"] for _, of in rows]
    findings.append(
        Finding(
            name,
            "the peak of stage 3 is below that of stage 0",
            peaks[3] < peaks[0],
            f"{peaks[3] / 1e6:.1f} MB and {peaks[0] / 1e6:.1f} MB",
        )
    )
    lines = [
        "Bytes on a GPU, in MB, by `torch.cuda.memory_allocated`:",
        "",
        "| | kept | predicted | peak | our ledger |",
        "|---|---|---|---|---|",
    ]
    for title, of in rows:
        cells = [f"{of[key] / 1e6:.2f}" if key in of else "" for key in ("kept", "predicted", "peak", "ledger")]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return Outcome(name, findings, appendix="\n".join(lines))


def kept_as_predicted(stage: int, of: dict[str, int]) -> Finding:
    """Between steps a rank keeps its states, the model's buffers and a batch, and each tensor ends at a block."""
    wanted = of["predicted"] + of["buffers"]
    most = wanted * 1.02 + 1000 * BLOCK
    found = f"{of['kept'] / 1e6:.2f} MB; predicted {of['predicted'] / 1e6:.2f}, at most {most / 1e6:.2f}"
    return Finding("memory", f"stage {stage} keeps what is predicted", of["predicted"] <= of["kept"] <= most, found)


def torchrun(place: Place) -> Outcome:
    """The command as one starts it on GPUs; its losses are those of ranks that `launch` starts."""
    name = "torchrun"
    command = ["zerolab", "train", "--zero-stage", "3", "--max-steps", "5", "--device", place.device]
    start = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(place.ranks), "-m"]
    claim = f"torchrun --nproc_per_node {place.ranks} -m {' '.join(command)}: the losses of `launch`"
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for at, before in enumerate((start, [])):
            profile = Path(folder, f"{at}.json")
            words = [
                *before,
                *command,
                "--profile-json",
                str(profile),
                *([] if before else ["--ranks", str(place.ranks)]),
            ]
            ended = run([sys.executable, "-m", *words])
            if ended.returncode:
                said = last_words(ended.stderr)
                return Outcome(name, [Finding(name, claim, False, f"status {ended.returncode}: {said}")])
            found.append(json.loads(profile.read_text()))
    apart = max(abs(a - b) for a, b in zip(found[0]["loss"], found[1]["loss"], strict=True))
    stated = "NCCL's or gloo's own collectives" if found[0]["traffic_is_stated"] else "our own collectives"
    return Outcome(name, [Finding(name, claim, apart <= 1e-3, f"{apart:.1e} apart (at most 0.001), by {stated}")])


def peers_timed(place: Place) -> Outcome:
    """`benchmarks.peers`: steps and memory beside torch's engines. Figures, no limit but that it ends."""
    name = "benchmarks.peers"
    ranks, workload = place.ranks if place.joined else 1, "stack" if place.size == FULL else "nothing"
    words = [name, "--device", place.device, "--ranks", str(ranks), "--workload", workload, "--rounds", "1"]
    ended = run([sys.executable, "-m", *words, "--steps", "5"])
    claim = f"python -m {' '.join(words)} --steps 5 ends"
    found = last_words(ended.stderr) if ended.returncode else "the tables below"
    return Outcome(name, [Finding(name, claim, not ended.returncode, found)], appendix=ended.stdout)


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command at the root of the repository."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"did not end within {COMMAND_SECONDS:g} s")


def last_words(text: str) -> str:
    """The end of what a command said, for a table's cell."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:] or "nothing said"


CHECKS: dict[str, Check] = {
    "beside torch": beside_torch,
    "same bits": same_bits,
    "offload": offload,
    "late streams": late_streams,
    "host waits": host_waits_once,
    "memory": memory,
    "torchrun": torchrun,
    "benchmarks.peers": peers_timed,
}


def carried_out(name: str, place: Place) -> Outcome:
    """A check by its name. One that raises has failed, and says how; the others go on."""
    begin = time.perf_counter()
    try:
        outcome = CHECKS[name](place)
    except Exception as error:
        outcome = Outcome(name, [Finding(name, "ends", False, f"{type(error).__name__}: {str(error)[:600]}")])
    outcome.seconds = time.perf_counter() - begin
    return outcome
