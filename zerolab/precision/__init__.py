"""Dtypes of states (`recipe`, `codec`), the scale of losses (`scaler`), fp8 layers (`fp8`), formats bit by bit."""

from zerolab.precision.recipe import PRECISIONS, Precision
from zerolab.precision.scaler import LossScaler

__all__ = ["PRECISIONS", "LossScaler", "Precision"]
