"""A DeepSpeed configuration as settings of a run; `deepspeed_write.py` has the way back.

`deepspeed_keys.py` says key by key what becomes of it: it is honoured, refused by name, or taken with a note where it
changes nothing; none is ignored. "auto" leaves a key to the run's own settings, as under Hugging Face's trainer, and
what it became is said. A key that is not in the file and changes the numbers has DeepSpeed's default; other keys are
left to the run.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import TypeAdapter, ValidationError

from zerolab.apps.dialects.deepspeed_keys import HIDDEN, NOT_A_FIELD, TABLE, TELLS, TORCH_ADAM, Key, is_on
from zerolab.apps.dialects.deepspeed_schedule import read_scheduler
from zerolab.apps.dialects.keys import Settings, whole_number, whole_run
from zerolab.apps.interop.huggingface.start import with_shape
from zerolab.apps.plan.bring import without_twins
from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.run.spec import SIZES, wanted_of

SHAPED = ("model", "model_size", "init_from", *SIZES)
ZERO, MICRO = "zero_optimization.", "train_micro_batch_size_per_gpu"


@dataclass
class FromDeepSpeed:
    """What was read: settings, and what is to be said of them at the start of a run, a sentence each. `missing` are the
    settings that the file does not give, which have DeepSpeed's defaults."""

    settings: Settings = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)


def read_deepspeed(path: Path, ranks: int, given: Mapping[str, Any] | None = None) -> FromDeepSpeed:
    """The settings in a DeepSpeed configuration, for so many ranks. `given` are the run's other settings, from which
    "auto" is resolved. Raises InputError that names file and key."""
    path = path.expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}; name a DeepSpeed configuration") from None
    try:
        config = json.loads(text, object_pairs_hook=without_twins)
        return read(config, ranks, given)
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: {error}; {mended(text, error.pos)}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, and thousands of brackets.
        raise InputError(f"{path} cannot be read as JSON ({error}); name a DeepSpeed configuration") from None


def read(config: Any, ranks: int, given: Mapping[str, Any] | None = None) -> FromDeepSpeed:
    """The same of a configuration that is a dict already. Raises InputError that names the key."""
    if not isinstance(config, dict):
        kind = {list: "a list", str: "a text", type(None): "null"}.get(type(config), "a number or a switch")
        raise InputError(f"holds {kind}, but a DeepSpeed configuration is an object; give one, such as {{}}")
    return _Reader(config, ranks, given or {}).reading


