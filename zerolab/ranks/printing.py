"""What ranks print, shown by the parent: whole lines, in rank order, so that output is the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MODES = ("ranked", "live", "quiet")


def ranked(texts: Sequence[str]) -> str:
    """All lines of rank 0, then of rank 1, and so on; with the rank before each line if several ranks printed."""
    several = sum(bool(text) for text in texts) > 1
    shown = []
    for rank, text in enumerate(texts):
        for line in text.splitlines():
            shown.append(f"rank {rank} | {line}" if several else line)
    return "\n".join(shown)


class Printer:
    """Follows the files that ranks print to. `mode`: "ranked" shows all at the end, "live" shows lines as they come,
    "quiet" shows nothing; the text by rank is kept in any case."""

    def __init__(self, mode: str, files: Sequence[Path]) -> None:
        self._mode = mode
        self._files = files
        self._shown = [0] * len(files)

    def follow(self) -> None:
        """Show the whole lines that came since the last call."""
        if self._mode != "live":
            return
        for rank, file in enumerate(self._files):
            new = _read(file)[self._shown[rank] :]
            whole = new[: new.rfind("\n") + 1]
            self._shown[rank] += len(whole)
            for line in whole.splitlines():
                print(line if len(self._files) == 1 else f"rank {rank} | {line}", flush=True)

    def finish(self) -> list[str]:
        """Show what is left to show; the whole text of each rank."""
        self.follow()
        texts = [_read(file) for file in self._files]
        text = ranked([text[shown:] for text, shown in zip(texts, self._shown, strict=True)])
        if self._mode != "quiet" and text:
            print(text, flush=True)
        return texts


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
