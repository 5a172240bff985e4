"""What ranks print, shown by the parent: whole lines, in rank order, so that output is the same every time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

MODES = ("ranked", "live", "quiet")


def ranked(texts: Sequence[str], several: bool | None = None) -> str:
    """All lines of rank 0, then of rank 1, and so on; with the rank before each line if `several` ranks print. Whether
    they do is seen by the texts, if it is not said."""
    if several is None:
        several = sum(map(bool, texts)) > 1
    return "\n".join(
        f"rank {rank} | {line}" if several else line for rank, text in enumerate(texts) for line in lines(text)
    )


def lines(text: str) -> list[str]:
    """The lines of a text as a terminal has them. (`splitlines` also parts at form feeds and the like.)"""
    parts = re.split(r"\r\n|\n|\r", text)
    return parts if parts[-1] else parts[:-1]


class Printer:
    """Shows what `ranks` ranks print; `read` returns the text of each so far. `mode`: "ranked" shows all at the end,
    "live" shows lines as they come, "quiet" shows nothing."""

    def __init__(self, mode: str, ranks: int, read: Callable[[], list[str]]) -> None:
        self._mode = mode
        self._read = read
        self._shown = [0] * ranks

    def follow(self) -> None:
        """Show the whole lines that came since the last call."""
        if self._mode == "live":
            self._show([text[: text.rfind("\n") + 1] for text in self._read()])

    def finish(self) -> list[str]:
        """Show what is left to show; the whole text of each rank."""
        texts = self._read()
        if self._mode != "quiet":
            self._show(texts)
        return texts

    def _show(self, texts: list[str]) -> None:
        new = [text[shown:] for text, shown in zip(texts, self._shown, strict=True)]
        self._shown = [max(shown, len(text)) for text, shown in zip(texts, self._shown, strict=True)]
        # Live, each line has its rank, also one that its rank has not ended.
        if left := ranked(new, len(texts) > 1 if self._mode == "live" else None):
            print(left, flush=True)
