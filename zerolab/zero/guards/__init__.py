"""What keeps habits from going wrong in silence, attached to an engine from outside: docs/gestures.md has the list.

`ZeroEngine(..., guards=())` is without them: for models that use their weights inside their unit only, by a caller who
changes nothing else of model and optimizer. Steps are the same, bit for bit.
"""

from zerolab.zero.guards.optimizer import OptimizerGuard
from zerolab.zero.guards.parameters import ParameterGuard

DEFAULT = (ParameterGuard, OptimizerGuard)

__all__ = ["DEFAULT", "OptimizerGuard", "ParameterGuard"]
