"""nanoGPT's configurations as settings of a run, and a run as one: a file of plain assignments, `--key=value` beside
it, and the defaults of its train.py. batch_size is a rank's micro-batch; gradient_accumulation_steps are of all ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zerolab.apps.dialects.keys import ReadSettings, Settings, require, require_of, run_of
from zerolab.checkpoint import find_latest
from zerolab.data.bins import META, PICKLE, find_dataset
from zerolab.errors import InputError
from zerolab.models import GPT2Config
from zerolab.run import RunSpec
from zerolab.run.spec import SIZES

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class NanoKey(NamedTuple):
    """A key of nanoGPT's.

    default   of its train.py
    settings  that come from it; without `write`, as it is
    write     its value in a run, None where it is left out
    """

    default: Any
    settings: str = ""
    write: Callable[[RunSpec], Any] | None = None


def name_dtype(run: RunSpec) -> str:
    params = run.dtypes.params if run.dtypes else "fp32"
    return next(theirs for theirs, ours in DTYPES.items() if ours == params)


KEYS = {
    "n_layer": NanoKey(12, "layers"),
    "n_head": NanoKey(12, "heads"),
    "n_embd": NanoKey(768, "dim"),
    "block_size": NanoKey(1024, "seq_len"),
    "dropout": NanoKey(0.0, "dropout"),
    "bias": NanoKey(False, "bias"),
    "max_iters": NanoKey(600000, "max_steps"),
    "learning_rate": NanoKey(6e-4, "lr"),
    "weight_decay": NanoKey(0.1, "weight_decay"),
    "beta1": NanoKey(0.9, "beta1"),
    "beta2": NanoKey(0.95, "beta2"),
    "grad_clip": NanoKey(1.0, "clip_norm"),
    "dataset": NanoKey("openwebtext", "dataset"),
    "eval_interval": NanoKey(2000, "eval_every save_every"),
    "batch_size": NanoKey(12, "batch_size", lambda run: run.micro_batch_size),
    "gradient_accumulation_steps": NanoKey(
        40, "batch_size grad_accum_steps", lambda run: run.grad_accum_steps * run.ranks
    ),
    "eval_iters": NanoKey(200, "eval_steps", lambda run: run.eval_steps * run.ranks),
    "use_zero1": NanoKey(True, "zero_stage", lambda run: run.stage == 1),
    "decay_lr": NanoKey(True, "lr_schedule warmup_steps decay_steps min_lr", lambda run: run.lr_schedule == "cosine"),
    "warmup_iters": NanoKey(2000, "warmup_steps"),
    "lr_decay_iters": NanoKey(600000, "decay_steps", lambda run: run.decay_steps or run.max_steps),
    "min_lr": NanoKey(6e-5, "min_lr"),
    "init_from": NanoKey("scratch", "init_from resume", lambda run: "resume" if run.resume else "scratch"),
    "out_dir": NanoKey("out", "save_folder resume", lambda run: run.save_folder and str(run.save_folder)),
    "dtype": NanoKey("bfloat16", "bf16 fp16", name_dtype),
    "compile": NanoKey(True, "compile", lambda run: run.compile),
    "device": NanoKey("cuda", "device", lambda run: None if run.device == "auto" else run.device),
    "backend": NanoKey("nccl"),
    "eval_only": NanoKey(False),
    "log_interval": NanoKey(1),
    "always_save_checkpoint": NanoKey(True),
    "wandb_log": NanoKey(False),
    "wandb_project": NanoKey("owt"),
    "wandb_run_name": NanoKey("gpt2"),
}
"""In the order in which they are written; `use_zero1` is that of texts on ZeRO-1 in nanoGPT."""
SHARED = {
    "dropout", "bias", "weight_decay", "beta1", "beta2", "dataset", "eval_interval", "batch_size", "eval_iters",
    "lr_decay_iters", "min_lr", "init_from", "dtype", "compile", "device", "backend",
}  # fmt: skip
"""Those that others have, too. A command line with another one is nanoGPT's, without a file, too."""
OF_DECAY = ("warmup_iters", "lr_decay_iters", "min_lr")
"""Keys without a meaning unless decay_lr is True."""
NOTES = {
    "backend": "--collective-impl chooses who carries the messages",
    "log_interval": "the loss of each step is shown",
    "always_save_checkpoint": "the newest checkpoint is kept, whether it is the best or not",
    "wandb_log": "nothing is sent anywhere; --profile-json FILE has all losses",
}
"""What is done instead of what a key asks for."""
DEFAULTS = {name: key.default for name, key in KEYS.items()}
OF_TIME = {"wandb_project", "wandb_run_name"}
"""Keys that only name a run; files often compute their values from the time."""
SEED = 1337
VOCABULARY = 50304
"""Of data without a word on it: GPT-2's 50,257 tokens, rounded up, as nanoGPT has it."""
SILENT = {
    "model", "model_size", "context", "ranks", "keep", "precision", "vocab_size", "reduction", "profile_json", "seed",
    "timeout", "collective_timeout",
}  # fmt: skip
"""Settings that a nanoGPT configuration tells by others, or that change nothing of what is learned."""


