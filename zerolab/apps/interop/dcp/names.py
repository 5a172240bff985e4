"""What the entries of a DCP folder are: parameters, buffers, an optimizer's states and groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Protocol

import torch
from torch import nn

from zerolab.checkpoint import plain
from zerolab.checkpoint.shards import buffers_of, tied_names
from zerolab.errors import CheckpointError

WEIGHTS_ALONE = 'convert the weights alone (optimizer="")'


class Entries(Protocol):
    """Entries of a DCP folder by key."""

    folder: Any
    entries: Any

    def shape(self, key: str) -> tuple[int, ...] | None: ...

    def dtype(self, key: str) -> torch.dtype: ...

    def read(self, key: str) -> Any: ...


@dataclass
class ParameterEntry:
    """A parameter: its key, whether it trains, and the keys of its long states, none if it was never stepped."""

    key: str
    trains: bool
    states: dict[str, str] = field(default_factory=dict)


@dataclass
class Contents:
    """What a DCP folder has, sorted.

    parameters  by name
    buffers     their keys, by name
    tied        other names: {name: first name}
    states      the optimizer's long states and their dtypes
    groups      as `optimizer_nonparam.json` has them
    optimizer   its class as far as its options tell
    steps       that it made
    """

    parameters: dict[str, ParameterEntry]
    buffers: dict[str, str]
    tied: dict[str, str]
    states: dict[str, torch.dtype]
    groups: list[dict[str, Any]]
    optimizer: str
    steps: int


def sort_entries(
    source: Entries, module: nn.Module | None, frozen: tuple[str, ...], buffers: tuple[str, ...], model: str, optim: str
) -> Contents:
    """What is what, by the names of the parts and by the module, if there is one; see `from_dcp`."""
    return _Sorting(source, module, frozen, buffers, model, optim).contents()


class _Sorting:
    def __init__(
        self,
        source: Entries,
        module: nn.Module | None,
        frozen: tuple[str, ...],
        buffers: tuple[str, ...],
        model: str,
        optim: str,
    ) -> None:
        self.source, self.module, self.frozen, self.buffers = source, module, frozen, buffers
        self.optim = optim
        self.of_model = {key[len(model) + 1 :]: key for key in source.entries if key.startswith(f"{model}.")}
        if not self.of_model:
            tops = sorted({key.partition(".")[0] for key in source.entries})
            raise CheckpointError(
                f"{source.folder} has no entry that begins with {model!r} (it has {', '.join(tops[:5])}); say what "
                'the model is called there: model="..."'
            )
        if all(name.startswith("module.") for name in self.of_model):
            # As DDP calls them.
            self.of_model = {name.removeprefix("module."): key for name, key in self.of_model.items()}

    def contents(self) -> Contents:
        state_keys, groups = self._state_keys(), self._groups()
        if state_keys and not groups:
            groups = [{"parameters": list(state_keys), "options": {}}]
        listed = [name for group in groups for name in group["parameters"]]
        parameters, buffers, tied = self._model(set(state_keys) | set(listed), bool(state_keys or listed))
        for name in [*state_keys, *listed]:
            if name not in parameters:
                raise CheckpointError(
                    f"the optimizer of {self.source.folder} has {name}, which is no parameter of its model; take "
                    "another checkpoint"
                )
        long = self._long(parameters, state_keys)
        counters = {name: keys.keys() - long.keys() for name, keys in state_keys.items()}
        for name, keys in state_keys.items():
            missing = next((state for state in long if state not in keys), None)
            if missing is not None:
                raise CheckpointError(
                    f"{self.source.folder} has no {missing} of {name}, but of other parameters; take another checkpoint"
                )
            parameters[name].states = {state: keys[state] for state in long}
        steps = 0
        for group in groups:
            group["counters"] = self._counters(group["parameters"], state_keys, counters)
            steps = max(steps, int(group["counters"].get("step", 0)))
        return Contents(parameters, buffers, tied, long, groups, _class_of(groups), steps)

    # The model.

    def _model(
        self, stepped: set[str], known: bool
    ) -> tuple[dict[str, ParameterEntry], dict[str, str], dict[str, str]]:
        if self.module is not None:
            return self._by_module(self.module, known)
        parameters, buffers = {}, {}
        for name, key in self.of_model.items():
            shape = self.source.shape(key)
            if shape is None:
                raise CheckpointError(
                    f"{key} in {self.source.folder} is no tensor, which no checkpoint can keep; save without it"
                )
            is_float = self.source.dtype(key).is_floating_point
            if name in stepped:
                parameters[name] = ParameterEntry(key, True)
            elif _matches(name, self.buffers) or not (is_float or _matches(name, self.frozen)):
                buffers[name] = key
            elif _matches(name, self.frozen) or not known:
                parameters[name] = ParameterEntry(key, not known)
            else:
                raise CheckpointError(
                    f"{name} has no optimizer states in {self.source.folder}, so it may be a frozen parameter, another "
                    "name of a tied one, or a buffer; say which: frozen=[...] or buffers=[...], or give the model "
                    "(module=...)"
                )
        return parameters, buffers, {}

    def _by_module(
        self, module: nn.Module, known: bool
    ) -> tuple[dict[str, ParameterEntry], dict[str, str], dict[str, str]]:
        tied = tied_names(module)
        tensors: dict[str, torch.Tensor] = dict(module.named_parameters())
        own_buffers = buffers_of(module)
        for name, tensor in [*tensors.items(), *own_buffers.items()]:
            key = self.of_model.get(name)
            if key is None:
                raise CheckpointError(
                    f"{self.source.folder} has no {name}, which this model has; give the model that was saved"
                )
            if self.source.shape(key) != tuple(tensor.shape):
                raise CheckpointError(
                    f"{name} has shape {tuple(tensor.shape)} in this model and {self.source.shape(key)} in "
                    f"{self.source.folder}; give the model that was saved"
                )
        here = {*tensors, *module.state_dict()}
        other = next((name for name in self.of_model if name not in here), None)
        if other is not None:
            raise CheckpointError(
                f"{self.source.folder} has {other}, which this model has not; give the model that was saved"
            )
        parameters = {
            name: ParameterEntry(self.of_model[name], tensor.requires_grad) for name, tensor in tensors.items()
        }
        return parameters, {name: self.of_model[name] for name in own_buffers}, tied

    # The optimizer.

    def _state_keys(self) -> dict[str, dict[str, str]]:
        """By parameter: the keys of its states, by their names."""
        found: dict[str, dict[str, str]] = {}
        start = f"{self.optim}.state."
        numbered = self._numbers()
        for key in self.source.entries:
            if key.startswith(start):
                name, _, state = key[len(start) :].rpartition(".")
                found.setdefault(numbered.get(name, name).removeprefix("module."), {})[state] = key
        return found

    def _numbers(self) -> dict[str, str]:
        """The parameters that an optimizer's own state_dict calls by number, in the order of the module."""
        ids = [each for group in self._raw_groups().values() for each in group.get("params", ())]
        if not any(isinstance(each, int) for each in ids):
            return {}
        if self.module is None:
            raise CheckpointError(
                f"{self.source.folder} has optimizer states by number, as optimizer.state_dict() has them; give the "
                "model (module=...), or save what get_optimizer_state_dict gives, which has names"
            )
        if len(self._raw_groups()) > 1:
            raise CheckpointError(
                f"{self.source.folder} has optimizer states by number and in {len(self._raw_groups())} groups, so "
                "nothing says whose they are; save what get_optimizer_state_dict gives, which has names"
            )
        names = [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]
        if len(ids) != len(names):
            names = [name for name, _ in self.module.named_parameters()]
        if len(ids) != len(names):
            raise CheckpointError(
                f"{self.source.folder} has an optimizer of {len(ids)} parameters and this model has {len(names)}; give "
                "the model that was saved"
            )
        return {str(each): name for each, name in zip(ids, names, strict=True)}

    def _raw_groups(self) -> dict[str, dict[str, Any]]:
        """Groups as they were saved: by number with `params`, or by parameter without."""
        if not hasattr(self, "_raw"):
            start = f"{self.optim}.param_groups."
            self._raw: dict[str, dict[str, Any]] = {}
            for key in self.source.entries:
                if key.startswith(start):
                    name, _, option = key[len(start) :].rpartition(".")
                    self._raw.setdefault(name, {})[option] = key
            numbered = {name: group for name, group in self._raw.items() if "params" in group}
            # Both are there in what we write.
            self._raw = {
                name: {option: self.source.read(key) for option, key in group.items()}
                for name, group in (numbered or self._raw).items()
            }
        return self._raw

    def _groups(self) -> list[dict[str, Any]]:
        numbers = self._numbers()
        groups: dict[str, dict[str, Any]] = {}
        for name, group in sorted(self._raw_groups().items(), key=lambda item: (len(item[0]), item[0])):
            options = {option: value for option, value in group.items() if option not in ("params", "param_names")}
            names = group.get("params", [name])
            # Of groups by parameter, those with the same options are one.
            mark = name if "params" in group else str(plain.encode(options, "the optimizer's options"))
            into = groups.setdefault(mark, {"parameters": [], "options": options})
            into["parameters"] += [numbers.get(str(each), str(each)).removeprefix("module.") for each in names]
        return list(groups.values())

    def _long(
        self, parameters: dict[str, ParameterEntry], state_keys: dict[str, dict[str, str]]
    ) -> dict[str, torch.dtype]:
        """The states that have an element for each of a parameter, and their dtypes."""
        found: dict[str, torch.dtype] = {}
        for name, keys in state_keys.items():
            for state, key in keys.items():
                shape = self.source.shape(key)
                if state != "step" and shape == self.source.shape(parameters[name].key):
                    found.setdefault(state, self.source.dtype(key))
                elif state in found or (shape is not None and prod(shape) != 1):
                    raise CheckpointError(
                        f"{state} of {name} in {self.source.folder} has another shape than the parameter, so this "
                        f"optimizer is not elementwise and no engine can take its states; {WEIGHTS_ALONE}"
                    )
        return found

    def _counters(
        self, names: Iterable[str], state_keys: dict[str, dict[str, str]], counters: dict[str, set[str]]
    ) -> dict[str, Any]:
        """What all parameters of a group have beside their long states."""
        found: dict[str, Any] = {}
        of: dict[str, str] = {}
        for name in names:
            for state in sorted(counters.get(name, ())):
                value = self.source.read(state_keys[name][state])
                if found.setdefault(state, value) != value:
                    raise CheckpointError(
                        f"{state} is {float(found[state]):g} of {of[state]} and {float(value):g} of {name} in "
                        f"{self.source.folder}, though they share a group, which no engine can go on from; "
                        f"{WEIGHTS_ALONE}"
                    )
                of.setdefault(state, name)
        return found


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _class_of(groups: list[dict[str, Any]]) -> str:
    """DCP does not say it, but options tell AdamW."""
    decoupled = any(group["options"].get("decoupled_weight_decay") for group in groups)
    return "AdamW" if decoupled else "an optimizer of torch's"
