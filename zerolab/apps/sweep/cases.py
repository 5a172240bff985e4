"""What a sweep runs: its settings, some with several values, and the cases that are their product.

    zero_stage: [0, 1, 2, 3]
    gbit_per_s: [none, 10, 1]
    world: lockstep
    max_steps: 4

Names are those of `zerolab train` (`RunSpec`), four short ones (stages, models, bandwidth, latency), and two of a
sweep's own: `wire` says who makes a link, us (simulated) or the kernel (shaped, between network namespaces), and
`hosts` on how many hosts the ranks are that a shaped one joins. Settings that do not multiply are entries of `cases`:

    cases:
      - {zero_stage: 2, offload_optimizer: host}
      - {zero_stage: 3}
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

from zerolab.apps.interop.huggingface.start import with_shape
from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.train.here import check_here

SHORT = {"stages": "zero_stage", "models": "models", "bandwidth": "gbit_per_s", "latency": "latency_us"}
"""Names that sweeps have besides those of a run. A model is named by its size, as tiny, or as gpt2:tiny."""
SHARED = ("save_folder", "resume", "save_every", "keep", "zero3_save_16bit_model", "profile_json", "trace")
"""Settings of one run's own files, which the cases of a sweep would write over one another."""
MODELS = {"models", "model", "model_size"}
"""Settings that name a model, in one word or in two."""
CASES = "cases"
WIRES = ("simulated", "shaped")
TOLD = ("model", "model_size", "zero_stage", "ranks", "precision", "gbit_per_s", "latency_us", "world")
"""Settings that each row tells, also those that are as by default."""
Settings = dict[str, Any]


@dataclass(frozen=True)
class SweepCase:
    """One run of a sweep. `varied` are the settings in which its sweep's cases differ; `hosts` is 0 where the link of
    the configuration is simulated."""

    config: RunSpec
    varied: Settings
    hosts: int = 0

    @property
    def settings(self) -> Settings:
        """What is not as it is by default, in values that JSON has."""
        wire = {"wire": "shaped", "hosts": self.hosts} if self.hosts else {}
        return self.config.model_dump(mode="json", exclude_defaults=True) | wire

    @property
    def key(self) -> str:
        """Made of what is not as by default: a changed setting is another case, one that we add later is not."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def told(self) -> Settings:
        """The settings that its row tells: what runs are compared by, what varies, and what is not as by default."""
        everything = self.config.model_dump(mode="json")
        found = {name: everything[name] for name in (*TOLD, *self.varied) if name in everything}
        return {**found, "wire": WIRES[0], **self.settings}

    @property
    def title(self) -> str:
        return title_of(self.varied)


class SettingsLoader(yaml.SafeLoader):
    """YAML whose sections have each name once, and whose values are numbers and words: no dates."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set[str]()
        for key, _ in node.value:
            if (name := str(key.value)) in names:
                line = key.start_mark.line + 1
                raise InputError(f"line {line} says {name} for the second time; leave one of the two out")
            names.add(name)
        return super().construct_mapping(node, deep)


SettingsLoader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if not tag.endswith(":timestamp")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_file(path: Path) -> Settings:
    """The settings in a file of YAML (which JSON is, too). Raises an InputError for one that has none, or one twice."""
    path = path.expanduser()
    try:
        read = yaml.load(path.read_text(encoding="utf-8"), SettingsLoader)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "it is no text"
        why = getattr(error, "problem", None) or "it cannot be read"
        raise InputError(f"{path} is no YAML ({where}: {why}); write a line 'name: value' for each setting") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, and thousands of brackets.
        why = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read ({why}); write a line 'name: value' for each setting") from None
    if not isinstance(read, dict) or not read:
        raise InputError(f"{path} holds no settings; write a line 'name: value' for each, as zero_stage: [0, 1, 2, 3]")
    return {str(name): value for name, value in read.items()}


def make_cases(settings: Mapping[str, Any]) -> list[SweepCase]:
    """The cases of a sweep: the product of all settings with several values, the first varying slowest, for each entry
    of `cases`, if there are any; an entry's settings take the places of those outside. A combination that is there
    already counts once. Raises an InputError that names the case if one cannot run."""
    outside = named({name: value for name, value in settings.items() if name != CASES})
    entries = [named(entry) for entry in entries_of(settings.get(CASES, [{}]))]
    apart = dict.fromkeys(name for entry in entries for name in entry)
    cases: dict[str, SweepCase] = {}
    for entry in entries:
        values = {name: listed(name, value) for name, value in (outside | entry).items()}
        varying = [name for name, all_of in values.items() if len(all_of) > 1]
        for chosen in itertools.product(*values.values()):
            one = dict(zip(values, chosen, strict=True))
            varied = {name: one.get(name, default_of(name)) for name in dict.fromkeys([*apart, *varying])}
            try:
                case = make_case(spelled_out(one), varied)
            except InputError as error:
                raise InputError(f"{title_of(varied)}: {error}" if varied else str(error)) from None
            cases.setdefault(case.key, case)
    if "hosts" in outside and not any(case.hosts for case in cases.values()):
        raise InputError(f"hosts is {outside['hosts']} but no wire is shaped; give wire shaped, or leave it out")
    return list(cases.values())


