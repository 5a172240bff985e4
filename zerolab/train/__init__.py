"""Training a small language model on real text with any stage: one rank's loop, the whole run."""

from zerolab.train.run import Report, train, write_json

__all__ = ["Report", "train", "write_json"]
