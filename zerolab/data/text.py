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
    """A text and where it is from.

    Attributes:
        wanted: the source that was asked for.
        source: the source that it came from.
        note: one line that says why the two differ, or None when they do not.
        digest: the hash that stands for the text where there are only tokens; None: that of the text.
    """

    text: str
    wanted: str
    source: str
    note: str | None = None
    digest: str | None = None

    @property
    def sha256(self) -> str:
        return self.digest or hashlib.sha256(self.text.encode()).hexdigest()


def load_text(source: str = EMBEDDED, *, characters: int = 2_000_000, timeout_s: float = 60.0) -> Text:
    """Load one of the four sources.

    Args:
        source: "embedded", "synthetic", "fineweb-edu", or the path of a UTF-8 text file (write "./embedded" for
            a file of that name).
        characters: how much of an endless source to take; a file and the embedded text come whole.
        timeout_s: how long FineWeb-Edu may take before the embedded text stands in for it.

    Raises:
        InputError: a file that is missing, unreadable, empty or not UTF-8; characters below 1.
    """
    if characters < 1:
        raise InputError(f"characters is {characters}, but must be at least 1; ask for more text.")
    if source == EMBEDDED:
        return Text(embedded_text(), source, source)
    if source == SYNTHETIC:
        return Text(synthetic_text(characters), source, source)
    if source == FINEWEB:
        return _fineweb_or_embedded(characters, timeout_s)
    return Text(read_text_file(source), source, source)


def embedded_text() -> str:
    """About 465,000 characters of prose that every Python carries: the language reference behind `help()`.

    It differs between Python versions, and with it every loss that is trained on it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise InputError(
            "this Python comes without pydoc_data, the embedded text; use --data-mode synthetic, or name a text file"
        ) from None
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
    """The whole of a UTF-8 file.

    Raises:
        InputError: it is missing, not a regular file (a pipe would wait for ever), unreadable, empty, or not
            UTF-8, with the offset of the first wrong byte.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(
            f"there is no text file {path!r}; give the path of one, or {EMBEDDED}, {SYNTHETIC} or {FINEWEB}."
        )
    if not file.is_file():
        raise InputError(f"{path!r} is not a regular file; give the path of a text file.")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{path!r} cannot be read ({error.strerror}); give a file that you may read.") from None
    if not data:
        raise InputError(f"{path!r} is empty; give a file with text in it.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path!r} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start} begins no character; "
            "convert it to UTF-8."
        ) from None


def _fineweb_or_embedded(characters: int, timeout_s: float) -> Text:
    text, reason = _within(timeout_s, characters)
    if text is not None:
        return Text(text, FINEWEB, FINEWEB)
    note = f"{FINEWEB} is not available ({reason}): training on the embedded text instead."
    log.warning(note)
    return Text(embedded_text(), FINEWEB, EMBEDDED, note)


def _within(timeout_s: float, characters: int) -> tuple[str | None, str]:
    """(text, "") or (None, reason). The download runs in a thread, since a network call may never return.

    A thread that is late is left behind: it is a daemon and ends with the process.
    """
    answer: queue.SimpleQueue[tuple[str | None, str]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put((_take(stream_fineweb(), characters), ""))
        except ImportError:
            answer.put((None, "the package datasets is not installed"))
        except Exception as error:  # a network fails in too many ways to list
            message = str(error).strip().partition("\n")[0]
            answer.put((None, f"{type(error).__name__}: {message}"))

    threading.Thread(target=work, name="fineweb-edu", daemon=True).start()
    try:
        return answer.get(timeout=timeout_s)
    except queue.Empty:
        return None, f"no answer within {timeout_s:g} s"


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

    Raises:
        ImportError: `datasets` is not installed; and whatever the network raises.
    """
    from datasets import load_dataset  # type: ignore[import-not-found]

    rows = load_dataset("HuggingFaceFW/fineweb-edu", name="sample-10BT", split="train", streaming=True)
    return (row["text"] for row in rows)
