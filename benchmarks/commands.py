"""What a command takes from its start to its end, compared with what importing torch takes.

    python -m benchmarks.commands                        this checkout
    python -m benchmarks.commands --old ../before        and another one, in the same rounds

Method. Each command is a new process; what it prints goes nowhere. In each round every command runs once, first on the
other checkout, if there is one, then on this one, after `python -c "import torch"`; the first round, in which files
come from the disk, does not count. Times are medians in seconds, with the smallest and the largest; `of torch` is the
median over the rounds of a command's time divided by that of the import in the same round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SAVED = "train --world lockstep --ranks 1 --model-size nano --max-steps 1 --save-folder"
COMMANDS = {
    "import torch": "",
    "--help": "--help",
    "train --help": "train --help",
    "plan --help": "plan --help",
    "sweep --help": "sweep --help",
    "train, a flag refused": "train --min-lr 1",
    "checkpoint show": "checkpoint show {saved}",
    "plan": "plan --model llama-3-8b --ranks 8 --gpu H100",
    "plan --recommend": "plan --model llama-3-8b --ranks 8 --gpu H100 --recommend",
    "train, 2 steps, 2 ranks": "train --model-size nano --max-steps 2 --ranks 2",
}
"""What is run, by the name that the table has for it."""


def run(arguments: str, checkout: Path) -> float:
    """Seconds of one command of a checkout; without arguments of the import of torch."""
    words = ["-m", "zerolab", *arguments.split()] if arguments else ["-c", "import torch"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=checkout, env=environment, capture_output=True, check=False)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="another checkout, to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    checkouts = [*([options.old.resolve()] if options.old else []), HERE]
    seconds: dict[tuple[str, Path], list[float]] = {}
    with tempfile.TemporaryDirectory() as saved:
        run(f"{SAVED} {saved}", HERE)
        for number in range(options.rounds + 1):
            for name, command in COMMANDS.items():
                for checkout in checkouts:
                    took = run(command.format(saved=saved), checkout)
                    if number:
                        seconds.setdefault((name, checkout), []).append(took)
    print(table(seconds, checkouts))


def table(seconds: dict[tuple[str, Path], list[float]], checkouts: list[Path]) -> str:
    """Markdown; with another checkout, its times come first."""
    names = ["before", "now"][-len(checkouts) :]
    columns = ["command", *names, *(f"of torch, {name}" for name in names)]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in COMMANDS:
        of_each = [seconds[name, checkout] for checkout in checkouts]
        torch = [seconds["import torch", checkout] for checkout in checkouts]
        cells = [f"{statistics.median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in of_each]
        for one, base in zip(of_each, torch, strict=True):
            ratios = [took / imported for took, imported in zip(one, base, strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}")
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
