"""What a check gives to a function, and what it sees of it: plain data that two processes can exchange as JSON.
Never as a pickle: reading a stranger's pickle runs a stranger's code."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from zerolab.collectives import Link

MOST_ELEMENTS = 100_000
MOST_CHARACTERS = 2_000
"""Of one text that an answer returns, raises or prints."""
MOST_BYTES = 32_000_000
"""Of all that one exercise was seen to do, written as JSON."""
_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64, torch.bool)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _REAL}


def plural(count: int, noun: str) -> str:
    """Such as "1 rank" and "2 ranks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def legible(text: str) -> str:
    """A stranger's text as every terminal, file and report takes it: lone surrogates and what steers a terminal are
    spelled out, and of too many characters the first and the last stay."""
    half = MOST_CHARACTERS // 2
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:half]} ... {len(text) - MOST_CHARACTERS:,} characters ... {text[-half:]}"
    return re.sub(r"[^\t\n -~\xa0-\ud7ff\ue000-\U0010ffff]", lambda found: ascii(found[0])[1:-1], text)


@dataclass(frozen=True)
class Case:
    """One call on every rank. `args[r]` are rank r's arguments, after `comm` where the function takes one. `about` says
    which case it was, at the head of a hint. Messages take a `link`'s time on the virtual clock. The case with `board`
    fills the scoreboard; its sizes are the same in every draw. `before` is the case whose call came before, in the same
    process; `itself` is then the same case where none did."""

    args: list[tuple[Any, ...]]
    world: str = "lockstep"
    about: str = ""
    link: Link | None = None
    board: bool = False
    before: Case | None = None
    itself: Case | None = None
    _known: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def ranks(self) -> int:
        return len(self.args)


@dataclass(frozen=True)
class Other:
    """A value that is neither a tensor nor plain data; only its type's name is known."""

    type_name: str


@dataclass(frozen=True)
class Record:
    """What one rank did: the value it returned, its arguments afterwards, the (receiver, bytes) of each message it
    sent, the library's collectives that it called, in order, as ("all_gather", elements); where the exercise asks for
    it, the most bytes that it had made and still held, and those `left` beside what it returned, for good, and until
    Python's garbage collector came (`late`); the `dtypes` of what travelled; what it returned that its head does not
    promise (`unlike`); and whether what the call before had given has been `spoilt` since."""

    value: Any
    after: list[Any]
    sent: list[tuple[int, int]]
    calls: list[tuple[str, int]] = field(default_factory=list)
    peak: int = 0
    left: int = 0
    late: int = 0
    dtypes: list[str] = field(default_factory=list)
    unlike: str = ""
    spoilt: bool = False

    @property
    def nbytes(self) -> int:
        return sum(nbytes for _, nbytes in self.sent)


@dataclass(frozen=True)
class Trouble:
    """Why a call did not come to its end: the error's type, its message, and where in the learner's code."""

    kind: str
    message: str
    where: str = ""

    def __post_init__(self) -> None:
        for name, text in [*vars(self).items()]:
            object.__setattr__(self, name, legible(str(text)))


@dataclass(frozen=True)
class Observation:
    """What came of a case: a record for each rank and the seconds on the world's clock, or trouble; and all prints."""

    records: list[Record] = field(default_factory=list)
    trouble: Trouble | None = None
    seconds: float = 0.0
    printed: str = ""


def encode(value: Any) -> Any:
    """`value` as JSON data: tensors with dtype and shape, modules as the list of their parameters, plain data as it is,
    NumPy's numbers and arrays as plain data, all else by its type's name."""
    # Most of what there is to encode are the numbers of lists, one by one.
    if value is None or type(value) in (bool, float) or (type(value) is int and value.bit_length() < 64):
        return value
    if isinstance(value, np.generic | np.ndarray) and value.size <= MOST_ELEMENTS:
        value = value.tolist()
    if isinstance(value, torch.nn.Module):
        value = list(value.parameters())
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if name in DTYPES and value.numel() <= MOST_ELEMENTS:
            return {"dtype": name, "shape": list(value.shape), "values": value.detach().reshape(-1).tolist()}
        return {"type": f"tensor of {value.numel()} {name}"}
    if isinstance(value, str):
        return legible(value)
    if isinstance(value, int) and value.bit_length() > MOST_CHARACTERS:  # 603 digits
        return {"type": f"int of {value.bit_length():,} bits"}
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple | list) and len(value) <= MOST_ELEMENTS:
        return [encode(item) for item in value]
    if isinstance(value, dict) and len(value) <= MOST_ELEMENTS:
        keys = [encode(key) for key in value]
        if all(isinstance(key, str | int) for key in keys):
            return {"keys": keys, "items": [encode(item) for item in value.values()]}
    return {"type": legible(value.type_name if isinstance(value, Other) else type(value).__name__)}


def decode(data: Any) -> Any:
    """What `encode` made JSON of; tuples come back as lists."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "values" in data:
        return torch.tensor(data["values"], dtype=DTYPES[data["dtype"]]).reshape(data["shape"])
    if "keys" in data:
        return dict(zip(data["keys"], map(decode, data["items"]), strict=True))
    return Other(str(data.get("type")))


def record_to_json(record: Record) -> dict[str, Any]:
    return {**vars(record), "value": encode(record.value), "after": [encode(argument) for argument in record.after]}


def record_from_json(data: dict[str, Any]) -> Record:
    """The record, with tensors again. A stranger wrote it: everything in it is of the type that it should be."""
    made: dict[str, Any] = {name: int(data[name]) for name in ("peak", "left", "late")}
    return Record(
        decode(data["value"]),
        decode(data["after"]),
        sent=[(int(receiver), int(nbytes)) for receiver, nbytes in data["sent"]],
        calls=[(str(name), int(numel)) for name, numel in data["calls"]],
        dtypes=[str(name) for name in data["dtypes"]],
        unlike=legible(str(data["unlike"])),
        spoilt=bool(data["spoilt"]),
        **made,
    )


def observation_to_json(observation: Observation) -> dict[str, Any]:
    trouble = observation.trouble
    records = [record_to_json(record) for record in observation.records]
    return {**vars(observation), "records": records, "trouble": vars(trouble) if trouble else None}


def observation_from_json(data: dict[str, Any]) -> Observation:
    trouble = Trouble(**data["trouble"]) if data["trouble"] else None
    records = [record_from_json(record) for record in data["records"]]
    if not math.isfinite(seconds := float(data["seconds"])):
        raise ValueError(f"a run took {seconds} s; no clock says so")
    return Observation(records, trouble, seconds, legible(str(data["printed"])))
