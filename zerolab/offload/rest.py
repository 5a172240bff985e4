"""The form in which an optimizer's states rest, and its bytes: what the engine builds and the ledger predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from zerolab.offload.places import NOWHERE, Offload
from zerolab.precision.codec import BLOCK, Codec, codec_of
from zerolab.precision.recipe import Precision


@dataclass(frozen=True)
class Rest:
    """Of one bucket's states: the codec of the main parameters, None if the rank's shard of the parameters is their
    form at rest, and the codec of each of the optimizer's long states by name. `hand` is the dtype of the step."""

    hand: torch.dtype
    main: Codec | None
    states: Mapping[str, Codec]

    def nbytes(self, numel: int) -> int:
        """Bytes of the states of `numel` elements, step counters left out."""
        codecs = [*self.states.values(), *([self.main] if self.main else [])]
        return sum(codec.nbytes(numel) for codec in codecs)

    @property
    def is_plain(self) -> bool:
        """Whether the states rest as the step uses them."""
        codecs = [*self.states.values(), *([self.main] if self.main else [])]
        return all(codec.dtype == self.hand for codec in codecs)


def rest_of(native: torch.dtype, precision: Precision | None, offload: Offload, names: Sequence[str]) -> Rest:
    """The form of a bucket whose parameters have the dtype `native` where no recipe says otherwise; `names` are the
    optimizer's long states."""
    hand = native if precision is None else torch.float32
    together = offload.optimizer == offload.parameters != "disk"
    one_copy = precision is None or precision.shares_main or precision.sharded_main
    if precision is None:
        return Rest(hand, None if together else Codec(native), {name: Codec(native) for name in names})
    formats = {"exp_avg": precision.exp_avg, "exp_avg_sq": precision.exp_avg_sq}
    states = {name: codec_of(name, formats.get(name, "fp32")) for name in names}
    return Rest(hand, None if together and one_copy else Codec(precision.dtype("main_params")), states)


def limit_of(precision: Precision | None, offload: Offload) -> int | None:
    """Elements of a sub-group: None, all at once, where the step uses every state where and as it rests."""
    return None if precision in (None, Precision()) and offload.optimizer == "device" else offload.sub_group_numel


def align_of(precision: Precision | None) -> int:
    """Elements at which every cut must lie: blocks that share a scale stay whole."""
    scaled = precision is not None and {precision.exp_avg, precision.exp_avg_sq} & {"fp16", "fp8"}
    return BLOCK if scaled else 1


__all__ = ["NOWHERE", "Rest", "align_of", "limit_of", "rest_of"]
