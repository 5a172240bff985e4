"""Which parameters travel together: a model as a list of units, a unit as a few buckets.

A unit is one or several modules that are gathered, used and released as one: an embedding, a transformer block,
the head. A bucket is one flat buffer of a unit; parameters of other dtypes, and frozen ones, have their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import torch
from torch import nn

from zerolab.collectives.contract import Collectives
from zerolab.collectives.handle import Handle
from zerolab.errors import InputError
from zerolab.flat.layout import BucketPlan, lay_out, split_by_size
from zerolab.flat.views import point
from zerolab.zero.bucket import Bucket
from zerolab.zero.table import UNSHARDED, Dtypes, Sharding, make_rows

GroupOf = Callable[[str, nn.Parameter], Mapping[str, Any]]
"""Optimizer options of a parameter, such as {"weight_decay": 0.0}; those alike share a group."""
CommOf = Callable[[nn.Parameter], Collectives]
"""The ranks over which a parameter's states are sharded."""


def dtypes_of(dtype: torch.dtype, wanted: Dtypes | None, persistent: bool = False) -> Dtypes:
    """The dtypes of the states of parameters in `dtype`: as the model has it without `wanted`, or for integers."""
    if wanted is None or not dtype.is_floating_point:
        return Dtypes(*[dtype] * 6)
    return replace(wanted, shard=wanted.params) if persistent else wanted


class Presence(Enum):
    """Where the parameters of a unit are that are stored as shards. (Others are always gathered.)

    SHARDED --prefetch or gather--> GATHERING --gather--> GATHERED --release--> SHARDED
                                        +--- failed, or released: nobody came for it ---> SHARDED
    """

    SHARDED = "each rank has its shard"
    GATHERING = "an all-gather writes them"
    GATHERED = "all are here"


class Unit:
    """Modules whose parameters are gathered and released together.

    gathered   the buckets that come and go: those that are stored as shards
    published  those whose new parameters ranks hand to each other after a step
    numel      their elements, padding included
    gathering  the calls by which they came last, or are coming; none of those that failed
    arriving   the calls by which new parameters come that a step has published
    inside     how many runs of its modules have begun and not ended
    ran        how many runs have ended in this forward
    kept       whether it stays after its forward for its backward
    """

    def __init__(self, name: str, modules: list[nn.Module], buckets: list[Bucket]) -> None:
        self.name = name
        self.modules = modules
        self.buckets = buckets
        self.trainable = [bucket for bucket in buckets if bucket.trainable]
        self.gathered = [bucket for bucket in buckets if bucket.rows.parameters.depth]
        self.published = [bucket for bucket in self.trainable if bucket.rows.publishes]
        self.numel = sum(bucket.layout.numel for bucket in self.gathered)
        self.presence = Presence.SHARDED if self.gathered else Presence.GATHERED
        self.gathering: list[Handle] = []
        self.arriving: list[Handle] = []
        self.inside = self.ran = 0
        self.kept = False

    def start_gather(self) -> None:
        """Start to gather the parameters, unless they are here or on their way."""
        if self.presence is not Presence.SHARDED:
            return
        for bucket in self.gathered:
            bucket.tier.resize(bucket.whole.untyped_storage(), bucket.layout.numel * bucket.dtype.itemsize)
        with self.gathered[0].tier.beside:
            # The unit's name keeps ranks that run different units from taking each other's for their own.
            self.gathering = [
                bucket.gather(shard, self.name) for bucket, shard in zip(self.gathered, self._shards(), strict=True)
            ]
        self.presence = Presence.GATHERING

    def prefetch(self) -> None:
        """Begin to read the shards, should they be on a disk."""
        if self.presence is Presence.SHARDED:
            for bucket in self.gathered:
                bucket.tier.prefetch(bucket)

    def gather(self) -> None:
        if self.presence is Presence.GATHERED:
            return
        self.start_gather()
        # What the others sent is here. They may still read this rank's shard: who writes to it calls `settle` first.
        self._wait(Handle.arrived)
        for bucket in self.gathered:
            point(bucket.parameters, bucket.views)
        self.presence = Presence.GATHERED

    def settle(self) -> None:
        """Return once no collective uses the memory of the gathered parameters, and no rank reads this one's shards."""
        self._wait(Handle.wait)

    def _wait(self, until: Callable[[Handle], Any]) -> None:
        try:
            for handle in self.gathering:
                until(handle)
        except BaseException:
            # A failure is said once: nobody waits for these calls again.
            self.presence, self.gathering = Presence.SHARDED, []
            raise

    def release(self) -> None:
        """Let the gathered parameters go."""
        if not self.gathered or self.presence is Presence.SHARDED:
            return
        before, self.presence = self.presence, Presence.SHARDED
        if before is Presence.GATHERING:
            # A gather that nobody came for still writes; its buffer may go only when it has ended.
            self.settle()
        for bucket in self.gathered:
            bucket.release()

    def publish(self) -> None:
        self.arriving = [bucket.publish() for bucket in self.published]

    def arrive(self) -> None:
        for handle in self.arriving:
            handle.wait()
        # Only now: if a wait failed, they still count as on their way.
        self.arriving = []

    def _shards(self) -> list[torch.Tensor]:
        """This rank's shards, all before the first is sent: one that cannot be read must not leave it half-way."""
        try:
            return [bucket.tier.fetch(bucket, bucket.own_part(bucket.whole)) for bucket in self.gathered]
        except Exception:
            for bucket in self.gathered:
                bucket.tier.forget()
                bucket.release()
            raise