# A file: assignments, read and never run.

ARITHMETIC = (
    ast.Constant, ast.Name, ast.Load, ast.UnaryOp, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div,
    ast.FloorDiv,
)  # fmt: skip
LARGEST = 1e300


def read_assignments(path: Path, names: Mapping[str, Any]) -> dict[str, tuple[Any, int]]:
    """What a file assigns, by name, with the line: literals, and arithmetic of numbers and names. Imports are passed
    over, and so are names of a run with more in them. Raises InputError for a line that is anything else."""
    try:
        text = path.read_text(encoding="utf-8")
        body = ast.parse(text, str(path)).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path} cannot be read as Python ({error}); name a file of plain assignments") from None
    known, found = dict(names), dict[str, tuple[Any, int]]()
    for node in body:
        said = f"{path}, line {node.lineno}: {text.splitlines()[node.lineno - 1].strip():.80}"
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                continue
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                targets = [target]
            case _:
                raise InputError(f"{said} is not a plain assignment, and nothing else is read; take it out")
        keys = [target.id if isinstance(target, ast.Name) else "" for target in targets]
        try:
            if not all(keys):
                raise TypeError("it assigns to something else than a name")
            result = compute(value, known)
        except (TypeError, ArithmeticError, RecursionError) as error:
            if {*keys} <= OF_TIME:
                continue
            why = "only numbers, texts and arithmetic are read; write its value"
            raise InputError(f"{said} cannot be computed ({error}): {why}") from None
        known |= dict.fromkeys(keys, result)
        found |= dict.fromkeys(keys, (result, node.lineno))
    return found


