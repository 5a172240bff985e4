"""Hooks on modules and tensors, and the tensors in what a module takes and gives."""

from __future__ import annotations

from collections.abc import Callable
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


def once(tensor: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
    """Hook the next gradient of `tensor`, not those after it: a parameter or an input of the model lives long."""

    def hooked(gradient: torch.Tensor) -> None:
        handle.remove()
        hook(gradient)

    handle = tensor.register_hook(hooked)


def nodes_of(outputs: list[torch.Tensor]) -> set[Any]:
    """The nodes of autograd's graph that made these tensors. A view may lose its node to a later write in place; the
    node of its base stays."""
    made = [tensor for output in outputs for tensor in (output, output._base) if tensor is not None]
    return {tensor.grad_fn for tensor in made if tensor.grad_fn is not None}


def followed(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those whose gradients autograd will compute."""
    if not torch.is_grad_enabled():
        return []
    return [tensor for tensor in tensors if tensor.requires_grad]


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Tensors in nested tuples, lists, dicts and dataclasses."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    # What forwards mostly take and give. Torch's own walk knows more, and takes ten times as long.
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