def settle_all(units: Iterable[Unit]) -> None:
    """Return once no rank reads this one's shards."""
    for unit in units:
        unit.settle()


def find_units(
    model: nn.Module,
    ranks: int | CommOf,
    modules: Sequence[nn.Module] | None = None,
    group_of: GroupOf | None = None,
    sharding: Sharding = UNSHARDED,
    replicas: int | None = None,
) -> list[Unit]:
    """Cut `model` into units, in forward order, and lay each one out for `ranks`. `modules` says what the units are;
    else `model.units()` does, else `guess_modules`. So many `replicas` hold the same shards."""
    if modules is None:
        own = getattr(model, "units", None)
        modules = own() if callable(own) else guess_modules(model)
    names = {id(module): name for name, module in model.named_modules()}
    strangers = [type(module).__name__ for module in modules if id(module) not in names]
    if strangers:
        raise InputError(f"unit {strangers[0]} is no part of {type(model).__name__}; name modules of this model")
    units = []
    for members, owned in join_tied(model, modules):
        name = names[id(members[0])] or "root"
        buckets = cut_buckets(name, owned, ranks, group_of, sharding, replicas)
        units.append(Unit(name, members, buckets))
    if not units:
        raise InputError(f"{type(model).__name__} has no parameters; there is nothing to shard")
    return units


def guess_modules(model: nn.Module) -> list[nn.Module]:
    """Units of a model that does not name them: the entries of its lists of layers, and what stands beside them."""
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        has_layers = any(isinstance(part, nn.ModuleList | nn.Sequential) and len(part) > 1 for part in module.modules())
        if not has_layers:
            found.append(module)
            return
        if module._parameters:
            found.append(module)
        for child in module.children():
            visit(child)

    visit(model)
    return found


def join_tied(
    model: nn.Module, modules: Sequence[nn.Module]
) -> list[tuple[list[nn.Module], list[tuple[str, nn.Parameter]]]]:
    """Give each parameter to the innermost unit around it; modules that share one become one unit, where the first
    stood. What no unit holds goes to the model itself."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inner = {id(module) for module in modules}
    groups: list[tuple[list[nn.Module], dict[int, nn.Parameter]]] = []
    # The model itself stands first, so that what hangs on it directly, whose gradients may come late, is reduced last.
    for module in [*([] if id(model) in inner else [model]), *dict.fromkeys(modules)]:
        parameters = {id(p): p for p in own_parameters(module, inner) if id(p) in names}
        if not parameters:
            continue
        tied = [group for group in groups if group[1].keys() & parameters.keys()]
        joined: tuple[list[nn.Module], dict[int, nn.Parameter]] = ([], {})
        for members, owned in [*tied, ([module], parameters)]:
            joined[0].extend(members)
            joined[1].update(owned)
        at = groups.index(tied[0]) if tied else len(groups)
        groups = [*groups[:at], joined, *(group for group in groups[at:] if group not in tied)]
    return [(members, [(names[key], p) for key, p in owned.items()]) for members, owned in groups]


def own_parameters(module: nn.Module, inner: set[int]) -> list[nn.Parameter]:
    """Parameters of `module` that lie in none of the units inside it."""
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    for child in module.children():
        if id(child) not in inner:
            own += own_parameters(child, inner)
    return own


def cut_buckets(
    unit: str,
    parameters: list[tuple[str, nn.Parameter]],
    ranks: int | CommOf,
    group_of: GroupOf | None,
    sharding: Sharding,
    replicas: int | None,
) -> list[Bucket]:
    """Buckets of one unit: by dtype, by whether they train and are persistent, and by how many ranks, each of at most
    `bucket_numel` elements unless a single parameter is larger. Narrow dtypes are aligned to as many bytes as fp32."""
    kinds: dict[tuple[Dtypes, bool, bool, int], dict[str, nn.Parameter]] = {}
    for name, parameter in parameters:
        persistent = 0 < sharding.persistence_numel >= parameter.numel()
        over = ranks if isinstance(ranks, int) else ranks(parameter).size
        key = dtypes_of(parameter.dtype, sharding.dtypes, persistent), parameter.requires_grad, persistent, over
        kinds.setdefault(key, {})[name] = parameter
    buckets = []
    for (dtypes, trainable, persistent, over), named in kinds.items():
        itemsize = dtypes.params.itemsize
        align = sharding.align * max(1, 4 // itemsize)
        # Persistent parameters have stage 2's rows.
        stage = min(sharding.stage, 2) if persistent else sharding.stage
        stages, sizes = ([stage], [over]) if replicas is None else ([0, stage], [replicas, over])
        rows = make_rows(stages, sizes, dtypes, trainable, sharding.tiers, sharding.all_reduce)
        numels = ((name, parameter.numel()) for name, parameter in named.items())
        for run in split_by_size(numels, sharding.bucket_numel):
            layout = lay_out({name: named[name].shape for name in run}, over, align)
            options = (group_of(name, named[name]) if group_of else {} for name in run)
            groups = tuple(tuple(sorted(its.items())) for its in options)
            hash(groups)  # a list in them would fail only when the model is in its buckets
            plan = BucketPlan(unit, layout, itemsize, trainable, groups, persistent)
            buckets.append(Bucket(plan, [named[name] for name in run], rows))
    return buckets
