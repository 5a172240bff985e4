"""Checkpoints of torch's own distributed checkpointing (torch.distributed.checkpoint, DCP), written and read.

    to_dcp("runs/a", "runs/a-dcp")          # for FSDP2, DDP or one process
    from_dcp("runs/b-dcp", "runs/b")        # from any of them, for any engine

What both folders hold, in torch's names (get_model_state_dict, get_optimizer_state_dict):

    model.NAME                              parameters, buffers, and the other names of tied ones
    optim.state.NAME.exp_avg                each state of the optimizer by parameter, its step counter, too
    optim.param_groups.0.params             the names of a group's parameters
    optim.param_groups.0.lr                 a group's options
    optim.param_groups.NAME.lr              the same by parameter (flatten_optimizer_state_dict=True)

A DCP folder has no random generators, no loss scale and no scheduler: they begin anew.
"""

from zerolab.apps.interop.dcp.read import from_dcp
from zerolab.apps.interop.dcp.write import to_dcp

__all__ = ["from_dcp", "to_dcp"]
