"""What ranks print, shown by the parent: whole lines, in rank order, so that output is the same every time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from zerolab.errors import RankError
from zerolab.ranks.job import Job

MODES = ("ranked", "live", "quiet")


def format_ranked(texts: Sequence[str], several: bool | None = None) -> str:
    """All lines of rank 0, then of rank 1, and so on; with the rank before each line if `several` ranks print."""
    if several is None:
        several = sum(map(bool, texts)) > 1
    return "\n".join(
        f"rank {rank} | {line}" if several else line for rank, text in enumerate(texts) for line in split_lines(text)
    )


def split_lines(text: str) -> list[str]:
    """The lines of a text as a terminal has them. (`splitlines` also parts at form feeds and the like.)"""
    parts = re.split(r"\r\n|\n|\r", text)
    return parts if parts[-1] else parts[:-1]


class Printer:
    """Shows what a job's ranks print, as its `prints` says; `read` returns the text of each so far."""

    def __init__(self, job: Job, read: Callable[[], list[str]]) -> None:
        self._mode, self._read = job.prints, read
        self._shown = [0 for _ in read()]
        self.texts: list[str] = []

    @contextmanager
    def showing(self) -> Iterator[None]:
        """The block is the launch: after it, `texts` has what ranks have printed, and so has its RankError."""
        try:
            yield
        except RankError as error:
            error.printed = self._read()
            raise
        finally:
            self.finish()

    def follow(self) -> None:
        """Show the whole lines that came since the last call."""
        if self._mode == "live":
            self._show([text[: text.rfind("\n") + 1] for text in self._read()])

    def finish(self) -> None:
        """Show what is left to show."""
        self.texts = self._read()
        if self._mode != "quiet":
            self._show(self.texts)

    def _show(self, texts: list[str]) -> None:
        new = [text[shown:] for text, shown in zip(texts, self._shown, strict=True)]
        self._shown = [max(shown, len(text)) for text, shown in zip(texts, self._shown, strict=True)]
        # Live, each line has its rank, also one that its rank has not ended.
        if left := format_ranked(new, len(texts) > 1 if self._mode == "live" else None):
            print(left, flush=True)
