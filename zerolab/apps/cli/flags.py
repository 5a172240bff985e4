"""Flags: each field of a pydantic model is one, and what it should be is said there."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from zerolab.apps.cli.parser import Parser
from zerolab.errors import InputError
from zerolab.run.spec import sentence_of

Fields = Mapping[str, tuple[FieldInfo, Any]]
"""Fields by name, each with what help says of its default."""


class Flags(BaseModel):
    """What a command takes, with what it does as docstring. A word beside a type is of what comes by its place; there
    may be other names of a flag."""

    model_config = ConfigDict(allow_inf_nan=False, frozen=True)

    @classmethod
    def read(cls, prog: str, arguments: Sequence[str], others: Fields | None = None, **options: Any) -> Self:
        """What these arguments say; `others` are flags of another model."""
        parser = Parser(prog, " ".join(str(cls.__doc__).split()), **options)
        own = {name: (field, field.default) for name, field in cls.model_fields.items()}
        for name, (field, default) in {**own, **(others or {})}.items():
            add_flag(parser, name, field, default)
        given = vars(parser.parse_args(arguments))
        try:
            return cls(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            raise InputError(name_flags(sentence_of(error), cls.model_fields)) from None


def name_flags(message: str, names: Iterable[str]) -> str:
    """A message with flags in place of settings. An English word is one at the start."""
    for name in names:
        start = r"(?<![\w.'\"/-])" if "_" in name else "^"
        flag = "--" + name.replace("_", "-")
        message = re.sub(rf"{start}{name}(?![\w'\"/-]|\.\w|\s*=)", flag, message)
    return message


def add_flag(parser: argparse._ActionsContainer, name: str, field: FieldInfo, default: Any) -> None:
    """A flag for a field. Its value stays text, which the model checks."""
    place = next((part for part in field.metadata if isinstance(part, str)), None)
    text = str(field.description)
    if place is not None:
        nargs = None if field.is_required() else "?"
        parser.add_argument(name, nargs=nargs, metavar=place, help=text)
        return
    options: dict[str, Any] = {"metavar": metavar_of(field.annotation)}
    if field.annotation in (bool, bool | None):
        options = {"action": argparse.BooleanOptionalAction}
    elif get_origin(field.annotation) is tuple:
        options |= {"action": "append"}
    elif name == "resume":
        options |= {"nargs": "?", "const": ""}
    if field.is_required():
        options |= {"required": True}
    elif default is not None:
        text += f" (default: {default})"
    flag = "--" + name.strip("_").replace("_", "-")
    others = next((part for part in field.metadata if isinstance(part, tuple)), ())
    parser.add_argument(flag, *others, dest=name, default=None, help=text, **options)


def metavar_of(annotation: Any) -> str:
    """What a flag takes: a kind of value, or words to choose from."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    if get_origin(annotation) in (Annotated, tuple):
        return metavar_of(kinds[0])
    if get_origin(annotation) is Literal:
        return "|".join(map(str, kinds))
    if kinds:
        return "|".join(dict.fromkeys(map(metavar_of, kinds)))
    return {"int": "N", "float": "X", "Path": "FILE"}.get(annotation.__name__, "NAME")
