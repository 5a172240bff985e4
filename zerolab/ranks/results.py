"""What a launch gives back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Results(list[Any]):
    """The ranks' return values, in rank order: a list, with what else is known of the launch.

    `printed`  what each rank printed, a text by rank
    `seconds`  how long the launch took: virtual seconds in lockstep, else real ones
    `trace`    with trace=True: in lockstep a list of `Event`, else each rank's list of `Span`
    """

    def __init__(
        self, values: Iterable[Any], printed: list[str], seconds: float, trace: list[Any] | None = None
    ) -> None:
        super().__init__(values)
        self.printed = printed
        self.seconds = seconds
        self.trace = trace