def compute(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a literal, a known name, or arithmetic of those. Raises TypeError for anything else."""
    for part in ast.walk(node):
        if not isinstance(part, ARITHMETIC):
            raise TypeError(f"{type(part).__name__} is more than is read")
        if isinstance(part, ast.Name) and part.id not in names:
            raise TypeError(f"{part.id} is not assigned before")
        value = names[part.id] if isinstance(part, ast.Name) else getattr(part, "value", 0)
        if not isinstance(value, int | float | str) or (isinstance(value, str) and part is not node):
            raise TypeError("a text is no number")
    result = eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}, dict(names))
    if not isinstance(result, str) and abs(result) > LARGEST:
        # Else a few lines that square and square again would never end.
        raise OverflowError("it is too long")
    return result


# A command line.


class NanoGPT(NamedTuple):
    """A command line of nanoGPT's: its files, and what stands beside them as --key=value."""

    files: tuple[Path, ...]
    overrides: dict[str, str]


def find_nanogpt(arguments: Sequence[str]) -> tuple[NanoGPT | None, list[str]]:
    """A nanoGPT configuration in a command line, and the words that are not of it."""
    words, files, rest = list[str](), list[Path](), iter(arguments)
    for word in rest:
        flag, _, name = word.partition("=")
        if flag == "--config":
            if not (name := name or next(rest, "")):
                raise InputError("--config is given without a file; name one of nanoGPT's configurations")
            files.append(Path(name))
        elif word.endswith(".py") and not word.startswith("-") and not words:
            files.append(Path(word))
        else:
            words.append(word)
    for path in files:
        if path.suffix == ".json":
            other = f"for a DeepSpeed configuration give --deepspeed-config {path}"
            raise InputError(f"--config takes nanoGPT's Python files, and {path} is JSON; {other}")
    named = {word: word.partition("=")[0] for word in words if word.startswith("--")}
    keys = {word: name.lstrip("-").replace("-", "_") for word, name in named.items()}
    keys = {word: key for word, key in keys.items() if key in KEYS}
    if not files and not any(key not in SHARED and "=" in word for word, key in keys.items()):
        return None, words
    for word, key in keys.items():
        if "=" not in word:
            raise InputError(f"{word} beside a nanoGPT configuration is its key {key}; write --{key}=VALUE")
    overrides = {key: word.partition("=")[2] for word, key in keys.items()}
    return NanoGPT(tuple(files), overrides), [word for word in words if word not in keys]


def read_nanogpt(nano: NanoGPT, ranks: int, has_gpu: Callable[[], bool]) -> ReadSettings:
    """What it means for so many ranks, on GPUs or not. Raises InputError that names key and line."""
    values, given = dict(DEFAULTS), set[str]()
    for path in nano.files:
        for key, (value, line) in read_assignments(path, values).items():
            values[key] = check_kind(key, value, f"{path}, line {line}: ")
            given.add(key)
    for key, text in nano.overrides.items():
        values[key] = check_kind(key, parse(text, DEFAULTS[key]), "--")
        given.add(key)
    found = ReadSettings()
    if not nano.files:
        found.notes.append("what nanoGPT's keys leave out has the defaults of its train.py")
    try:
        found.settings = read(values, given, ranks, has_gpu, found.notes)
    except InputError as error:
        if nano.files:
            raise
        key = next(key for key in nano.overrides if key not in SHARED)
        said = f"--{key}= is a key of nanoGPT's (zerolab train --help has our own)"
        raise InputError(f"{said}, so the run is nanoGPT's: {error}") from None
    for key in DEFAULTS:
        for setting in KEYS[key].settings.split() if key in given else ():
            before = found.source.get(setting)
            found.source[setting] = f"{before} and {key}" if before else f"nanoGPT's {key}"
    return found


def parse(text: str, default: Any) -> Any:
    """A value as it stands in a command line."""
    if isinstance(default, str):
        return text.strip("'\"")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def check_kind(key: str, value: Any, where: str) -> Any:
    """A key's value, of the kind that nanoGPT's default has."""
    if key not in KEYS:
        raise InputError(f"{where}{key} is none of nanoGPT's keys; leave it out")
    kind = type(DEFAULTS[key])
    if type(value) is not kind and (kind, type(value)) != (float, int):
        words = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
        raise InputError(f"{where}{key} is {value!r}; give {words[kind]}")
    return value


def read(
    values: Mapping[str, Any], given: set[str], ranks: int, has_gpu: Callable[[], bool], notes: list[str]
) -> Settings:
    """What the values of all keys mean. nanoGPT computes in 16 bits on GPUs only, as is done here."""
    steps, start = values["gradient_accumulation_steps"], values["init_from"]
    device, dtype = values["device"].partition(":")[0], values["dtype"]
    more = -(-steps // ranks) * ranks
    require(
        steps % ranks == 0,
        f"gradient_accumulation_steps is {steps}, which nanoGPT counts over all ranks and {ranks} ranks do not "
        f"divide; add --gradient_accumulation_steps={more}, with which a step has {more * values['batch_size']} "
        f"sequences instead of {steps * values['batch_size']}",
    )
    require(
        not values["eval_only"],
        "eval_only is True, and zerolab train trains; leave it out: with eval_interval it evaluates first",
    )
    settings: Settings = {
        setting: values[name]
        for name, key in KEYS.items()
        if not key.write and (name not in OF_DECAY or values["decay_lr"])
        for setting in key.settings.split()
    } | {
        "model": "gpt2", "model_size": "124m", "batch_size": values["batch_size"] * steps,
        "grad_accum_steps": steps // ranks, "eval_steps": -(-values["eval_iters"] // ranks),
        "zero_stage": int(values["use_zero1"]), "save_folder": values["out_dir"], "keep": 1, "ranks": ranks,
        "seed": SEED, "device": device if "device" in given else "auto",
    }  # fmt: skip
    if values["decay_lr"]:
        settings |= {"lr_schedule": "cosine", "decay_steps": values["lr_decay_iters"]}
    if start == "resume":
        there = find_latest(Path(values["out_dir"]).expanduser()) is not None
        require(there, f"init_from is 'resume', but {values['out_dir']} has no checkpoint; give 'scratch'")
        settings["resume"] = values["out_dir"]
    folder = find_dataset(values["dataset"])
    if start not in ("scratch", "resume"):
        # The folder's model has its own sizes.
        of_model = ("model", "model_size", *SIZES)
        settings = {name: value for name, value in settings.items() if name not in of_model}
        settings["init_from"] = start
    elif not any((folder / name).is_file() for name in (META, PICKLE)):
        settings["vocab_size"] = VOCABULARY
        notes.append(f"{folder} has no {META}, so the vocabulary is GPT-2's, rounded up to {VOCABULARY}")
    require(dtype in DTYPES, f"dtype is {dtype!r}; give {' or '.join(map(repr, DTYPES))}")
    on_gpu = has_gpu() if "device" not in given else device == "cuda"
    settings["compile"] = values["compile"] and (on_gpu or "compile" in given)
    if values["compile"] and not settings["compile"]:
        notes.append("compile is left off on a CPU; --compile=True turns it on")
    if on_gpu and dtype != "float32":
        settings[DTYPES[dtype]] = True
        notes.append(f"dtype is {dtype}: parameters are kept in it, main parameters in fp32")
    elif dtype != "float32" and "dtype" in given:
        notes.append(f"dtype is {dtype}, in which nanoGPT computes on GPUs only; this run computes in fp32")
    asked = [key for key in NOTES if key in given and values[key] != DEFAULTS[key]]
    notes += [f"{key} is {values[key]}, but {NOTES[key]}" for key in asked]
    return settings


def write(settings: Settings) -> str:
    """A file of assignments, of each key whose value is not its default. Raises InputError for what nanoGPT has no key
    for."""
    run = run_of(settings)
    shape, decays = run.architecture, run.lr_schedule == "cosine"
    require_of(run, "model", isinstance(shape, GPT2Config), "nanoGPT has GPT-2 alone; choose gpt2")
    require(
        shape.max_seq_len == run.seq_len,
        f"seq_len is {run.seq_len} and the model's context {shape.max_seq_len}, which nanoGPT has as one "
        "block_size; choose one length for both",
    )
    require_of(run, "zero_stage", run.stage < 2, "nanoGPT with use_zero1 has 0 and 1; choose one of them")
    fits = decays or (run.lr_schedule == "constant" and not run.warmup_steps)
    require_of(run, "lr_schedule", fits, "nanoGPT has a cosine after a warm-up; choose cosine")
    said = {*" ".join(key.settings for key in KEYS.values()).split()} - {"init_from"}
    for name in sorted(run.model_fields_set - SILENT - said):
        fits = getattr(run, name) == RunSpec.model_fields[name].default
        require_of(run, name, fits, "nanoGPT has no key for it; leave it out")
    lines = []
    for name, key in KEYS.items():
        setting = key.settings.partition(" ")[0]
        value = key.write(run) if key.write else getattr(shape if setting in SIZES else run, setting, None)
        if value not in (None, key.default) and (decays or name not in OF_DECAY):
            lines.append(f"{name} = {value!r}\n")
    return "".join(lines) or "# nanoGPT's defaults\n"
