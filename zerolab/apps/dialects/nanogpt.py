"""nanoGPT's configurations as settings of a run, and a run as one of them: a file of plain assignments, `--key=value`
beside it, and the defaults of its train.py for what both leave out.

Its meaning is kept: batch_size is the sequences of a micro-batch of one rank, gradient_accumulation_steps are counted
over all ranks, and there is one process unless torchrun (or --ranks) brings more. Its loop steps once more after its
last evaluation and keeps nothing of that; here max_iters steps are made.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from zerolab.apps.dialects.keys import Settings, are_same, run_of
from zerolab.checkpoint import find_latest
from zerolab.data.bins import META, PICKLE, find_dataset
from zerolab.errors import InputError
from zerolab.models import GPT2Config
from zerolab.run import RunSpec

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class NanoKey(NamedTuple):
    """A key of nanoGPT's.

    default    of its train.py
    same       the setting whose value it has as it is
    feeds      other settings that come from it
    write      its value in a run, None where it is left out; without it, that of `same`
    own        whether nobody else has it, so that a command line with it is nanoGPT's, without a file, too
    """

    default: Any
    same: str = ""
    feeds: str = ""
    write: Callable[[RunSpec], Any] | None = None
    own: bool = False


def is_cosine(run: RunSpec) -> bool:
    return run.lr_schedule == "cosine"


def dtype_of(run: RunSpec) -> str:
    words = {ours: theirs for theirs, ours in DTYPES.items()}
    return words.get(run.dtypes.params if run.dtypes else "fp32", "float32")


KEYS = {
    "n_layer": NanoKey(12, "layers", write=lambda run: run.architecture.layers, own=True),
    "n_head": NanoKey(12, "heads", write=lambda run: run.architecture.heads, own=True),
    "n_embd": NanoKey(768, "dim", write=lambda run: run.architecture.dim, own=True),
    "block_size": NanoKey(1024, "seq_len", own=True),
    "dropout": NanoKey(0.0, "dropout"),
    "bias": NanoKey(False, "bias", write=lambda run: getattr(run.architecture, "bias", None)),
    "max_iters": NanoKey(600000, "max_steps", own=True),
    "learning_rate": NanoKey(6e-4, "lr", own=True),
    "weight_decay": NanoKey(0.1, "weight_decay"),
    "beta1": NanoKey(0.9, "beta1"),
    "beta2": NanoKey(0.95, "beta2"),
    "grad_clip": NanoKey(1.0, "clip_norm", own=True),
    "dataset": NanoKey("openwebtext", "dataset"),
    "eval_interval": NanoKey(2000, "eval_every", "save_every"),
    "batch_size": NanoKey(12, "", "batch_size", lambda run: run.micro_batch_size),
    "gradient_accumulation_steps": NanoKey(
        40, "", "batch_size grad_accum_steps", lambda run: run.grad_accum_steps * run.ranks, own=True
    ),
    "eval_iters": NanoKey(200, "", "eval_steps", lambda run: run.eval_steps * run.ranks),
    "use_zero1": NanoKey(True, "", "zero_stage", lambda run: run.stage == 1, own=True),
    "decay_lr": NanoKey(True, "", "lr_schedule warmup_steps decay_steps min_lr", is_cosine, own=True),
    "warmup_iters": NanoKey(
        2000, "", "warmup_steps", lambda run: run.warmup_steps if is_cosine(run) else None, own=True
    ),
    "lr_decay_iters": NanoKey(
        600000, "", "decay_steps", lambda run: run.decay_steps or run.max_steps if is_cosine(run) else None
    ),
    "min_lr": NanoKey(6e-5, "", "min_lr", lambda run: run.min_lr if is_cosine(run) else None),
    "init_from": NanoKey("scratch", "", "init_from resume", lambda run: "resume" if run.resume else "scratch"),
    "out_dir": NanoKey(
        "out", "", "save_folder resume", lambda run: str(run.save_folder) if run.save_folder else None, own=True
    ),
    "dtype": NanoKey("bfloat16", "", "bf16 fp16", dtype_of),
    "compile": NanoKey(True, "", "compile", lambda run: run.compile),
    "device": NanoKey("cuda", "", "device", lambda run: None if run.device == "auto" else run.device),
    "backend": NanoKey("nccl"),
    "eval_only": NanoKey(False, own=True),
    "log_interval": NanoKey(1, own=True),
    "always_save_checkpoint": NanoKey(True, own=True),
    "wandb_log": NanoKey(False, own=True),
    "wandb_project": NanoKey("owt", own=True),
    "wandb_run_name": NanoKey("gpt2", own=True),
}
"""nanoGPT's keys, in the order in which they are written; `use_zero1` is that of texts on ZeRO-1 in nanoGPT."""
NOTES = {
    "backend": "--collective-impl chooses who carries the messages",
    "log_interval": "the loss of each step is shown",
    "always_save_checkpoint": "the newest checkpoint is kept, whether it is the best or not",
    "wandb_log": "nothing is sent anywhere; --profile-json FILE has all losses",
}
"""What is done instead of what a key asks for."""
DEFAULTS = {name: key.default for name, key in KEYS.items()}
MODEL = ("model", "model_size", "layers", "heads", "dim", "bias")
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

OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
LARGEST = 1e300


def read_assignments(path: Path, names: Mapping[str, Any]) -> dict[str, tuple[Any, int]]:
    """What a file assigns, by name, with the line: literals, and arithmetic of numbers, of `names` and of what it has
    assigned before. Imports are passed over, and so are names of a run with more in them.

    Raises:
        InputError: a file that cannot be read, or the first line in it that is anything else than a plain assignment.
    """
    try:
        text = path.read_text(encoding="utf-8")
        body = ast.parse(text, str(path)).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path} cannot be read as Python ({error}); name a file of plain assignments") from None
    known, found = dict(names), {}
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
            result = value_of(value, known)
        except (TypeError, ArithmeticError, RecursionError) as error:
            if {*keys} <= OF_TIME:
                continue
            raise InputError(
                f"{said} cannot be computed ({error}): only numbers, texts and arithmetic are read; write its value"
            ) from None
        for key in keys:
            known[key], found[key] = result, (result, node.lineno)
    return found


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a literal, a name that is known, or arithmetic of those. Raises TypeError for anything else."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Name(id=name):
            raise TypeError(f"{name} is not assigned before")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value_of(operand, names)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            sides = value_of(left, names), value_of(right, names)
            if any(isinstance(side, str) for side in sides):
                raise TypeError("a text is no number")
            result = OPERATORS[type(sign)](*sides)
            if abs(result) > LARGEST:
                # Else a few lines that square and square again would never end.
                raise OverflowError("it is too long")
            return result
    raise TypeError(f"{type(node).__name__} is more than is read")


# A command line.


class NanoGPT(NamedTuple):
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
        """All settings, with those of our own flags, which go before nanoGPT's defaults. Raises InputError where a flag
        and a given key say two things."""
        for name, value in flags.items():
            keys = [key for key in DEFAULTS if key in self.given and name in (KEYS[key].same, *KEYS[key].feeds.split())]
            if keys and not are_same(self.settings.get(name), value):
                raise InputError(
                    f"--{name.replace('_', '-')} is {value}, but nanoGPT's {' and '.join(keys)} make it "
                    f"{self.settings.get(name)}; leave one of the two out"
                )
        return {**self.settings, **flags}


def find_nanogpt(arguments: Sequence[str]) -> tuple[NanoGPT | None, list[str]]:
    """A nanoGPT configuration in a command line, and the arguments that are not of it. With a file, in front or after
    --config, all of nanoGPT's keys are its own; without one, where any key is given that is nanoGPT's alone."""
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
            raise InputError(
                f"--config {path} is JSON, and --config takes a nanoGPT configuration, which is a Python file; for a "
                f"DeepSpeed configuration give --deepspeed-config {path}"
            )
    keys = {word: word.partition("=")[0].lstrip("-").replace("-", "_") for word in words if word.startswith("--")}
    keys = {word: key for word, key in keys.items() if key in KEYS}
    if not files and not any(KEYS[key].own and "=" in word for word, key in keys.items()):
        return None, words
    for word, key in keys.items():
        if "=" not in word:
            raise InputError(f"{word} beside a nanoGPT configuration is its key {key}; write --{key}=VALUE")
    overrides = {key: word.partition("=")[2] for word, key in keys.items()}
    return NanoGPT(tuple(files), overrides), [word for word in words if word not in keys]


