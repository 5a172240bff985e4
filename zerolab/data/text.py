"""Where the text comes from: the standard library, a generator, a file, or FineWeb-Edu over the network.

Load text once, before ranks start, and hand it to them: a source that falls back may answer two processes
differently. Where every process must load for itself, compare `Text.sha256` over the ranks.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerolab.errors import InputError

EMBEDDED, SYNTHETIC, FINEWEB = "embedded", "synthetic", "fineweb-edu"

log = logging.getLogger("zerolab.data")


@dataclass(frozen=True)
class Text:
    """A text, the source that was asked for and the one that it came from, a line that says why they differ if they
    do, and the hash that stands for the text where there are only tokens."""

    text: str
    wanted: str
    source: str
    note: str | None = None
    digest: str | None = None

    @property
    def sha256(self) -> str:
        return self.digest or hashlib.sha256(self.text.encode()).hexdigest()


def load_text(source: str = EMBEDDED, *, characters: int = 2_000_000, timeout_s: float = 60.0) -> Text:
    """Load "embedded", "synthetic", "fineweb-edu", or a UTF-8 text file by its path (write "./embedded" for a file of
    that name). A file and the embedded text come whole, of an endless source as many `characters`; where FineWeb-Edu
    takes longer than `timeout_s`, the embedded text stands in for it."""
    if source == FINEWEB:
        return _fineweb_or_embedded(characters, timeout_s)
    if source == EMBEDDED:
        text = embedded_text()
    elif source == SYNTHETIC:
        text = synthetic_text(characters)
    else:
        text = read_text_file(source)
    return Text(text, source, source)


def embedded_text() -> str:
    """About 465,000 characters of prose that every Python carries: the language reference behind `help()`.

    It differs between Python versions, and with it every loss that is trained on it.
    """
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def synthetic_text(characters: int, seed: int = 0) -> str:
    """Sums, one a line ("37 + 8 = 45"): the same on every machine, and with a rule to learn.

    The form is learned in a few steps, the digits after the equals sign much later.
    """
    numbers = random.Random(seed)  # of its methods, random() alone is promised to stay the same
    lines: list[str] = []
    length = 0
    while length < characters:
        a, b = int(numbers.random() * 100), int(numbers.random() * 100)
        lines.append(f"{a} + {b} = {a + b}\n")
        length += len(lines[-1])
    return "".join(lines)[:characters]


def read_text_file(path: str) -> str:
    """The whole of a UTF-8 file. Raises an InputError if it is none."""
    file = Path(path)
    # Of what is there, but no regular file, a pipe would wait for ever.
    if not file.is_file():
        raise InputError(
            f"there is no text file {path!r}; give the path of one, or {EMBEDDED}, {SYNTHETIC} or {FINEWEB}."
        )
    try:
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path!r} cannot be read ({error}); give a text in UTF-8 that you may read.") from None


def _fineweb_or_embedded(characters: int, timeout_s: float) -> Text:
    """The download runs in a thread, since a network call may never return. A thread that is late is left behind: it is
    a daemon and ends with the process."""
    answer: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(_take(stream_fineweb(), characters))
        except Exception as error:  # a network fails in too many ways to list
            answer.put(error)

    threading.Thread(target=work, name="fineweb-edu", daemon=True).start()
    try:
        found = answer.get(timeout=timeout_s)
    except queue.Empty:
        found = TimeoutError(f"no answer within {timeout_s:g} s")
    if isinstance(found, str):
        return Text(found, FINEWEB, FINEWEB)
    said = str(found).strip().partition("\n")[0]
    note = f"{FINEWEB} is not available ({type(found).__name__}: {said}): training on the embedded text instead."
    log.warning(note)
    return Text(embedded_text(), FINEWEB, EMBEDDED, note)


def _take(documents: Iterator[str], characters: int) -> str:
    taken: list[str] = []
    length = 0
    for document in documents:
        taken.append(document)
        length += len(document) + 1
        if length >= characters:
            return "\n".join(taken)[:characters]
    raise EOFError(f"the stream ended after {length} of {characters} characters")


def stream_fineweb() -> Iterator[str]:
    """Documents of FineWeb-Edu's 10-billion-token sample, streamed by `datasets` (Penedo et al., arXiv 2406.17557).
    Raises whatever the network raises, and an ImportError without `datasets`."""
    from datasets import load_dataset  # type: ignore[import-not-found]

    rows = load_dataset("HuggingFaceFW/fineweb-edu", name="sample-10BT", split="train", streaming=True)
    return (row["text"] for row in rows)
