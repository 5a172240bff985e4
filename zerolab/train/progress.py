"""Between the parent and the ranks, by files. Rank 0 appends a line a step to one, and a thread of the parent draws a
progress bar of it; and if another one is there, the parent asks the ranks to stop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from zerolab.ranks.folders import temporary_folder


class Steps:
    """Writes a line for each step that this rank has done to the file that `follow` reads; without a path, nothing."""

    def __init__(self, path: str | None) -> None:
        self._file = open(path, "a", buffering=1) if path else None  # noqa: SIM115 - lives as long as the run

    def done(self, loss: float | None) -> None:
        """A step is done, with its loss; None: none was computed."""
        self._say("not computed\n" if loss is None else f"{loss:.4f}\n")

    def skipped(self, step: int, scale: float, now: float) -> None:
        """A step whose gradients were not finite on some rank."""
        change = f"goes from {scale:g} to {now:g}" if now != scale else f"stays at {scale:g}"
        self.say(f"step {step} was skipped, its gradients overflowed; the loss scale {change}")

    def say(self, line: str) -> None:
        """A line for whoever watches the run, beside the bar."""
        self._say(f"# {line}\n")

    def evaluated(self, step: int, loss: float) -> None:
        self._say(f"# step {step}: validation loss {loss:.4f}\n")

    def close(self) -> None:
        if self._file:
            with suppress(OSError):
                self._file.close()

    def _say(self, line: str) -> None:
        # A disk that is full now ends no run: nothing but the bar stands still.
        if self._file:
            with suppress(OSError):
                self._file.write(line)


class Stop:
    """Asks a run to end after a step, with a checkpoint. `ask` may be called from a signal's handler, at any time.

    Ranks that have processes of their own hear it by a file. Under torchrun this process is a rank, and tells the
    others.
    """

    def __init__(self) -> None:
        self.asked = self.heard = False
        self._file: str | None = None

    def ask(self) -> None:
        self.asked = True
        if self._file is not None:
            with suppress(OSError):
                Path(self._file).touch()

    def tell(self, progress: str) -> None:
        """Take a file beside that of the progress; if it was asked before, the ranks hear it now."""
        self._file = progress + ".stop"
        if self.asked:
            self.ask()

    # On a rank.

    def is_asked(self) -> bool:
        return self.asked or (self._file is not None and os.path.exists(self._file))


class Bar(tqdm):
    """tqdm's, without its thread that looks after all bars: where none can be started, tqdm prints a warning."""

    monitor_interval = 0


@contextmanager
def follow(total: int, what: str, done: int = 0) -> Iterator[str]:
    """Show a bar of `total` steps, of which some are `done`, while the block runs; yields the path that `Steps` writes
    to."""
    with temporary_folder("progress") as folder:
        path = folder / "steps"
        path.touch()
        ended = threading.Event()
        # Beneath another bar, a sweep's, it goes when it is full.
        with Bar(total=total, initial=done, desc=what, unit="step", file=sys.stderr, disable=None, leave=None) as bar:
            thread = threading.Thread(target=_watch, args=(path, bar, ended), daemon=True)
            thread.start()
            try:
                yield str(path)
            finally:
                ended.set()
                thread.join()


def _watch(path: Path, bar: Bar, ended: threading.Event) -> None:
    with path.open() as lines:
        last = False
        while not last:
            # Read once more after the end, so that the bar shows every step.
            last = ended.wait(0.2)
            for line in lines:
                if line.startswith("#"):
                    bar.write(line[2:].rstrip(), file=sys.stderr)
                    continue
                bar.set_postfix_str(f"loss {line.strip()}", refresh=False)
                bar.update()
