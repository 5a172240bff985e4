"""States that rest in other dtypes than the step uses: one record of bytes for each sub-group.

    record    for each part:  main parameters | exp_avg | exp_avg_sq | ...      in the codecs of its `Rest`

The widest dtypes stand first, so that each begins at a multiple of its own width, however parts are cut.
A state whose form at rest is plain is used where it lies in the record; others are decoded into memory of their own,
and encoded when they go back. Main parameters without a place in the record rest in the rank's shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zerolab.precision.codec import Codec
from zerolab.zero.update import Owned, Update

Tensor = torch.Tensor


class Packed(Update):
    """The step where states rest in memory, encoded."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for owned in self.owned:
            owned.tensor.data = owned.tensor.data.new_empty(0)

    def prepare(self) -> None:
        self._records: list[Tensor] = []

    def begin(self, group: list[Owned]) -> None:
        raw = self.allocate(record_bytes(group), torch.uint8)
        self._records.append(raw)
        self.write_main(group, raw)
        self.stand_in(group)

    def stand_in(self, group: list[Owned]) -> None:
        """One element for each part. An optimizer that makes its states at once (Adagrad) shows on it what they begin
        with."""
        for owned in group:
            owned.tensor = torch.zeros(1, dtype=owned.rest.hand, device=self.device)

    def at_hand(self) -> Iterator[list[Owned]]:
        for group, raw in zip(self.groups, self._records, strict=True):
            self.unpack(group, raw)
            yield group
            self.pack(group, raw)

    def resting(self) -> list[Tensor]:
        return [*self._records, *self._counters()]

    def passing(self) -> list[Tensor | None]:
        long = [state.get(name) for owned, state in self._states() for name in owned.rest.states]
        return [*super().passing(), *(owned.tensor for owned in self.owned), *long]

    def _counters(self) -> list[Tensor]:
        """States of fixed size, which stay in memory."""
        of_each = (
            [value for name, value in state.items() if name not in owned.rest.states] for owned, state in self._states()
        )
        return [value for values in of_each for value in values if isinstance(value, Tensor)]

    def _states(self) -> list[tuple[Owned, dict[str, Any]]]:
        return [(owned, self.optimizer.state.get(owned.tensor, {})) for owned in self.owned]

    # Between a record and the hand.

    def write_main(self, group: list[Owned], raw: Tensor) -> None:
        """Put the first main parameters into a record; the optimizer has not made its states yet."""
        for owned, name, codec, place in fields(group, raw):
            if name == "main":
                codec.put(self.initial(owned).to(self.device, owned.rest.hand), place)

    def unpack(self, group: list[Owned], raw: Tensor) -> None:
        for owned in group:
            if owned.rest.main is None:
                owned.tensor.data = owned.part(self._kept(owned.bucket)).to(self.device, owned.rest.hand)
        for owned, name, codec, place in fields(group, raw):
            state: dict[str, Any] = self.optimizer.state[owned.tensor]
            if name == "main":
                owned.tensor.data = taken(codec, place, owned)
            elif state:
                beginning = state[name]
                state[name] = taken(codec, place, owned)
                if beginning.numel() == 1:
                    state[name].fill_(beginning.item())

    def pack(self, group: list[Owned], raw: Tensor) -> None:
        for owned, name, codec, place in fields(group, raw):
            state = self.optimizer.state[owned.tensor]
            value = owned.tensor if name == "main" else state[name]
            if value.data_ptr() != place.data_ptr():
                if codec.scaled:
                    # Padding is in no gradient; where something else put it there, it must not share a scale.
                    for start, stop in owned.gaps:
                        value.detach()[start:stop] = 0
                codec.put(value.detach(), place)
            if name != "main":
                state[name] = value.new_empty(0)
        for owned in group:
            owned.tensor.data = owned.tensor.data.new_empty(0)


def fields(group: list[Owned], raw: Tensor) -> Iterator[tuple[Owned, str, Codec, Tensor]]:
    """Whose state, its name, its codec and its bytes, in the order of the record."""
    all_fields = [
        (owned, name, codec)
        for owned in group
        for name, codec in {**({"main": owned.rest.main} if owned.rest.main else {}), **owned.rest.states}.items()
    ]
    at = 0
    for owned, name, codec in sorted(all_fields, key=lambda field: -field[2].width):
        nbytes = codec.nbytes(owned.numel)
        yield owned, name, codec, raw[at : at + nbytes]
        at += nbytes


def record_bytes(group: list[Owned]) -> int:
    return sum(owned.rest.nbytes(owned.numel) for owned in group)


def taken(codec: Codec, place: Tensor, owned: Owned) -> Tensor:
    """A state at hand: in the record itself if it is plain there, else decoded."""
    if codec.dtype == owned.rest.hand:
        return codec.view(place, owned.numel)
    out = torch.empty(owned.numel, dtype=owned.rest.hand, device=place.device)
    codec.get(place, out)
    return out
