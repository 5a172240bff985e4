"""Prepared tokens in files, as nanoGPT has them: a folder with train.bin and val.bin, nothing but tokens,
16-bit numbers in little-endian order. They are mapped into memory, so that a rank reads what it trains on and no more.

What else is known of them stands in meta.json, where there is one: {"vocab_size": 256, "tokenizer": {"kind": "bytes"}},
or {"kind": "characters", "characters": "..."}. nanoGPT's own meta.pkl is never opened: a pickle may run anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerolab.data.text import Text, read_text_file
from zerolab.data.tokenizer import ByteTokenizer, CharacterTokenizer, Tokenizer, read_tokenizer
from zerolab.errors import InputError
from zerolab.files import write_whole

if TYPE_CHECKING:
    from torch import Tensor

TRAIN, VALID, META, PICKLE = "train.bin", "val.bin", "meta.json", "meta.pkl"
MOST = 1 << 16
WHOLE, SAMPLES = 1 << 26, 64
"""Bytes of a file up to which all of it goes into its fingerprint, and how many places of a larger one."""
AT_ONCE = 1 << 24


def find_dataset(name: str) -> Path:
    """The folder of a data set: `name` itself, or data/`name`, as nanoGPT has it. Raises InputError if neither has a
    train.bin and a val.bin."""
    places = list(dict.fromkeys([Path(name).expanduser(), Path("data") / name]))
    for folder in places:
        if (folder / TRAIN).is_file() and (folder / VALID).is_file():
            return folder
    raise InputError(
        f"dataset is {name!r}, but {' and '.join(map(str, places))} lack {TRAIN} or {VALID}; make them with: "
        f"zerolab prepare FILE --out {places[-1]}"
    )


def read_bin(path: Path) -> Tensor:
    """All tokens of a file, uint16 [tokens], mapped and not read."""
    import torch

    size = path.stat().st_size
    if size == 0 or size % 2:
        raise InputError(f"{path} has {size} bytes, and tokens have two each; prepare it again")
    return torch.from_file(str(path), shared=False, size=size // 2, dtype=torch.uint16)


def read_meta(folder: Path) -> tuple[int | None, Tokenizer | None]:
    """The size of the vocabulary, and how tokens become text, as far as a data set's meta.json says it."""
    path = folder / META
    if not path.is_file():
        return None, None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); mend it, or prepare the data again") from None
    size = said.get("vocab_size") if isinstance(said, dict) else None
    if type(size) is not int or not 1 <= size <= MOST:
        raise InputError(f"{path} gives {size!r} as vocab_size; give a whole number from 1 to {MOST}")
    return size, read_tokenizer(said.get("tokenizer"), str(path))


def fingerprint(folder: Path) -> str:
    """sha256 of both files' lengths and bytes; of a large file, of bytes from places that lie evenly in it."""
    import torch

    digest = hashlib.sha256()
    for name in (TRAIN, VALID):
        data = read_bin(folder / name).view(torch.uint8)
        digest.update(f"{name} {len(data)}\n".encode())
        size, step = (AT_ONCE, AT_ONCE) if len(data) <= WHOLE else (4096, len(data) // SAMPLES)
        for at in range(0, len(data), step):
            digest.update(data[at : at + size].numpy().data)
    return digest.hexdigest()


def describe(name: str, folder: Path, vocab_size: int) -> Text:
    """What stands for a text where there are tokens only."""
    note = None
    if (folder / PICKLE).is_file() and not (folder / META).is_file():
        note = (
            f"{name} ({PICKLE} is not opened, since a pickle may run anything: the vocabulary is {vocab_size}, as many "
            "as the tokens need)"
        )
    return Text("", name, name, note, fingerprint(folder))


def prepare(file: str, out: Path, tokens: str = "bytes", valid_fraction: float = 0.1) -> dict[str, Any]:
    """Write a text file as a data set. `tokens` is "bytes", or "characters", which numbers those that the text has, as
    nanoGPT's shakespeare_char does; the end of the text, by characters, is held out. Returns what was written. Raises
    an InputError for a folder that has a data set, and a text that is none, too short, or of too many characters."""
    if any((out / name).exists() for name in (TRAIN, VALID, META)):
        raise InputError(f"{out} has a data set already; name another folder, or remove it")
    text = read_text_file(file)
    at = int(len(text) * (1 - valid_fraction))
    if not 0 < at < len(text):
        raise InputError(
            f"{file} has {len(text)} characters, which cannot be cut in two at {valid_fraction}; give a longer text, "
            "and a fraction to hold out between 0 and 1"
        )
    tokenizer: Tokenizer = ByteTokenizer() if tokens == "bytes" else CharacterTokenizer.of(text)
    parts = {VALID: tokenizer.encode(text[at:]), TRAIN: tokenizer.encode(text[:at])}
    meta = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.said()}
    files = {META: (json.dumps(meta, ensure_ascii=False) + "\n").encode()}
    files |= {name: numbers.numpy().astype("<u2").tobytes() for name, numbers in parts.items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_together(out, files)
    except OSError as error:
        raise InputError(f"{out} cannot be written to ({error.strerror}); name another folder") from None
    return {"vocab_size": tokenizer.vocab_size, **{name: len(numbers) for name, numbers in parts.items()}}


def write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all of the files, or, where one of them cannot be written, none."""
    try:
        for name, data in files.items():
            write_whole(folder / name, data)
    except OSError:
        for name in files:
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)
        raise