def read_nanogpt(nano: NanoGPT, ranks: int, gpu: bool) -> Meant:
    """The settings of a nanoGPT configuration for so many ranks, on GPUs or not. Raises InputError that names the key,
    and the line where it stands in a file."""
    values, given = dict(DEFAULTS), set[str]()
    for path in nano.files:
        for key, (value, line) in read_assignments(path, values).items():
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
        key = next(key for key in nano.overrides if KEYS[key].own)
        raise InputError(
            f"--{key}= is a key of nanoGPT's (zerolab train --help has our own), so the run is nanoGPT's: {error}"
        ) from None
    return Meant(settings, frozenset(given), notes)


def literal(text: str, default: Any) -> Any:
    """A value as it stands in a command line."""
    if isinstance(default, str):
        return text.strip("'\"")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def checked(key: str, value: Any, where: str) -> Any:
    """A key's value, of the kind that nanoGPT's default has."""
    if key not in KEYS:
        raise InputError(f"{where}{key} is none of nanoGPT's keys; leave it out")
    kind = type(DEFAULTS[key])
    if type(value) is not kind and (kind, type(value)) != (float, int):
        words = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
        raise InputError(f"{where}{key} is {value!r}; give {words[kind]}")
    return value


def settings_of(values: Mapping[str, Any], given: frozenset[str], ranks: int, gpu: bool, notes: list[str]) -> Settings:
    settings = {key.same: values[name] for name, key in KEYS.items() if key.same}
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
    notes += [
        f"{key} is {values[key]}, but {why}"
        for key, why in NOTES.items()
        if key in given and values[key] != DEFAULTS[key]
    ]
    return settings


def machine(values: Mapping[str, Any], given: frozenset[str], gpu: bool, notes: list[str]) -> Settings:
    """Device, dtype and compilation. nanoGPT computes in 16 bits on GPUs only; what it takes a GPU for by default goes
    by what is here."""
    device, dtype = values["device"].partition(":")[0], values["dtype"]
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}; give {' or '.join(map(repr, DTYPES))}")
    on_gpu = gpu if "device" not in given else device == "cuda"
    settings: Settings = {"device": device if "device" in given else "auto"}
    settings["compile"] = values["compile"] and (on_gpu or "compile" in given)
    if values["compile"] and not settings["compile"]:
        notes.append("compile is left off on a CPU; --compile=True turns it on")
    if on_gpu and dtype != "float32":
        settings[DTYPES[dtype]] = True
        notes.append(f"dtype is {dtype}: parameters are kept in it, with main parameters in fp32 beside them")
    elif dtype != "float32" and "dtype" in given:
        notes.append(f"dtype is {dtype}, in which nanoGPT computes on GPUs only; this run computes in fp32")
    return settings


def write(settings: Settings) -> str:
    """A file of assignments: each of nanoGPT's keys whose value is not its default. The data set is nanoGPT's if there
    is none. Raises InputError for what nanoGPT has no key for."""
    run = run_of(settings)
    shape = run.architecture
    if not isinstance(shape, GPT2Config):
        raise InputError(f"model is {run.model}, and nanoGPT has GPT-2 alone; choose gpt2")
    if shape.max_seq_len != run.seq_len:
        raise InputError(
            f"seq_len is {run.seq_len} and the model's context {shape.max_seq_len}, and nanoGPT's sequences are as "
            "long as its context, block_size; choose one length for both"
        )
    if run.stage > 1:
        raise InputError(f"zero_stage is {run.stage}, and nanoGPT with use_zero1 has 0 and 1; choose one of them")
    if run.lr_schedule == "linear" or (run.lr_schedule == "constant" and run.warmup_steps):
        raise InputError(f"lr_schedule is {run.lr_schedule}, and nanoGPT has a cosine after a warm-up; choose cosine")
    told = {*" ".join(f"{key.same} {key.feeds}" for key in KEYS.values()).split()} - {"init_from"}
    for name in run.model_fields_set - SILENT - told:
        if getattr(run, name) != RunSpec.model_fields[name].default:
            raise InputError(f"{name} is {getattr(run, name)}, and nanoGPT has no key for it; leave it out")
    values = {name: key.write(run) if key.write else getattr(run, key.same, None) for name, key in KEYS.items()}
    lines = [f"{key} = {value!r}" for key, value in values.items() if value is not None and value != DEFAULTS[key]]
    return "".join(f"{line}\n" for line in lines) or "# nanoGPT's defaults\n"
