"""What keeps habits from going wrong in silence, attached to an engine from outside: docs/gestures.md has the list.

    ParameterGuard  a parameter's gradient, memory and requires_grad are the engine's; at stage 3 it has elements in its
                    unit's forward only, and a use elsewhere has the unit gathered
    OptimizerGuard  the optimizer's own tensors, of which a rank has a shard alone
    ModelGuard      parameters that come to the model, or leave it, after it was wrapped

`ZeroEngine(..., guards=())` is without them: for models that use their weights inside their unit only, by a caller who
changes nothing else of model and optimizer. Steps are the same, bit for bit.
"""

from zerolab.zero.guards.guards import DEFAULT, ModelGuard, OptimizerGuard, ParameterGuard

__all__ = ["DEFAULT", "ModelGuard", "OptimizerGuard", "ParameterGuard"]
