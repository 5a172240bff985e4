"""Training a small language model on real text with any stage: settings, one rank's loop, the whole run."""

from zerolab.train.config import TrainConfig, make_config
from zerolab.train.run import Report, train, write_json

__all__ = ["Report", "TrainConfig", "make_config", "train", "write_json"]
