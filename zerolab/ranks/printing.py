"""What ranks print, shown by the parent: whole lines, in rank order, so that output is the same every time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from zerolab.errors import RankError
from zerolab.ranks.job import Job

MODES = ("ranked", "quiet")


def format_ranked(texts: Sequence[str]) -> str:
    """All lines of rank 0, then of rank 1, and so on; with the rank before each line if several ranks print."""
    several = sum(map(bool, texts)) > 1
    return "\n".join(
        f"rank {rank} | {line}" if several else line for rank, text in enumerate(texts) for line in split_lines(text)
    )


def split_lines(text: str) -> list[str]:
    """The lines of a text as a terminal has them. (`splitlines` also parts at form feeds and the like.)"""
    parts = re.split(r"\r\n|\n|\r", text)
    return parts if parts[-1] else parts[:-1]


@contextmanager
def show_prints(job: Job, read: Callable[[], list[str]]) -> Iterator[list[str]]:
    """The block is the launch. After it the list has what each rank has printed, and so has its RankError."""
    texts: list[str] = []
    try:
        yield texts
    except RankError as error:
        error.printed = texts
        raise
    finally:
        texts += read()
        if job.prints == "ranked" and (shown := format_ranked(texts)):
            print(shown, flush=True)
