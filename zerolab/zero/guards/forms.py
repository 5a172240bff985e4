"""How a parameter becomes one of the engine's, and a plain one again: by its class alone (`parameters.py`)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from zerolab.zero.guards.arriving import ArrivingParameter
from zerolab.zero.guards.parameters import Held, Wrapped
from zerolab.zero.guards.sharded import ShardedParameter


class FakeWrapped(Wrapped, FakeTensor):
    """A parameter without values, in a virtual world."""


class FakeSharded(ShardedParameter, FakeTensor):
    """One whose elements are not here, either."""


class FakeArriving(ArrivingParameter, FakeTensor):
    """One whose new values are on their way."""


FORMS: dict[type[Tensor], tuple[type[Tensor], type[Tensor], type[Tensor]]] = {
    nn.Parameter: (Wrapped, ShardedParameter, ArrivingParameter),
    FakeTensor: (FakeWrapped, FakeSharded, FakeArriving),
}
"""By the class of a parameter before: those that it has while it is here, away, and on its way."""

AWAY = {here: away for here, away, _ in FORMS.values()}
HERE = {away: here for here, away, _ in FORMS.values()}
COMING = {form: coming for here, _, coming in FORMS.values() for form in (here, coming)}
COME = {coming: here for here, _, coming in FORMS.values()}


def wrap(parameter: nn.Parameter, held: Held) -> None:
    """Give a parameter to an engine. A class of the user's own stays as it is, without the guards."""
    if type(parameter) in FORMS:
        held.version = parameter._version
        parameter._held = held  # type: ignore[attr-defined]
        parameter.__class__ = FORMS[type(parameter)][0]  # type: ignore[assignment]


def unwrap(parameter: nn.Parameter) -> None:
    """Take a parameter back from an engine."""
    if isinstance(parameter, Wrapped):
        parameter.__class__ = before(parameter)  # type: ignore[assignment]
        del parameter._held  # type: ignore[attr-defined]


def set_sharded(parameters: Iterable[nn.Parameter], away: bool) -> None:
    """Mark parameters as away, or as here, where everybody may use their elements."""
    forms = AWAY if away else HERE
    for parameter in parameters:
        form = forms.get(type(parameter))
        if form is not None:
            parameter.__class__ = form  # type: ignore[assignment]


def set_arriving(parameters: Iterable[nn.Parameter], coming: bool) -> bool:
    """Mark parameters as coming (their new values are on their way), or as here. Returns False if one of them cannot be
    marked, since it has a class of the user's own."""
    forms = COMING if coming else COME
    able = True
    for parameter in parameters:
        form = forms.get(type(parameter))
        if form is None:
            able = False
        else:
            parameter.__class__ = form  # type: ignore[assignment]
    return able


def before(parameter: Tensor) -> type[Tensor]:
    """The class that a parameter had before it was wrapped."""
    return FakeTensor if isinstance(parameter, FakeTensor) else nn.Parameter