class _Reader:
    def __init__(self, config: dict[str, Any], ranks: int, given: Mapping[str, Any]) -> None:
        self.config, self.ranks = renamed(config), ranks
        # The run as it would be without the file.
        self.given = given
        self.run = whole_run(given)
        self.reading = FromDeepSpeed()
        self.autos: list[tuple[str, str, str]] = []
        self._taken: dict[str, list[str]] = {}
        self._said_by: dict[str, str] = {}
        if isinstance(self.config.get("zero_optimization"), bool):
            raise InputError('zero_optimization is a switch, as it was once; give an object, such as {"stage": 2}')
        self.stage = self._stage()
        for name, key, value in self._entries():
            self._read(name, key, value)
        self._check_offload()
        self._check_rest()
        self._schedule()
        self._batch()
        self._report()
        self._complete()

    def _entries(self) -> Iterator[tuple[str, Key, Any]]:
        """Each key that the table has with its value, or the section around it, once."""
        seen = set()
        for name, value in leaves(self.config):
            if name.startswith("scheduler"):
                continue
            if name in NOT_A_FIELD:
                raise InputError(f"DeepSpeed has no {name}; use {NOT_A_FIELD[name]}")
            around = name
            while around not in TABLE and "." in around:
                around = around.rpartition(".")[0]
            if inside := [key.removeprefix(f"{name}.") for key in TABLE if key.startswith(f"{name}.")]:
                if value == {}:
                    continue
                said = json.dumps(value)
                raise InputError(f'{name} is {said}; give an object, with keys such as "{inside[0]}", or leave it out')
            if around not in TABLE or around == "zero_optimization":
                raise InputError(unknown(name))
            if around not in seen:
                seen.add(around)
                yield around, TABLE[around], value if around == name else at(self.config, around)

    def _read(self, name: str, key: Key, value: Any) -> None:
        if not self._applies(name, key):
            return
        if value == "auto" and (key.settings or key.wanted or name == MICRO):
            self._auto(name, key)
            return
        try:
            settings = key.rule(value)
        except InputError as error:
            raise InputError(f"{name} {error}") from None
        if key.taken and (is_on(value) or not (isinstance(value, dict) or key.taken == TELLS)):
            self._taken.setdefault(key.taken, []).append(name)
        for setting, meant in settings.items():
            self._set(name, setting, meant)

    def _set(self, name: str, setting: str, meant: Any) -> None:
        check_value(name, setting, meant)
        settings = self.reading.settings
        before = settings.setdefault(setting, meant)
        if setting == "buffer_count" and before != meant:
            settings[setting] = max(before, meant)
            self.reading.notes.append(f"{name} and {self._said_by[setting]} are one: {settings[setting]} buffers")
        elif before != meant:
            raise InputError(
                f"{name} is {meant!r}, but {self._said_by[setting]} says {before!r} and zerolab has one setting for "
                "both; make them equal"
            )
        self._said_by.setdefault(setting, name)

    def _applies(self, name: str, key: Key) -> bool:
        """Whether a key has a meaning in this configuration. One of stage 3 or of nvme that has none is noted."""
        if key.when == "fp16":
            enabled = at(self.config, "fp16.enabled")
            return bool(self.run["fp16"] if enabled in (None, "auto") else enabled)
        if key.when == "stage 3" and self.stage != 3:
            self._taken.setdefault("it is for stage 3", []).append(name)
            return False
        if key.when == "nvme":
            device = at(self.config, name.rpartition(".")[0] + ".device")
            if device != "nvme":
                self._taken.setdefault("it is for nvme", []).append(name)
                return False
        return True

    def _stage(self) -> Any:
        stage = at(self.config, ZERO + "stage")
        stage = self.run["zero_stage"] if stage in (None, "auto") else stage
        return int(stage) if str(stage).isdecimal() else stage

    def _auto(self, name: str, key: Key) -> None:
        if key.wanted:
            self.reading.notes.append(f"{name}: auto is {key.wanted}")
        known = name if name in HIDDEN else name.replace(ZERO, ZERO + "stage3_")
        # What is asked for beside the file is what it becomes.
        if known in HIDDEN and not self.given.keys() & {*key.settings} and (hidden := self._hidden()) is not None:
            value = HIDDEN[known](hidden)
            self._set(name, key.settings[0], value)
            said = f"{value}, which follows from the hidden size {hidden} as under Hugging Face's trainer"
            self.autos.append((name, key.settings[0], said))
            return
        for setting in key.settings:
            self.autos.append((name, setting, ""))

    def _hidden(self) -> int | None:
        """The width of the model's hidden states."""
        shaped = {name: self.run[name] for name in SHAPED if self.run[name] != RunSpec.model_fields[name].default}
        try:
            return RunSpec(seq_len=1, **with_shape(shaped)).architecture.dim
        except InputError:
            # It is said where the run's settings are checked.
            return None

    def _check_offload(self) -> None:
        for part, states in (("offload_optimizer", "the optimizer's states"), ("offload_param", "parameters")):
            device = self.reading.settings.get(part)
            if device is None:
                continue
            if part == "offload_param" and device != "none" and self.stage != 3:
                raise InputError(
                    f"{ZERO}{part}.device is {device!r} at stage {self.stage}, where every rank keeps the parameters "
                    f'whole; give "none", or stage 3'
                )
            if (
                device == "nvme"
                and at(self.config, f"{ZERO}{part}.nvme_path") is None
                and "offload_path" not in self.given
            ):
                raise InputError(f"{ZERO}{part}.nvme_path is missing, so {states} have no folder; name one")

    def _check_rest(self) -> None:
        if self.config.get("optimizer") and at(self.config, "optimizer.type") is None:
            self.reading.notes.append("optimizer.type is not given: AdamW")
        if self.reading.settings.get("reduction") == "all_reduce" and self.stage in (2, 3):
            raise InputError(
                f"{ZERO}reduce_scatter is false at stage {self.stage}, where a rank keeps a shard of the gradients, "
                "which a reduce-scatter brings; leave it out, or take stage 1"
            )

    def _schedule(self) -> None:
        if self.config.get("scheduler", {}) != {}:
            run = {**self.run, **self.reading.settings}
            settings = read_scheduler(
                self.config["scheduler"], run, lambda key, setting: self.autos.append((key, setting, ""))
            )
            for setting, meant in settings.items():
                self._set("scheduler", setting, meant)

    def _batch(self) -> None:
        """train_batch_size = micro batch per GPU x accumulation steps x ranks; the one that is missing follows."""
        micro, settings, ranks = self.config.get(MICRO), self.reading.settings, self.ranks
        whole, steps = (self._asked(name) for name in ("batch_size", "grad_accum_steps"))
        if micro not in (None, "auto"):
            try:
                micro = whole_number(micro)
            except InputError as error:
                raise InputError(f"{MICRO} {error}") from None
            if whole is None:
                settings["batch_size"] = micro * (steps or 1) * ranks
            elif steps is None and whole % (micro * ranks) == 0:
                settings["grad_accum_steps"] = whole // (micro * ranks)
            elif whole != micro * (steps or 1) * ranks:
                raise InputError(
                    f"train_batch_size is {whole}, but {micro} sequences a micro-batch x {steps or 1} accumulation "
                    f"steps x {ranks} ranks are {micro * (steps or 1) * ranks}; change one of them"
                )
            return
        run = whole_run({**self.given, **settings, "ranks": ranks})
        self.run["batch_size"] = run["batch_size"]
        if micro == "auto":
            each = int(run["batch_size"]) // (ranks * int(run["grad_accum_steps"]))
            self.autos.append((MICRO, "batch_size / (ranks x grad_accum_steps):", str(each)))

    def _asked(self, setting: str) -> int | None:
        """A count that the file says, or else a flag."""
        value: Any = self.reading.settings.get(setting, self.given.get(setting))
        return int(value) if str(value).isdecimal() else None

    def _report(self) -> None:
        notes, run = self.reading.notes, {**self.run, **self.reading.settings}
        for name, setting, value in self.autos:
            notes.append(f"{name}: auto is {setting} {value or run[setting]}")
        for why, names in self._taken.items():
            notes.append(f"{', '.join(names)} {'changes' if len(names) == 1 else 'change'} nothing here: {why}")

    def _complete(self) -> None:
        """DeepSpeed's defaults for keys that are not in the file; a flag goes before them."""
        settings, notes = self.reading.settings, self.reading.notes
        by_torch = TORCH_ADAM if is_on(at(self.config, "optimizer.params.torch_adam")) else {}
        unless = ", unless the checkpoint has another" if "resume" in self.given else ""
        for name, key in TABLE.items():
            if key.missing is None or at(self.config, name) is not None or not self._applies(name, key):
                continue
            since = " since 0.19.3 (before, it clipped nothing)" if name == "gradient_clipping" else ""
            for setting, meant in key.rule(by_torch.get(name, key.missing)).items():
                if setting in {**settings, **self.given}:
                    continue
                settings[setting] = meant
                self.reading.missing.add(setting)
                if since or meant != RunSpec.model_fields[setting].default:
                    notes.append(f"{name} is not given: {setting} {meant}, DeepSpeed's default{since or unless}")
        if not (self.config.keys() | self.given.keys()) & {"train_batch_size", MICRO, "batch_size"}:
            batch = f"batch_size {self.run['batch_size']}{unless}"
            notes.append(f"neither train_batch_size nor {MICRO} is given: {batch}; DeepSpeed has no default")


