"""Training a small language model on real text with any stage: one rank's loop, the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerolab.lazy import import_when_asked

if TYPE_CHECKING:
    from zerolab.train.run import Report, train, write_json

__all__ = ["Report", "train", "write_json"]
import_when_asked(__name__)
