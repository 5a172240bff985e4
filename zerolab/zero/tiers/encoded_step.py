"""States that rest in other dtypes than the step uses: one record of bytes for each sub-group.

    record    for each segment:  main parameters | exp_avg | exp_avg_sq | ...      in the codecs of its storage format

The widest dtypes stand first, so that each begins at a multiple of its own width, however segments are cut.
A state that is stored as the step uses it is used where it lies in the record; others are decoded into memory of their
own, and encoded when they go back. Main parameters that are not in the record are the rank's shard itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zerolab.flat.views import address
from zerolab.precision.codec import Codec
from zerolab.zero.tiers.stored_step import StoredSegment, StoredState, StoredStep

Tensor = torch.Tensor


class EncodedStep(StoredStep):
    """The step where states rest in memory, encoded."""

    stays = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for segment in self.segments:
            segment.tensor.data = segment.tensor.data.new_empty(0)

    def prepare(self) -> None:
        self._records: list[Tensor] = []

    def begin_group(self, group: list[StoredSegment]) -> None:
        raw = torch.empty(record_bytes(group), dtype=torch.uint8, device=self.device)
        self._records.append(raw)
        self.write_main(group, raw)
        self.stand_in(group)

    def stand_in(self, group: list[StoredSegment]) -> None:
        """One element for each segment: an optimizer that makes its states at once (Adagrad) shows on it what they
        begin with."""
        for segment in group:
            segment.tensor = torch.zeros(1, dtype=segment.dtype, device=self.device)

    def at_hand(self) -> Iterator[list[StoredSegment]]:
        for group, raw in zip(self.groups, self._records, strict=True):
            self.decode(group, raw)
            yield group
            self.encode(group, raw)

    def resting(self) -> list[Tensor]:
        return [*self._records, *self._counters()]

    def transient(self) -> list[Tensor | None]:
        states = [(segment, self.optimizer.state.get(segment.tensor, {})) for segment in self.hand]
        long = [state.get(name) for segment, state in states for name in segment.format.states]
        return [*super().transient(), *(segment.tensor for segment in self.hand), *long]

    def _counters(self) -> list[Tensor]:
        """States of fixed size, which stay in memory."""
        of_each = (
            [value for name, value in state.items() if name not in segment.format.states]
            for segment, state in self._states()
        )
        return [value for values in of_each for value in values if isinstance(value, Tensor)]

    def _states(self) -> list[tuple[StoredSegment, dict[str, Any]]]:
        return [(segment, self.optimizer.state.get(segment.tensor, {})) for segment in self.segments]

    def stored(self, writing: bool = False) -> Iterator[list[StoredState]]:
        for group, raw in zip(self.groups, self._records, strict=True):
            yield [StoredState(*field) for field in fields(group, raw)]

    def has_begun(self, segment: StoredSegment) -> bool:
        # After a step they are in the record, and none is at hand.
        state = self.optimizer.state.get(segment.tensor, {})
        return super().has_begun(segment) and not any(state[name].numel() for name in segment.format.states)

    def go_on(self, segment: StoredSegment, counters: dict[str, Any]) -> None:
        nothing = {name: segment.tensor.new_empty(0) for name in segment.format.states}
        self.optimizer.state[segment.tensor] = {**counters, **nothing}

    # Between a record and the hand.

    def write_main(self, group: list[StoredSegment], raw: Tensor) -> None:
        """Put the first main parameters into a record; the optimizer has not made its states yet."""
        for segment, name, codec, stored in fields(group, raw):
            if name == "main":
                codec.put(self.initial(segment).to(self.device, segment.dtype), stored)

    def decode(self, group: list[StoredSegment], raw: Tensor) -> None:
        self.hand = group
        for segment in group:
            if segment.format.main is None:
                segment.tensor.data = segment.part(self._kept(segment.bucket)).to(self.device, segment.dtype)
        for segment, name, codec, stored in fields(group, raw):
            state: dict[str, Any] = self.optimizer.state[segment.tensor]
            if name == "main":
                segment.tensor.data = decoded(codec, stored, segment)
            elif state:
                beginning = state[name]
                state[name] = decoded(codec, stored, segment)
                if beginning.numel() == 1:
                    state[name].fill_(beginning.view(()))

    def encode(self, group: list[StoredSegment], raw: Tensor) -> None:
        for segment, name, codec, stored in fields(group, raw):
            state = self.optimizer.state[segment.tensor]
            value = segment.tensor if name == "main" else state[name]
            if address(value) != address(stored):
                if codec.scaled:
                    # Padding is in no gradient; where something else put it there, it must not share a scale.
                    for start, stop in segment.gaps:
                        value.detach()[start:stop] = 0
                codec.put(value.detach(), stored)
            if name != "main":
                state[name] = value.new_empty(0)
        for segment in group:
            segment.tensor.data = segment.tensor.data.new_empty(0)


def fields(group: list[StoredSegment], raw: Tensor) -> Iterator[tuple[StoredSegment, str, Codec, Tensor]]:
    """Whose state, its name, its codec and its bytes, in the order of the record."""
    all_fields: list[tuple[StoredSegment, str, Codec]] = []
    for segment in group:
        if segment.format.main is not None:
            all_fields.append((segment, "main", segment.format.main))
        all_fields += [(segment, name, codec) for name, codec in segment.format.states.items()]
    at = 0
    for segment, name, codec in sorted(all_fields, key=lambda field: -field[2].width):
        nbytes = codec.nbytes(segment.numel)
        yield segment, name, codec, raw[at : at + nbytes]
        at += nbytes


def record_bytes(group: list[StoredSegment]) -> int:
    return sum(segment.format.nbytes(segment.numel) for segment in group)


def decoded(codec: Codec, stored: Tensor, segment: StoredSegment) -> Tensor:
    """A state at hand: in the record itself if it is stored as the step uses it, else decoded."""
    if codec.dtype == segment.dtype:
        return codec.view(stored, segment.numel)
    out = stored.new_empty(segment.numel, dtype=segment.dtype)
    codec.get(stored, out)
    return out