def renamed(config: dict[str, Any]) -> dict[str, Any]:
    """With today's name of an old section."""
    config = dict(config)
    if "bfloat16" in config and "bf16" not in config:
        config["bf16"] = config.pop("bfloat16")
    return config


def check_value(name: str, setting: str, value: Any) -> None:
    """Raise an InputError by the key's name for a value that the setting cannot have."""
    spec = RunSpec.model_fields[setting]
    field: Any = Annotated[spec.annotation, spec]  # type: ignore[name-defined]
    odd = isinstance(value, bool | str) or (isinstance(value, float) and not math.isfinite(value))
    if odd and {int, float} & {spec.annotation, *get_args(spec.annotation)}:
        raise InputError(f"{name} is {json.dumps(value)}; give a number")
    try:
        TypeAdapter(field).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{name} is {json.dumps(value)}; {wanted_of(first['type'], first['msg'])}") from None


def mended(text: str, at: int) -> str:
    """What to do about a text that is no JSON from a place on."""
    if not text.strip():
        return "it is empty, so write {} where nothing is to be said"
    if text.startswith("\ufeff"):
        return "save it without a byte-order mark"
    if text[at : at + 1] in ("/", "#"):
        return "JSON has no comments, so take them out"
    return "mend it there"


def unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*TABLE, "scheduler.type", "scheduler.params"], n=1, cutoff=0.85)
    return f"{name} is no key that zerolab knows; {f'did you mean {near[0]}?' if near else 'leave it out'}"


def at(config: Mapping[str, Any], name: str) -> Any:
    """The value under a dotted name, or None."""
    found: Any = config
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all keys with their values. An empty section is a value."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
