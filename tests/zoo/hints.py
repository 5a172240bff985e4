"""What each wrong answer is told: `python -m zoo.hints [EXERCISE ...]` lists those that are told something else than
the piece of a hint that stands with them in `wrong/`, and `--write` puts what they are told now in its place."""

from __future__ import annotations

import argparse
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor

os.environ["ZEROLAB_NIGHTLY"] = "1"

import torch

from zerolab.course.exercises import exercises_of
from zerolab.course.judge.model import read_mistakes
from zoo import ZOO, wrong_file
from zoo.trial import NAMES, hint_for


def piece_of(lesson: str, name: str, hint: str) -> str:
    """The words of a mistake that are in a hint, else the last thing that it says."""
    exercise = exercises_of(lesson)[name]
    texts = (exercise.mistakes, exercise.stuck, *(score.wastes for score in exercise.scores))
    known = [says for text in texts for says in read_mistakes(text) if says in hint]
    said = re.sub(r" \(by itself the same call is right.*", "", hint)
    return max(known, key=len, default="") or re.split(r"[:.] (?=\D)", said)[-1]


def told(key: tuple[str, str]) -> list[tuple[str, str, str]]:
    """Name, stored piece and hint of an exercise's wrong answers that are told something else."""
    torch.set_num_threads(1)
    lesson, name = key
    found = []
    for wrong in ZOO[lesson]:
        if wrong.exercise == name:
            hint = hint_for(lesson, name, wrong.source)
            if wrong.hint not in hint or not hint:
                found.append((wrong.name, wrong.hint, hint))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exercises", nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    names = [key for key in NAMES if not options.exercises or key[1] in options.exercises]
    count = 0
    with ProcessPoolExecutor(2) as pool:
        for key, found in zip(names, pool.map(told, names), strict=True):
            path = wrong_file(*key)
            parts = path.read_text("utf-8").split("=== ")
            for name, before, hint in found:
                count += 1
                print(f"{key[1]}, {name}\n  was  {before}\n  now  {hint or 'IT PASSES'}")
                at = next(place for place, part in enumerate(parts) if part.startswith(f"{name}\n"))
                _, _, rest = parts[at].split("\n", 2)
                parts[at] = f"{name}\n{piece_of(*key, hint)}\n{rest}"
            if options.write and all(hint for _, _, hint in found):
                path.write_text("=== ".join(parts), "utf-8")
    print(f"{count} of {sum(map(len, ZOO.values()))} are told something else")
    return 0


if __name__ == "__main__":
    sys.exit(main())
