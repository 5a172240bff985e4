"""What is attached to an engine from outside. The engine tells it of moments, and knows nothing of what it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any


class Guards:
    """Objects with methods for some of these moments. Each may raise, which ends the call that it is told of.

    attach(engine), detach(engine)            the engine is complete; it is closed
    before_call()                             the engine is called
    before_forward()                          the model's own forward begins
    before_backward()                         a backward begins
    before_step(), before_update()            a step or an overwrite begins; the optimizer is about to run
    before_read()                             parameters are about to be saved, or handed out whole
    new_values()                              parameters have new values, by a step or because they were overwritten
    lend(unit), take_back(unit)               everybody may use the gathered parameters of a unit, and no longer
    after_unit(unit, outputs)                 a module of the unit gave these tensors
    before_release()                          all units that nobody needs are about to be released
    published(unit, buckets), arrived(buckets)    a step returns while their new parameters are on their way; they came
    """

    def __init__(self, guards: Sequence[Any]) -> None:
        self.guards = list(guards)
        self._methods: defaultdict[str, list[Callable[..., None]]] = defaultdict(list)
        for guard in guards:
            for name in dir(guard):
                if not name.startswith("_") and callable(getattr(type(guard), name, None)):
                    self._methods[name].append(getattr(guard, name))

    def tell(self, moment: str, *about: Any) -> None:
        """Tell all of them, in order."""
        for method in self._methods.get(moment, ()):
            method(*about)
