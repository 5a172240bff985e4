"""What an engine hangs on modules and on autograd's graph, and what others hang on an engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from zerolab.errors import StateError

COPY = (
    "a copy or a pickle of a model that is in a ZeroEngine would be parted from it: take engine.state_dict(), which "
    "every rank calls, and load it into a new model"
)


class Hook:
    """A function that a module calls around its forward. It refuses to be copied or pickled with its module, since the
    copy would call it, too.

    Under torch.compile one graph ends, the function runs, and the next graph begins. Compiled itself, it would be
    several graphs more for each unit.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        self.between_graphs = torch.compiler.disable(
            run,
            reason="ZeroEngine gathers and releases units between compiled graphs: call torch.compile without "
            "fullgraph=True",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Outside of torch.compile the wrapper does nothing but cost time, at every module.
        if torch.compiler.is_compiling():
            return self.between_graphs(*args, **kwargs)
        return self.run(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise StateError(COPY)


class Guards:
    """What is attached to an engine from outside: objects with methods for some of these moments. Each may raise, which
    ends the call that it is told of. The engine knows nothing of what they do.

    attach(engine), detach(engine)            the engine is complete; it is closed
    before_call()                             the engine is called
    before_forward(), before_backward()       the model's own forward begins; a backward
    before_step(), before_update()            a step or an overwrite begins; the optimizer is about to run
    before_read()                             parameters are about to be saved, or handed out whole
    new_values()                              parameters have new values, by a step or because they were overwritten
    lend(unit), take_back(unit)               everybody may use the gathered parameters of a unit, and no longer
    after_unit(unit, outputs)                 a module of the unit gave these tensors
    before_release()                          all units that nobody needs are about to be released
    published(unit), arrived(unit)            a step returns while its new parameters are on their way; they came
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


def nodes_of(outputs: list[torch.Tensor]) -> set[Any]:
    """The nodes of autograd's graph that made these tensors. A view may lose its node to a later write in place; the
    node of its base stays."""
    if not torch.is_grad_enabled():
        return set()
    followed = [output for output in outputs if output.requires_grad]
    made = [tensor for output in followed for tensor in (output, output._base) if tensor is not None]
    return {tensor.grad_fn for tensor in made if tensor.grad_fn is not None}


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Tensors in nested tuples, lists, dicts and dataclasses."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    # What forwards mostly give. Torch's own walk knows more, and takes ten times as long.
    if type(tree) is tuple or type(tree) is list:
        return [tensor for part in tree for tensor in tensors_in(part)]
    if type(tree) is dict:
        return [tensor for part in tree.values() for tensor in tensors_in(part)]
    leaves = tree_leaves(tree)
    if len(leaves) != 1 or leaves[0] is not tree:
        return tensors_in(leaves)
    if is_dataclass(tree) and not isinstance(tree, type):
        return tensors_in([getattr(tree, field.name) for field in fields(tree)])
    return []
