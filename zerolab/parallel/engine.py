"""Training on a mesh: ZeRO over the data-parallel ranks, of a model whose
parameters are sharded along other axes, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from zerolab.collectives.contract import Collectives
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
        needs = {"shard_model": mesh.sizes["tp"] * mesh.sizes["ep"], "cut_stages": mesh.sizes["pp"]}
        has = {"shard_model": hasattr(model, "mesh"), "cut_stages": hasattr(model, "stages")}
        for function in (name for name, ranks in needs.items() if ranks > 1 and not has[name]):
            raise InputError(f"the model is whole, and the mesh is {mesh.grid}; call {function}(model, mesh) before")
        if not hasattr(model, "mesh"):
            model.mesh = mesh  # type: ignore[assignment]
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
        return state if to in (None, self.mesh.world.rank) else {}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
        """Overwrite parameters by those of a whole model's state_dict."""
        own = dict(state_dict)
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            cut: Cut | None = getattr(parameter, "cut", None)
            if cut is not None and name in own and own[name].shape[cut.dim] == cut.length:
                own[name] = part_of(own[name], cut, self.mesh.comms[cut.axis])
        return super().load_state_dict(own, strict)

    def check_between_steps(self, what: str, mends: bool = False, publishes: bool = False) -> None:
        if what in ("save", "load", "export") and any(map(sharded, self.model.parameters())):
            raise StateError(
                f"{what} knows no model that is sharded over {self.mesh.grid} yet; take "
                "state_dict() and load_state_dict(), which are whole"
            )
        super().check_between_steps(what, mends, publishes)
