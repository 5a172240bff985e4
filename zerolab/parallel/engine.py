"""Training on a mesh: ZeRO over the data-parallel ranks, of a model whose
parameters are sharded along other axes, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zerolab.collectives.contract import Collectives
from zerolab.collectives.observe import gather_records
from zerolab.errors import InputError, StateError
from zerolab.flat.views import has_values
from zerolab.parallel.mesh import Mesh
from zerolab.parallel.placement import Cut, part_of, sharded, unshard
from zerolab.zero.zero_engine import ZeroEngine


class GridEngine(ZeroEngine):
    """A `ZeroEngine` on a mesh, with the same settings.

    States are sharded over dp_shard, those of experts over efsdp, and
    replicated over dp_replicate. Ranks that differ along tp get the same part
    of a batch.
    """

    def __init__(self, model: nn.Module, mesh: Mesh, stage: int, lr: float | None = None, **settings: Any) -> None:
        # Experts share out their auxiliary loss over the data-parallel ranks, too.
        experts = any(hasattr(module, "shard_over") for module in model.modules())
        shares = mesh.sizes["tp"] * mesh.sizes["ep"] > 1 or experts
        needs = {
            "shard_model": shares and not hasattr(model, "mesh"),
            "cut_stages": mesh.sizes["pp"] > 1 and not hasattr(model, "stages"),
        }
        for function in filter(needs.get, needs):
            raise InputError(f"the model is whole, and the mesh is {mesh.grid}; call {function}(model, mesh) before")
        self.mesh, self._compared = mesh, False
        # An expert's gradient holds those of ep ranks' tokens already, and is averaged over
        # efsdp ranks: the mean over all data-parallel ranks is one of ep times as many.
        self._hooks = [
            parameter.register_hook(lambda gradient: gradient / mesh.sizes["ep"])
            for parameter in model.parameters()
            if "ep" in sharded(parameter)
        ]
        if mesh.sizes["dp_replicate"] > 1:
            settings["replicate"] = mesh.comms["dp_replicate"]
        super().__init__(model, mesh.comms["dp_shard"], stage, lr, **settings)
        if mesh.recorder is not None:
            mesh.recorder.engine = self
        # In the norm each rank counts its own shard, which so many ranks have.
        for bucket in self.buckets:
            for parameter, slot in zip(bucket.parameters, bucket.layout.slots, strict=True):
                along_tp = 1 if "tp" in sharded(parameter) else mesh.sizes["tp"]
                bucket.holders[slot.name] = mesh.sizes["dp_replicate"] * along_tp

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._compared:
            self._compared = True
            self.compare_batches(args)
        return super().__call__(*args, **kwargs)

    def compare_batches(self, args: tuple[Any, ...]) -> None:
        """Raise a MismatchError if ranks along tp begin with parts of a batch
        that differ: their sums would be of different tokens, without a
        word."""
        whole = [one for one in args if isinstance(one, Tensor) and not one.is_floating_point()]
        if whole and all(map(has_values, whole)):
            sums = [f"tokens that add up to {int(one.sum())}" for one in whole]
            differ = "ranks that share their matrices got different batches ({listed}); give them the same"
            self.mesh.comms["tp"].compare_lines(sums, differ)

    def close(self) -> None:
        super().close()
        for hook in self._hooks:
            hook.remove()

    def comm_of(self, parameter: nn.Parameter) -> Collectives:
        return self.mesh.comms["efsdp" if "ep" in sharded(parameter) else "dp_shard"]

    @property
    def everybody(self) -> Collectives:
        return self.mesh.world

    def state_dict(self, to: int | None = None, *, main: bool = False) -> dict[str, Tensor]:
        """The whole model's, put together along every axis; `to` is a rank of
        the world."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        state = {
            name: unshard(value, parameters[name], self.mesh) if name in parameters else value
            for name, value in super().state_dict(main=main).items()
        }
        state = self.of_all_stages(state)
        return state if to in (None, self.mesh.world.rank) else {}

    def of_all_stages(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """What each stage of the pipeline has, on all, in the order of the stages."""
        comm, found = self.mesh.comms["pp"], {}
        about = [[name, [*value.shape], str(value.dtype)] for name, value in own.items()]
        for stage, records in enumerate(gather_records(comm, about) if comm.size > 1 else []):
            for name, shape, dtype in records:
                value = own[name] if stage == comm.rank else torch.empty(shape, dtype=getattr(torch, dtype[6:]))
                found[name] = comm.broadcast(value.to(comm.device), stage).cpu()
        return found or own

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
        """Overwrite parameters by those of a whole model's state_dict."""
        here = [*self.model.state_dict(keep_vars=True)]
        of_stages = gather_records(self.mesh.comms["pp"], here)
        others = {name for names in of_stages for name in names} - {*here}
        own = {name: value for name, value in state_dict.items() if name not in others}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            cut: Cut | None = getattr(parameter, "cut", None)
            if cut is not None and name in own and own[name].shape[cut.dim] == cut.length:
                own[name] = part_of(own[name], cut, self.mesh.comms[cut.axis])
        return super().load_state_dict(own, strict)

    def check_between_steps(self, what: str, mends: bool = False, publishes: bool = False) -> None:
        shared = any(self.mesh.sizes[axis] > 1 for axis in ("pp", "tp", "ep"))
        if what in ("save", "load", "export") and shared:
            raise StateError(
                f"{what} knows no model that is sharded over {self.mesh.grid} yet; take "
                "state_dict() and load_state_dict(), which are whole"
            )
        super().check_between_steps(what, mends, publishes)
