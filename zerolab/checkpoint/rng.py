"""The random generators of a rank, as bytes that safetensors can hold, and back."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from zerolab.checkpoint.manifest import RNG as PREFIX


def capture(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of torch's, numpy's and Python's generators, and of the rank's GPU."""
    found = {"torch": torch.get_rng_state(), "python": _packed(random.getstate())}
    kind, words, *rest = numpy.random.get_state(legacy=True)
    if kind == "MT19937":
        found["numpy"] = _packed([kind, numpy.asarray(words).tolist(), *rest])
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return {PREFIX + name: state for name, state in found.items()}


def restore(states: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Go back to states that `capture` gave; what is not among them stays as it is."""
    named = {name.removeprefix(PREFIX): state for name, state in states.items()}
    if "torch" in named:
        torch.set_rng_state(named["torch"])
    if "python" in named:
        version, words, gauss = _unpacked(named["python"])
        random.setstate((version, tuple(words), gauss))
    if "numpy" in named:
        kind, words, *rest = _unpacked(named["numpy"])
        numpy.random.set_state((kind, numpy.array(words, dtype="uint32"), *rest))
    if "cuda" in named and device.type == "cuda":
        torch.cuda.set_rng_state(named["cuda"], device)


def _packed(value: Any) -> torch.Tensor:
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


def _unpacked(state: torch.Tensor) -> Any:
    return json.loads(bytes(state.tolist()))
