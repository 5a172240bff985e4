"""The command of `make gpu-test`: run the checks on the GPUs that are here, print a report and write it to a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from gpucheck.checks import CHECKS, FULL, SMALL, Place, carried_out
from gpucheck.report import system, text
from zerolab.ranks.job import MAX_RANKS

NO_GPU = (
    "make gpu-test: torch {version} sees no GPU here, so nothing was tried; run it on a machine with one, with a torch "
    "that is built for it (python -c 'import torch; print(torch.cuda.is_available())' must say True)."
)


def main(arguments: Sequence[str]) -> int:
    """0: all claims hold; 1: one failed; 2: nothing was tried."""
    options = make_parser().parse_args(arguments)
    gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    if options.device == "cuda" and gpus == 0:
        print(NO_GPU.format(version=torch.__version__), file=sys.stderr)
        return 2
    place = Place(options.device, gpus, FULL if gpus else SMALL, options.ranks)
    outcomes = []
    for name in options.only or CHECKS:
        print(f"{name} ...", end=" ", flush=True)
        outcome = carried_out(name, place)
        print(f"{outcome.seconds:.0f} s: {', '.join(finding.word for finding in outcome.findings)}", flush=True)
        outcomes.append(outcome)
    report = text(system(options.device), outcomes, f"zerolab on {gpus or 'no'} GPU{'s' if gpus != 1 else ''}")
    print(f"\n{report}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report)
    print(f"The report is in {options.out}; to tell of it, paste it into an issue.")
    return int(any(finding.ok is False for outcome in outcomes for finding in outcome.findings))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make gpu-test", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the checks without a GPU")
    parser.add_argument(
        "--ranks", type=ranks_from, metavar="N", help="how many (default: one a GPU; two share the only one)"
    )
    parser.add_argument("--only", choices=list(CHECKS), nargs="+", metavar="NAME", help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-report.md"), help="file of the report")
    return parser


def ranks_from(word: str) -> int:
    if not word.isdecimal() or not 2 <= int(word) <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{word!r}; give a whole number from 2 to {MAX_RANKS}")
    return int(word)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
