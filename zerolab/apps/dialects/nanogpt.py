"""nanoGPT's configurations as settings of a run: a file of plain assignments, `--key=value` beside it, and the defaults
of its train.py for what both leave out. `nanogpt_write.py` has the way back.

Its meaning is kept: batch_size is the sequences of a micro-batch of one rank, gradient_accumulation_steps are counted
over all ranks, and there is one process unless torchrun (or --ranks) brings more. Its loop steps once more after its
last evaluation and keeps nothing of that; here max_iters steps are made.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from zerolab.apps.dialects.assignments import read_assignments
from zerolab.apps.dialects.keys import Settings, are_same
from zerolab.checkpoint import find_latest
from zerolab.data.bins import META, PICKLE, find_dataset
from zerolab.errors import InputError

DEFAULTS: dict[str, Any] = {
    "out_dir": "out", "eval_interval": 2000, "log_interval": 1, "eval_iters": 200, "eval_only": False,
    "always_save_checkpoint": True, "init_from": "scratch", "wandb_log": False, "wandb_project": "owt",
    "wandb_run_name": "gpt2", "dataset": "openwebtext", "gradient_accumulation_steps": 40, "batch_size": 12,
    "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768, "dropout": 0.0, "bias": False,
    "learning_rate": 6e-4, "max_iters": 600000, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0,
    "decay_lr": True, "warmup_iters": 2000, "lr_decay_iters": 600000, "min_lr": 6e-5, "backend": "nccl",
    "device": "cuda", "dtype": "bfloat16", "compile": True, "use_zero1": True,
}  # fmt: skip
"""nanoGPT's keys and what they are where nobody says; `use_zero1` is that of texts on ZeRO-1 in nanoGPT."""
LEAST: dict[str, int] = {
    **dict.fromkeys(("eval_interval", "eval_iters", "gradient_accumulation_steps", "batch_size", "block_size"), 1),
    **dict.fromkeys(("n_layer", "n_head", "n_embd", "max_iters", "lr_decay_iters", "log_interval"), 1),
}
OWN = frozenset({
    "use_zero1", "max_iters", "learning_rate", "n_layer", "n_head", "n_embd", "block_size", "grad_clip", "out_dir",
    "gradient_accumulation_steps", "warmup_iters", "decay_lr", "eval_only", "log_interval", "always_save_checkpoint",
    "wandb_log", "wandb_project", "wandb_run_name",
})  # fmt: skip
"""Keys that nobody else has: one of them with a value says that a command line is nanoGPT's, without a file, too."""
NAMED = {
    "n_layer": "layers", "n_head": "heads", "n_embd": "dim", "block_size": "seq_len", "dropout": "dropout",
    "bias": "bias", "max_iters": "max_steps", "learning_rate": "lr", "weight_decay": "weight_decay", "beta1": "beta1",
    "beta2": "beta2", "grad_clip": "clip_norm", "dataset": "dataset", "eval_interval": "eval_every",
}  # fmt: skip
"""Keys whose value is that of one of our settings."""
SOURCES: dict[str, tuple[str, ...]] = {
    **{setting: (key,) for key, setting in NAMED.items()},
    "batch_size": ("batch_size", "gradient_accumulation_steps"),
    "grad_accum_steps": ("gradient_accumulation_steps",),
    "eval_steps": ("eval_iters",),
    "zero_stage": ("use_zero1",),
    "lr_schedule": ("decay_lr",),
    "warmup_steps": ("warmup_iters", "decay_lr"),
    "decay_steps": ("lr_decay_iters", "decay_lr"),
    "min_lr": ("min_lr", "decay_lr"),
    "save_folder": ("out_dir",),
    "save_every": ("eval_interval",),
    "resume": ("init_from", "out_dir"),
    "init_from": ("init_from",),
    "device": ("device",),
    "bf16": ("dtype",),
    "fp16": ("dtype",),
    "compile": ("compile",),
}
"""Which keys a setting comes from: where none of them is given, a flag of ours goes before nanoGPT's default."""
MODEL = ("model", "model_size", "layers", "heads", "dim", "bias")
TELLS = frozenset({"wandb_project", "wandb_run_name"})
"""Keys that only name a run; files often compute their values from the time."""
SEED = 1337
VOCABULARY = 50304
"""Of data without a word on it: GPT-2's 50,257 tokens, rounded up, as nanoGPT has it."""


@dataclass(frozen=True)
class NanoGPT:
    """A command line of nanoGPT's: its files, and what stands beside them as --key=value."""

    files: tuple[Path, ...]
    overrides: dict[str, str]