def entries_of(given: Any) -> list[Settings]:
    """The entries of `cases`, each with settings of its own."""
    if not isinstance(given, list) or not given or not all(isinstance(entry, dict) for entry in given):
        raise InputError(f"{CASES} is {given}; give a list of settings, a line '- name: value' each")
    return given


def default_of(name: str) -> Any:
    """What a setting is if nobody says anything."""
    if name in RunSpec.model_fields:
        return RunSpec.model_fields[name].default
    return WIRES[0] if name == "wire" else None


def make_case(settings: Settings, varied: Settings) -> SweepCase:
    """The case of a run's settings and a sweep's own."""
    wire, hosts = settings.pop("wire", WIRES[0]), settings.pop("hosts", None)
    config = RunSpec(**with_shape(settings))
    check_here(config)
    if wire not in WIRES:
        raise InputError(f"wire is {wire!r}; choose {' or '.join(WIRES)}")
    if wire == "simulated":
        return SweepCase(config, varied)
    if config.world != "processes" or config.collective_impl == "shared" or config.device == "cuda":
        raise InputError(
            "wire is shaped, which carries messages of processes on the CPU; leave world, collective_impl "
            "and device out"
        )
    hosts = config.ranks if hosts is None else hosts
    if not str(hosts).isdecimal() or int(hosts) < 1 or config.ranks % int(hosts):
        raise InputError(f"hosts is {hosts} for {config.ranks} ranks; give a number that divides them")
    return SweepCase(config, varied, int(hosts))


def named(settings: Mapping[str, Any]) -> Settings:
    """Settings by their own names. Raises an InputError for one that there is not, or that has two."""
    known, found = known_names(), dict[str, Any]()
    for name, value in settings.items():
        own = SHORT.get(name, name)
        if own not in known:
            near = get_close_matches(name, [*known, *SHORT], n=1)
            meant = f"did you mean {near[0]}?" if near else "zerolab train --help lists the settings of a run"
            raise InputError(f"there is no setting {name!r} in a sweep; {meant}")
        if own in found:
            raise InputError(f"{name} is {value}, and {own} is given, too; leave one of the two out")
        if own in SHARED:
            raise InputError(f"{name} is {value}, one place for the files of all cases; leave it out of a sweep")
        if own == "trace_steps":
            raise InputError(f"{name} is {value}, and a sweep traces as many steps as its figures need; leave it out")
        found[own] = value
    for one in sorted(MODELS - {"models"}):
        if "models" in found and one in found:
            raise InputError(f"models is {found['models']} and {one} {found[one]}; leave one of the two out")
    return found


def known_names() -> set[str]:
    """What a sweep's settings may be called, short names aside."""
    return {*RunSpec.model_fields, "models", "wire", "hosts"}


def listed(name: str, value: Any) -> list[Any]:
    """The values of a setting, at least one. The text none is no value, for a setting that may have none."""
    all_of = value if isinstance(value, list) else [value]
    if not all_of:
        raise InputError(f"{name} is an empty list; give it a value or leave it out")
    for one in all_of:
        if isinstance(one, list | dict):
            raise InputError(f"{name} has the value {one}; give numbers or words, or a list of them")
        if one in (None, "none") and not may_be_none(name):
            said = "null" if one is None else one
            raise InputError(f"{name} is {said}, and it has no such value; give another, or leave it out")
    return [None if one == "none" else one for one in all_of]


def may_be_none(name: str) -> bool:
    """Whether a setting may have no value, as a bandwidth, or "none" is one of its words, as of places."""
    if name not in RunSpec.model_fields:
        return name == "hosts"
    return bool({NoneType, "none"} & {*get_args(RunSpec.model_fields[name].annotation)})


def spelled_out(settings: Mapping[str, Any]) -> Settings:
    """Settings of a run: a model's name as its kind and size, and nothing that is no value."""
    found = {name: value for name, value in settings.items() if value is not None}
    if "models" in found:
        kind, colon, size = str(found.pop("models")).rpartition(":")
        found |= {"model_size": size} | ({"model": kind} if colon else {})
    return found


def title_of(settings: Mapping[str, Any]) -> str:
    """Settings in a line: "zero_stage 3, gbit_per_s 10"."""
    return ", ".join(f"{name} {'none' if value is None else value}" for name, value in settings.items()) or "the case"


def varied_names(cases: Iterable[SweepCase]) -> Iterator[str]:
    """The settings in which cases differ, each once."""
    yield from dict.fromkeys(name for case in cases for name in case.varied)
