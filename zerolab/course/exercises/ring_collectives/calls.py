"""How functions of lesson 01 are called: twice, with other data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.judge.observe import Notes

Tensor = torch.Tensor


def call_twice(
    fn: Callable[..., Any], comm: Collectives, tensor: Tensor, other: Tensor | None, *rest: Any
) -> dict[str, Any]:
    """What a collective makes of `tensor`, of `other` after that, and what then has become of its first result. Where
    there is no other, such as where memory is measured, it is called once."""
    value = fn(comm, tensor, *rest)
    seen: dict[str, Any] = {"messages": messages_so_far(comm)}
    if other is None or not isinstance(value, Tensor):
        return seen | {"value": value}
    first = value.clone()
    again = fn(comm, other, *rest)
    return seen | {"value": first, "kept": value, "again": again}


def broadcast_and_overwrite(
    fn: Callable[..., Any], comm: Collectives, tensor: Tensor, other: Tensor | None, src: int
) -> dict[str, Any]:
    """What a broadcast returns, and the tensor afterwards; whether both are one, which shows when the caller uses its
    tensor again, at once; and what a second call returns."""
    value = fn(comm, tensor, src)
    seen: dict[str, Any] = {"messages": messages_so_far(comm)}
    if not isinstance(value, Tensor):
        return seen | {"value": value}
    seen |= {"value": value.clone(), "tensor": tensor.clone()}
    tensor.fill_(USED_AGAIN)
    seen |= {"one": torch.equal(value, tensor)}
    return seen if other is None else seen | {"kept": seen["value"], "again": fn(comm, other, src)}


USED_AGAIN = -1.0
"""What the caller writes into its tensor when the broadcast has returned; no case has such a number."""


def messages_so_far(comm: Collectives) -> int:
    """How many messages this rank has sent, as the check notes them."""
    assert isinstance(comm.transport, Notes)
    return len(comm.transport.sent)
