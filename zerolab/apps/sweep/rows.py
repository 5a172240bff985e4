"""The rows of a sweep: a folder with `rows.jsonl`, a line a case, whole at every moment, and `rows.csv`."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zerolab.errors import DiskError, InputError
from zerolab.files import open_locked, write_whole
from zerolab.ranks.folders import reason

LINES, TABLE, LOCK = "rows.jsonl", "rows.csv", ".lock"
DONE, FAILED = "done", "failed"
Row = dict[str, Any]


def write_rows(folder: Path, rows: Iterable[Row]) -> None:
    write_file(folder / LINES, "".join(json.dumps(row) + "\n" for row in rows))


def read_rows(folder: Path) -> list[Row]:
    """The rows in a folder, if there are any. A last line that was cut off is left out."""
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
            row["settings"], row["status"]
            rows[row["key"]] = row
        except (ValueError, TypeError, KeyError):
            what = f"{path} has a line {number} that is no row of a sweep"
            raise InputError(f"{what}; take it out, or name another folder") from None
    return list(rows.values())


def make_csv(rows: Collection[Row]) -> str:
    """Of each row its settings, and the figures that are single values."""
    settings = sorted({name for row in rows for name in row["settings"]})
    single = [{name: value for name, value in row.items() if not isinstance(value, list | dict)} for row in rows]
    flat = [row["settings"] | values for row, values in zip(rows, single, strict=True)]
    names = dict.fromkeys([*settings, *(name for row in flat for name in row)])
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Make the folder, and have it alone while the block runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open_locked(folder / LOCK)
    except BlockingIOError:
        raise InputError(f"--out: another sweep is writing to {str(folder)!r}; name another folder") from None
    except OSError as error:
        raise InputError(f"--out: {str(folder)!r} cannot be written ({reason(error)}); name another folder") from None
    try:
        yield
    finally:
        os.close(lock)


def write_file(path: Path, text: str) -> None:
    """Write a file whole, or raise a DiskError that names it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        said = f"{path} could not be written ({reason(error)})"
        raise DiskError(f"{said}; the rows before it are there") from error
