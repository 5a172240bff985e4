"""How an optimizer's states are stored, and in how many bytes: what the engine builds and the ledger predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from zerolab.offload.places import SUB_GROUP, Offload
from zerolab.precision.codec import BLOCK, Codec, codec_of
from zerolab.precision.recipe import Precision


@dataclass(frozen=True)
class StorageFormat:
    """How the states of one bucket are stored.

    step_dtype  the dtype in which the step is computed
    main        the codec of the main parameters; None where the rank's shard of the parameters is all that is kept
    states      the codec of each of the optimizer's long states, by name
    """

    step_dtype: torch.dtype
    main: Codec | None
    states: Mapping[str, Codec]

    @property
    def codecs(self) -> list[Codec]:
        return [*self.states.values(), *([self.main] if self.main else [])]

    def nbytes(self, numel: int) -> int:
        """Bytes of the states of `numel` elements, step counters left out."""
        return sum(codec.nbytes(numel) for codec in self.codecs)

    @property
    def is_plain(self) -> bool:
        """Whether the states are stored as the step uses them."""
        return all(codec.dtype == self.step_dtype for codec in self.codecs)


def format_of(
    native: torch.dtype, precision: Precision | None, offload: Offload, names: Sequence[str], persistent: bool = False
) -> StorageFormat:
    """The storage format of a bucket. Without a recipe all has the dtype `native`, that of the model's parameters;
    `names` are the optimizer's long states. A `persistent` bucket's parameters stay on the device."""
    step_dtype = native if precision is None else torch.float32
    parameters = "device" if persistent else offload.parameters
    together = offload.optimizer == parameters != "disk"
    one_copy = precision is None or precision.shares_main or (precision.sharded_main and not persistent)
    if precision is None:
        return StorageFormat(step_dtype, None if together else Codec(native), {name: Codec(native) for name in names})
    formats = {"exp_avg": precision.exp_avg, "exp_avg_sq": precision.exp_avg_sq}
    states = {name: codec_of(name, formats.get(name, "fp32")) for name in names}
    return StorageFormat(step_dtype, None if together and one_copy else Codec(precision.dtype("main_params")), states)


def sub_group_limit(precision: Precision | None, offload: Offload) -> int | None:
    """Elements of a sub-group: None, all at once, where the step uses every state where and as it rests."""
    if precision in (None, Precision()) and offload.optimizer == "device":
        return None
    return offload.sub_group_numel or SUB_GROUP


def align_of(precision: Precision | None) -> int:
    """Elements at which every cut must lie: blocks that share a scale stay whole."""
    scaled = precision is not None and {precision.exp_avg, precision.exp_avg_sq} & {"fp16", "fp8"}
    return BLOCK if scaled else 1


@dataclass(frozen=True)
class StateSize:
    """What an optimizer keeps for a tensor: tensors as long as it, by name if that matters, and of fixed size (a step
    counter); and whether that is all."""

    tensors_per_element: int
    bytes_per_tensor: int
    names: tuple[str, ...] = ()
    complete: bool = True

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(f"state {at}" for at in range(self.tensors_per_element)))
