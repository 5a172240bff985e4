"""What an engine finds in the arguments and in the output of a forward: every tensor, in whatever it is wrapped."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import register_pytree_node

from zerolab.zero.schedule import tensors_in

a, b, c = torch.zeros(1), torch.ones(2), nn.Parameter(torch.ones(3))
Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    loss: torch.Tensor
    others: Any = None


class Bag:
    """A class that torch was told how to look into."""

    def __init__(self, held: list[Any]) -> None:
        self.held = held


register_pytree_node(Bag, lambda bag: (bag.held, None), lambda held, _: Bag(list(held)))


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        (a, [a]),
        (c, [c]),
        (None, []),
        ("text", []),
        (Output, []),
        ((), []),
        (((a, None, 3), {"mask": b, "flag": True}), [a, b]),
        ([[a], (b, [c])], [a, b, c]),
        (Pair(a, {"x": [b]}), [a, b]),
        (OrderedDict(x=a, y=(b,)), [a, b]),
        (Output(a, [b, Output(c)]), [a, b, c]),
        ([Output(a), Pair(Output(b), c)], [a, b, c]),
        (Bag([a, Output(b)]), [a, b]),
        (Bag([Bag([c])]), [c]),
    ],
)
def test_every_tensor_is_found_in_order(tree: Any, found: list[torch.Tensor]) -> None:
    seen = tensors_in(tree)
    assert [id(tensor) for tensor in seen] == [id(tensor) for tensor in found]
