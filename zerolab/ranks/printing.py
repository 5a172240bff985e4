"""What ranks print, shown by the parent: whole lines, in rank order, so that output is the same every time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

MODES = ("ranked", "live", "quiet")


def ranked(texts: Sequence[str], several: bool | None = None) -> str:
    """All lines of rank 0, then of rank 1, and so on; with the rank before each line if `several` ranks print. Whether
    they do is seen by the texts, if it is not said."""
    if several is None:
        several = sum(bool(text) for text in texts) > 1
    shown = []
    for rank, text in enumerate(texts):
        for line in lines(text):
            shown.append(f"rank {rank} | {line}" if several else line)
    return "\n".join(shown)


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
        if self._mode != "live":
            return
        for rank, text in enumerate(self._read()):
            new = text[self._shown[rank] :]
            whole = new[: new.rfind("\n") + 1]
            self._shown[rank] += len(whole)
            for line in lines(whole):
                print(line if len(self._shown) == 1 else f"rank {rank} | {line}", flush=True)

    def finish(self) -> list[str]:
        """Show what is left to show; the whole text of each rank."""
        self.follow()
        texts = self._read()
        # Live, each line has its rank, also one that its rank has not ended.
        several = len(texts) > 1 if self._mode == "live" else None
        left = ranked([text[shown:] for text, shown in zip(texts, self._shown, strict=True)], several)
        if self._mode != "quiet" and left:
            print(left, flush=True)
        return texts


def read_files(files: Sequence[Path]) -> list[str]:
    """The text of each file, empty where there is none yet."""
    return [file.read_text(encoding="utf-8", errors="replace") if file.exists() else "" for file in files]
