"""What stands in a DCP folder's `.metadata`, read without running anything of it.

Torch writes that file as a pickle, and a pickle is a program: torch's own reader runs it, whoever wrote it. Here its
instructions are only looked at. Where one names a class or a function, a `Made` takes its place, which remembers the
name and what it would have been called with; what is looked for, names, sizes and places of tensors, is found in those.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from zerolab.errors import CheckpointError
from zerolab.ranks.folders import reason

METADATA = ".metadata"


def read_metadata(folder: Path) -> Metadata:
    """What a DCP folder says of its tensors and values, in torch's classes. Raises a CheckpointError that names the
    file if it is missing, damaged, or says something else."""
    path = folder / METADATA
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} has no {METADATA}, so it is no folder of torch.distributed.checkpoint, or one that was not "
            "finished; name another"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({reason(error)}); see to its rights and its disk") from None
    try:
        return _metadata(_interpret(data))
    except Exception:
        # Whatever bytes may lead to.
        raise CheckpointError(
            f"{path} is damaged, or not as torch.distributed.checkpoint writes it; take another checkpoint"
        ) from None


@dataclass(eq=False)
class Made:
    """What a pickle would have made: by whom, of which arguments, with which state."""

    maker: str
    arguments: Any = ()
    state: Any = field(default_factory=dict)


# Of the parts of such a file.


def _metadata(said: Any) -> Metadata:
    entries: dict[str, STORAGE_TYPES] = {}
    for key, entry in said.state["state_dict_metadata"].items():
        kind = entry.maker.rpartition(".")[2]
        if kind == "BytesStorageMetadata":
            entries[key] = BytesStorageMetadata()
        elif kind == "TensorStorageMetadata":
            entries[key] = _tensor(entry.state)
        else:
            raise ValueError(kind)
    storage = {
        MetadataIndex(index.state["fqn"], _size(index.state.get("offset"))): _place(place.state)
        for index, place in said.state["storage_data"].items()
    }
    return Metadata(entries, storage_data=storage)


def _tensor(said: dict[str, Any]) -> TensorStorageMetadata:
    # TensorProperties keeps its state as a tuple, whose first is the dtype.
    dtype = getattr(torch, said["properties"].state[0].maker.removeprefix("torch."))
    if not isinstance(dtype, torch.dtype):
        raise ValueError(dtype)
    chunks = [ChunkStorageMetadata(_size(each.state["offsets"]), _size(each.state["sizes"])) for each in said["chunks"]]
    return TensorStorageMetadata(TensorProperties(dtype), _size(said["size"]), chunks)


def _size(said: Any) -> Any:
    """A torch.Size, which is a call of it with a tuple."""
    return None if said is None else torch.Size(said.arguments[0])


def _place(said: dict[str, Any]) -> Any:
    """Which bytes of which file; torch's class of it has no public name."""
    name = said["relative_path"]
    if Path(name).name != name:
        raise ValueError(name)
    return SimpleNamespace(
        relative_path=name,
        offset=int(said["offset"]),
        length=int(said["length"]),
        transform_descriptors=said.get("transform_descriptors"),
    )


# Of any pickle.

_MARK = object()
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_VALUES = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip


def _interpret(data: bytes) -> Any:
    """What a pickle describes; raises whatever comes up for one that is not well-formed or uses other instructions."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def to_mark() -> list[Any]:
        at = len(stack) - 1 - stack[::-1].index(_MARK)
        found = stack[at + 1 :]
        del stack[at:]
        return found

    argument: Any
    for opcode, argument, _ in pickletools.genops(data):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "STOP":
                return stack.pop()
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            case name if name in _VALUES:
                stack.append(argument)
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE":
                stack.append(tuple(to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "APPEND":
                value = stack.pop()
                stack[-1].append(value)
            case "APPENDS":
                values = to_mark()
                stack[-1].extend(values)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                stack[-1][key] = value
            case "SETITEMS":
                values = to_mark()
                stack[-1].update(zip(values[::2], values[1::2], strict=True))
            case "GLOBAL":
                stack.append(Made(argument.replace(" ", ".")))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(Made(f"{module}.{name}"))
            case "REDUCE" | "NEWOBJ":
                arguments, maker = stack.pop(), stack.pop()
                stack.append(Made(maker.maker, arguments))
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case other:
                raise ValueError(other)
    raise ValueError("it does not end")