@dataclass(frozen=True)
class Meant:
    """The settings that a nanoGPT configuration means, those of its keys that were given, and what to say of it."""

    settings: Settings
    given: frozenset[str]
    notes: list[str] = field(default_factory=list)

    def beside(self, flags: Mapping[str, Any]) -> Settings:
        """All settings, with those of our own flags. Raises InputError where a flag and a given key say two things."""
        for name, value in flags.items():
            keys = [key for key in SOURCES.get(name, ()) if key in self.given]
            if keys and not are_same(self.settings.get(name), value):
                raise InputError(
                    f"--{name.replace('_', '-')} is {value}, but nanoGPT's {' and '.join(keys)} make it "
                    f"{self.settings.get(name)}; leave one of the two out"
                )
        return {**self.settings, **flags}


def find_nanogpt(arguments: Sequence[str]) -> tuple[NanoGPT | None, list[str]]:
    """A nanoGPT configuration in a command line, and the arguments that are not of it. With a file, in front or after
    --config, all of nanoGPT's keys are its own; without one, where any key is given that is nanoGPT's alone."""
    words, files = list(arguments), []
    while words and words[0].endswith(".py") and not words[0].startswith("-"):
        files.append(Path(words.pop(0)))
    while "--config" in words:
        at = words.index("--config")
        if at + 1 == len(words):
            raise InputError("--config is given without a file; name one of nanoGPT's configurations")
        files.append(Path(words[at + 1]))
        del words[at : at + 2]
    for word in [word for word in words if word.startswith("--config=")]:
        if word == "--config=":
            raise InputError("--config is given without a file; name one of nanoGPT's configurations")
        files.append(Path(word.partition("=")[2]))
        words.remove(word)
    for path in files:
        if path.suffix == ".json":
            raise InputError(
                f"--config {path} is JSON, and --config takes a nanoGPT configuration, which is a Python file; for a "
                f"DeepSpeed configuration give --deepspeed-config {path}"
            )
    for before, word in pairwise(words):
        # After a flag without its value it may be that, such as a data file: argparse knows.
        if word.endswith(".py") and not word.startswith("-") and ("=" in before or not before.startswith("--")):
            raise InputError(f"{word} comes after a flag; a nanoGPT configuration comes first, or after --config")
    keys = {word: word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--")}
    if not files and not any(key in OWN and "=" in word for word, key in keys.items()):
        return None, words
    for word, key in keys.items():
        if key in DEFAULTS and "=" not in word:
            raise InputError(f"{word} beside a nanoGPT configuration is its key {key}; write --{key}=VALUE")
    ours = [word for word in words if keys.get(word) not in DEFAULTS]
    overrides = {keys[word]: word.partition("=")[2] for word in words if keys.get(word) in DEFAULTS}
    return NanoGPT(tuple(files), overrides), ours


def read_nanogpt(nano: NanoGPT, ranks: int, gpu: bool) -> Meant:
    """The settings of a nanoGPT configuration for so many ranks, on GPUs or not. Raises InputError that names the key,
    and the line where it stands in a file."""
    values, given = dict(DEFAULTS), set[str]()
    for path in nano.files:
        for key, (value, line) in read_assignments(path, values, TELLS).items():
            values[key] = checked(key, value, f"{path}, line {line}: ")
            given.add(key)
    for key, text in nano.overrides.items():
        values[key] = checked(key, literal(text, DEFAULTS[key]), "--")
        given.add(key)
    notes = ["what nanoGPT's keys leave out has the defaults of its train.py"] if not nano.files else []
    try:
        settings = settings_of(values, frozenset(given), ranks, gpu, notes)
    except InputError as error:
        if nano.files:
            raise
        key = next(key for key in nano.overrides if key in OWN)
        raise InputError(
            f"--{key}= is a key of nanoGPT's (zerolab train --help has our own), so the run is nanoGPT's: {error}"
        ) from None
    return Meant(settings, frozenset(given), notes)


def literal(text: str, default: Any) -> Any:
    """A value as it stands in a command line."""
    if isinstance(default, str):
        return text.strip("'\"") if text[:1] in ("'", '"') else text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def checked(key: str, value: Any, where: str) -> Any:
    """A key's value, of the kind that nanoGPT's default has."""
    if key not in DEFAULTS:
        raise InputError(f"{where}{key} is none of nanoGPT's keys; leave it out")
    kind = type(DEFAULTS[key])
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (kind in (int, float) and value < LEAST.get(key, 0)):
        least = f" of at least {LEAST.get(key, 0)}"
        wanted = {bool: "True or False", int: f"a whole number{least}", float: f"a number{least}", str: "a text"}[kind]
        raise InputError(f"{where}{key} is {value!r}; give {wanted}")
    return value


def settings_of(values: Mapping[str, Any], given: frozenset[str], ranks: int, gpu: bool, notes: list[str]) -> Settings:
    settings = {setting: values[key] for key, setting in NAMED.items()}
    steps, start = values["gradient_accumulation_steps"], values["init_from"]
    if steps % ranks:
        more = -(-steps // ranks) * ranks
        raise InputError(
            f"gradient_accumulation_steps is {steps}, which nanoGPT counts over all ranks and {ranks} ranks do not "
            f"divide; add --gradient_accumulation_steps={more}, with which a step has {more * values['batch_size']} "
            f"sequences instead of {steps * values['batch_size']}"
        )
    if values["eval_only"]:
        raise InputError(
            "eval_only is True, and zerolab train evaluates beside training; leave it out, and give eval_interval: the "
            "first evaluation comes before the first step"
        )
    own = start not in ("scratch", "resume")
    if own and not (Path(start).expanduser() / "config.json").is_file():
        raise InputError(
            f"init_from is {start!r}, and zerolab downloads no weights; save them with transformers' save_pretrained "
            "and give that folder, or 'scratch' or 'resume'"
        )
    settings |= {
        "model": "gpt2", "model_size": "124m", "batch_size": values["batch_size"] * steps,
        "grad_accum_steps": steps // ranks, "eval_steps": -(-values["eval_iters"] // ranks),
        "zero_stage": int(values["use_zero1"]), "save_folder": values["out_dir"],
        "save_every": values["eval_interval"], "keep": 1, "ranks": ranks, "seed": SEED,
    }  # fmt: skip
    if values["decay_lr"]:
        settings |= {"lr_schedule": "cosine", "warmup_steps": values["warmup_iters"]}
        settings |= {"decay_steps": values["lr_decay_iters"], "min_lr": values["min_lr"]}
    if start == "resume":
        if find_latest(Path(values["out_dir"]).expanduser()) is None:
            raise InputError(f"init_from is 'resume', but {values['out_dir']} has no checkpoint; give 'scratch'")
        settings["resume"] = values["out_dir"]
    folder = find_dataset(values["dataset"])
    if own:
        # The folder's model has its own sizes.
        settings = {name: value for name, value in settings.items() if name not in MODEL} | {"init_from": start}
    elif not any((folder / name).is_file() for name in (META, PICKLE)):
        settings["vocab_size"] = VOCABULARY
        notes.append(f"{folder} has no {META}, so the vocabulary is GPT-2's, rounded up to {VOCABULARY}")
    settings |= machine(values, given, gpu, notes)
    if values["wandb_log"]:
        notes.append("wandb_log is True, but nothing is sent anywhere; --profile-json FILE has all losses")
    if not values["always_save_checkpoint"]:
        notes.append(
            "always_save_checkpoint is False, but the newest checkpoint is kept, whether it is the best or not"
        )
    if "log_interval" in given:
        notes.append(f"log_interval is {values['log_interval']}, but the loss of each step is shown")
    return settings


def machine(values: Mapping[str, Any], given: frozenset[str], gpu: bool, notes: list[str]) -> Settings:
    """Device, dtype and compilation. nanoGPT computes in 16 bits on GPUs only; what it takes a GPU for by default goes
    by what is here."""
    device = values["device"].partition(":")[0]
    if device not in ("cpu", "cuda"):
        raise InputError(f"device is {values['device']!r}; give 'cpu' or 'cuda'")
    dtype = values["dtype"]
    if dtype not in ("float32", "bfloat16", "float16"):
        raise InputError(f"dtype is {dtype!r}; give 'float32', 'bfloat16' or 'float16'")
    if "backend" in given:
        notes.append(f"backend is {values['backend']!r}, but --collective-impl chooses who carries the messages")
    on_gpu = gpu if "device" not in given else device == "cuda"
    settings: Settings = {"device": device if "device" in given else "auto"}
    settings["compile"] = values["compile"] and (on_gpu or "compile" in given)
    if values["compile"] and not settings["compile"]:
        notes.append("compile is left off on a CPU; --compile=True turns it on")
    if on_gpu and dtype != "float32":
        settings["bf16" if dtype == "bfloat16" else "fp16"] = True
        notes.append(f"dtype is {dtype}: parameters are kept in it, with main parameters in fp32 beside them")
    elif dtype != "float32" and "dtype" in given:
        notes.append(f"dtype is {dtype}, in which nanoGPT computes on GPUs only; this run computes in fp32")
    return settings
