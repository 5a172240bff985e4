"""The rows of a sweep: a folder with `rows.jsonl`, a line of JSON for each case, and `rows.csv`, made of it.

A line is appended when its case has ended, whole or not at all: one that a kill cut off is dropped when the folder is
opened again. One sweep at a time has a folder.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zerolab.errors import DiskError, InputError
from zerolab.files import open_locked, write_whole
from zerolab.ranks.folders import reason

LINES, TABLE, LOCK = "rows.jsonl", "rows.csv", ".lock"
DONE, FAILED = "done", "failed"
Row = dict[str, Any]


class Rows:
    """The rows of a folder, by key, in the order of the file."""

    def __init__(self, folder: Path) -> None:
        self.path, self.table = folder / LINES, folder / TABLE
        self.by_key: dict[str, Row] = {row["key"]: row for row in read_rows(folder)}

    def is_done(self, key: str) -> bool:
        return key in self.by_key and self.by_key[key]["status"] == DONE

    def forget_failed(self, keys: Iterable[str]) -> None:
        """Drop the rows of these cases that failed, since they are tried again, and what a kill left of a line."""
        for key in keys:
            if key in self.by_key and not self.is_done(key):
                del self.by_key[key]
        self._write()

    def append(self, row: Row) -> None:
        """Add a row, to the file, too. Raises a DiskError if the disk does not take it; then nothing of it stays."""
        line = (json.dumps(row) + "\n").encode()
        with disk_errors(self.path), open(self.path, "ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(line) != len(line):
                    raise OSError("there is no room for a whole line")
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise
        self.by_key[row["key"]] = row

    def finish(self, keys: Iterable[str]) -> None:
        """Bring the rows of these cases into their order, after those of other sweeps, and write the table."""
        ours = [key for key in keys if key in self.by_key]
        others = [key for key in self.by_key if key not in set(ours)]
        self.by_key = {key: self.by_key[key] for key in [*others, *ours]}
        self._write()
        with disk_errors(self.table):
            write_whole(self.table, csv_of(self.by_key.values()))

    def _write(self) -> None:
        text = "".join(json.dumps(row) + "\n" for row in self.by_key.values())
        with disk_errors(self.path):
            if not self.path.exists() or self.path.read_text(encoding="utf-8") != text:
                write_whole(self.path, text)


def read_rows(folder: Path) -> list[Row]:
    """The rows in a folder, none if it has no file of them; the last line is left out if it is not whole. Raises an
    InputError if another line is none of ours."""
    path = folder / LINES
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason(error)}); name another folder") from None
    rows: dict[str, Row] = {}
    # After the last line end stands what was cut off, or nothing.
    for number, line in enumerate(lines[:-1], 1):
        try:
            row = json.loads(line)
            rows[row["key"]] = row
            row["settings"], row["status"]
        except (ValueError, TypeError, KeyError):
            raise InputError(
                f"{path} has a line {number} that is no row of a sweep; take it out, or name another folder"
            ) from None
    return list(rows.values())


def csv_of(rows: Iterable[Row]) -> str:
    """A line for each row: its settings, its status, and the figures that are single values."""
    flat = [{**row["settings"], **{name: value for name, value in row.items() if is_single(value)}} for row in rows]
    settings = sorted({name for row in rows for name in row["settings"]})
    names = [*settings, *dict.fromkeys(name for row in flat for name in row if name not in settings)]
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def is_single(value: Any) -> bool:
    return not isinstance(value, list | dict)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder, and have it alone while the block runs. Raises an InputError if it cannot be made, or if another
    sweep has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = open_locked(folder / LOCK)
    except BlockingIOError:
        raise InputError(f"--out: another sweep is writing to {str(folder)!r}; name another folder") from None
    except OSError as error:
        raise InputError(f"--out: {str(folder)!r} cannot be written ({reason(error)}); name another folder") from None
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A file of a sweep that the disk does not take is a DiskError that names it."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"{path} could not be written ({reason(error)}); the rows before it are there") from error
