"""How far a grading is, on standard error: a bar where that is a terminal, one plain line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from zerolab.train.progress import Bar

Watch = Callable[[str, int], None]
"""Called with the exercise that runs and how many are done."""


@contextmanager
def progress(exercises: int) -> Iterator[Watch]:
    """Show progress over `exercises` while the block runs; yields what to call at each step."""
    shape = "{desc} |{bar}| {n_fmt} of {total_fmt}"
    with Bar(desc="starting", total=exercises, bar_format=shape, file=sys.stderr, leave=False, disable=None) as bar:
        if bar.disable:
            with suppress(OSError):
                print(f"zerolab grade: running {exercises} exercises", file=sys.stderr, flush=True)

        def watch(name: str, done: int) -> None:
            bar.set_description_str(name, refresh=False)
            bar.n = done
            bar.refresh()

        yield watch
