"""One backward, which may bring gradients to several engines: a GAN's two models, an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from zerolab.collectives.call import backward_phase
from zerolab.errors import InputError, StateError
from zerolab.zero.gradients import StrayError

if TYPE_CHECKING:
    from zerolab.zero.engine import ZeroEngine


def check_together(first: ZeroEngine, others: Sequence[ZeroEngine]) -> list[ZeroEngine]:
    """The engines of one backward, each once."""
    engines = list(dict.fromkeys([first, *others]))
    for engine in engines:
        if not isinstance(engine, type(first)):
            raise InputError(f"also names a {type(engine).__name__}; give a list of ZeroEngines")
        if engine.loss_scale != first.loss_scale:
            raise InputError(
                f"losses are scaled by {first.loss_scale:g} in one engine and by {engine.loss_scale:g} in another, and "
                "one loss cannot be for both; give both one scale by ZeroEngine(scaler=LossScaler(static=...))"
            )
    return engines


def run_backward(engines: Sequence[ZeroEngine], loss: torch.Tensor, reduce: bool | None) -> None:
    """Bring the gradients of `loss` to the parameters of all these engines, of which the first scales it."""
    first = engines[0]
    for engine in engines:
        if engine.closed:
            raise StateError("this engine was closed and takes no gradients; wrap the model again in a new ZeroEngine")
        if engine._failed:
            raise StateError("an earlier backward failed half-way; call zero_grad() and repeat the whole step")
        engine._check_whole()
        engine._refuse_lost()
    for engine in engines:
        engine._failed = True
        engine.residency.begin_backward()
        engine.reducer.begin(engine._reduces if reduce is None else reduce)
    try:
        with backward_phase("backward"):
            (loss if first.scaler is None else loss.float() * first.scaler.scale).backward()
            for engine in engines:
                engine.reducer.finish()
    except StrayError as stray:
        raise StateError(
            f"this backward of the engine of {type(first.model).__name__} went on into {stray.model}, which is in "
            "another engine: name that one, backward(loss, also=[engine]), or detach() the tensor between the two"
        ) from None
    finally:
        for engine in engines:
            engine.reducer.end()
            engine.residency.end_backward()
    for engine in engines:
        engine._failed = False
