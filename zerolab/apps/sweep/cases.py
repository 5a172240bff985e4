"""What a sweep runs: the product of settings with several values, for each entry of `cases`.

    gbit_per_s: [none, 10, 1]
    cases: [{zero_stage: 2, offload_optimizer: host}, {zero_stage: 3}]

Names are those of `zerolab train`, and a few of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import yaml

from zerolab.apps.dialects.keys import run_of
from zerolab.errors import InputError
from zerolab.ranks.folders import reason
from zerolab.run import RunSpec
from zerolab.train.here import check_here

SHORT = {"stages": "zero_stage", "models": "models", "bandwidth": "gbit_per_s", "latency": "latency_us"}
"""A model is named by its size, as tiny, or as gpt2:tiny."""
SHARED = (
    "save_folder", "resume", "save_every", "keep", "zero3_save_16bit_model", "profile_json", "trace", "trace_steps"
)  # fmt: skip
"""Cases would write over one another's files; how many steps are traced the figures say."""
MODELS = {"models", "model", "model_size"}
CASES = "cases"
WIRES = ("simulated", "shaped")
DEFAULTS = {"wire": WIRES[0]} | {name: field.default for name, field in RunSpec.model_fields.items()}
SHOWN = ("model", "model_size", "zero_stage", "ranks", "precision", "gbit_per_s", "latency_us", "world")
"""Settings that each row shows, also those that are as by default."""
Settings = dict[str, Any]


@dataclass(frozen=True)
class SweepCase:
    """One run of a sweep.

    varied    the settings in which its sweep's cases differ
    hosts     0 where the link is simulated
    settings  what is not as by default
    key       made of these: a setting that we add later makes no other case
    shown     the settings of its row
    """

    config: RunSpec
    varied: Settings
    hosts: int = 0

    @property
    def settings(self) -> Settings:
        wire = {"wire": "shaped", "hosts": self.hosts} if self.hosts else {}
        return self.config.model_dump(mode="json", exclude_defaults=True) | wire

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def shown(self) -> Settings:
        everything = self.config.model_dump(mode="json") | {"wire": WIRES[0]}
        names = [name for name in (*SHOWN, *self.varied, "wire") if name in everything]
        return {name: everything[name] for name in names} | self.settings

    @property
    def title(self) -> str:
        return title_of(self.varied)


def read_file(path: Path) -> Settings:
    """The settings in a file of YAML, which JSON is, too."""
    path = path.expanduser()
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason(error)}); name a YAML file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path} is no YAML ({why}); write a line 'name: value' for each setting") from None
    if isinstance(read, dict) and read:
        return {str(name): value for name, value in read.items()}
    raise InputError(f"{path} holds no settings; write a line 'name: value' for each")


def make_cases(settings: Mapping[str, Any]) -> list[SweepCase]:
    """The product of all settings, the first varying slowest, for each entry of `cases`, whose settings come before
    those outside. Equal cases count once."""
    outside = use_own_names({name: value for name, value in settings.items() if name != CASES})
    entries = [use_own_names(entry) for entry in entries_of(settings.get(CASES, [{}]))]
    apart = dict.fromkeys(name for entry in entries for name in entry)
    cases: dict[str, SweepCase] = {}
    for entry in entries:
        values = {name: list_values(name, value) for name, value in (outside | entry).items()}
        varying = [name for name, all_of in values.items() if len(all_of) > 1]
        for chosen in itertools.product(*values.values()):
            one = dict(zip(values, chosen, strict=True))
            varied = {name: one.get(name, DEFAULTS.get(name)) for name in dict.fromkeys([*apart, *varying])}
            try:
                case = make_case(one, varied)
            except InputError as error:
                raise InputError(f"{title_of(varied)}: {error}" if varied else str(error)) from None
            cases.setdefault(case.key, case)
    if "hosts" in outside and not any(case.hosts for case in cases.values()):
        raise InputError(f"hosts is {outside['hosts']} but no wire is shaped; give wire shaped, or leave it out")
    return list(cases.values())


def entries_of(given: Any) -> list[Settings]:
    """The entries of `cases`, each with settings of its own."""
    if isinstance(given, list) and given and all(isinstance(entry, dict) for entry in given):
        return given
    raise InputError(f"{CASES} is {given}; give a list of settings, a line '- name: value' each")


def make_case(settings: Settings, varied: Settings) -> SweepCase:
    """The case of a run's settings and a sweep's own."""
    wire, hosts = settings.pop("wire", WIRES[0]), settings.pop("hosts", None)
    if "models" in settings:
        kind, colon, size = str(settings.pop("models")).rpartition(":")
        settings |= {"model_size": size} | ({"model": kind} if colon else {})
    config = run_of(settings)
    check_here(config)
    if wire not in WIRES:
        raise InputError(f"wire is {wire!r}; choose {' or '.join(WIRES)}")
    if wire == "simulated":
        return SweepCase(config, varied)
    if config.world != "processes" or config.collective_impl == "shared" or config.device == "cuda":
        said = "wire is shaped, which carries messages of processes on the CPU"
        raise InputError(f"{said}; leave world, collective_impl and device out")
    hosts = config.ranks if hosts is None else hosts
    if not str(hosts).isdecimal() or int(hosts) < 1 or config.ranks % int(hosts):
        raise InputError(f"hosts is {hosts} for {config.ranks} ranks; give a number that divides them")
    return SweepCase(config, varied, int(hosts))


def use_own_names(settings: Mapping[str, Any]) -> Settings:
    """Settings by their own names. Raises InputError for what no sweep has."""
    known, found = {*RunSpec.model_fields, "models", "wire", "hosts"}, dict[str, Any]()
    for name, value in settings.items():
        own = SHORT.get(name, name)
        if own not in known:
            near = get_close_matches(name, [*known, *SHORT], n=1)
            meant = f"did you mean {near[0]}?" if near else "zerolab train --help lists the settings of a run"
            raise InputError(f"there is no setting {name!r} in a sweep; {meant}")
        if own in found:
            raise InputError(f"{name} is {value}, and {own} is given, too; leave one of the two out")
        if own in SHARED:
            raise InputError(f"{name} is {value}, and a sweep has traces and files of its own; leave it out")
        found[own] = value
    if "models" in found and (others := sorted(found.keys() & MODELS - {"models"})):
        raise InputError(f"models is {found['models']} and {others[0]} {found[others[0]]}; leave one of the two out")
    return found


def list_values(name: str, value: Any) -> list[Any]:
    """The values of a setting. The word none is no value, for a setting that may have none."""
    if value == []:
        raise InputError(f"{name} is an empty list; give it a value or leave it out")
    none: Any = "none"
    if field := RunSpec.model_fields.get(name):
        words = get_args(field.annotation)
        none = None if NoneType in words else field.default if none in words else none
    return [none if one == "none" else one for one in (value if isinstance(value, list) else [value])]


def title_of(settings: Settings) -> str:
    """Settings in a line: "zero_stage 3, gbit_per_s 10"."""
    words = {name: "none" if value is None else value for name, value in settings.items()}
    return ", ".join(f"{name} {word}" for name, word in words.items()) or "the case"


def varied_names(cases: Iterable[SweepCase]) -> Iterator[str]:
    """The settings in which cases differ, each once."""
    yield from dict.fromkeys(name for case in cases for name in case.varied)
