"""Hugging Face's folders: config.json beside model.safetensors, or beside shards and their index.

    out/config.json
    out/model-00001-of-00002.safetensors
    out/model-00002-of-00002.safetensors
    out/model.safetensors.index.json          {"weight_map": {a tensor's name: its file}}

Pickles (pytorch_model.bin) are not opened: opening one may run any code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from zerolab.apps.interop.drafts import new_folder
from zerolab.apps.interop.huggingface.config import from_huggingface, to_huggingface
from zerolab.apps.interop.huggingface.names import Imported
from zerolab.errors import CheckpointError, InputError
from zerolab.models import Config, LanguageModel, build_model

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MOST_SHARD = 5 * 10**9
"""Bytes of a file, as transformers cuts them."""


def save_folder(
    path: str | Path,
    config: Config | None,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = MOST_SHARD,
) -> None:
    """Write tensors to shards with their index, and config.json: a folder that `from_pretrained` of transformers reads.

    path             a folder that is not there yet, or is empty; it is there whole or not at all
    config           None writes no config.json
    tensors          (their name, tensor) of all tensors, in any order, such as `export` yields. Each is copied before
                     the next is taken, and those of one file are held
    dtype            that in which tensors are written; None: fp32, or without a config their own
    max_shard_bytes  a file's tensors take at most so many bytes, unless a single tensor takes more

    Raises an InputError for a dtype that is not of floats and a folder with something in it, and a CheckpointError for
    a file that cannot be written.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"dtype is {dtype}, but weights are floats; name a dtype such as torch.bfloat16.")
    texts: dict[str, Any] = {}
    if config is not None:
        dtype = dtype or torch.float32
        texts[CONFIG] = to_huggingface(config, dtype)
    shards: list[list[str]] = []
    total = 0
    with new_folder(Path(path), InputError) as draft:
        for held in _shards(tensors, dtype, max_shard_bytes):
            shards.append(list(held))
            total += sum(tensor.nbytes for tensor in held.values())
            save_file(held, draft / f"{len(shards)}.safetensors", metadata={"format": "pt"})
            held.clear()
        names = [f"model-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, len(shards) + 1)]
        if len(shards) == 1:
            names = [WHOLE]
        else:
            places = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
            texts[INDEX] = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        for at, name in enumerate(names, start=1):
            (draft / f"{at}.safetensors").rename(draft / name)
        for name, content in texts.items():
            (draft / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _shards(
    tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None, limit: int
) -> Iterator[dict[str, Tensor]]:
    """Copies of the tensors, as many at a time as fit into one file; at least one."""
    held: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        kind = dtype or tensor.dtype
        nbytes = tensor.numel() * kind.itemsize
        if held and size + nbytes > limit:
            yield held
            held, size = {}, 0
        held[name] = torch.empty(tensor.shape, dtype=kind, device="cpu").copy_(tensor.detach())
        size += nbytes
        # Before the next one is made.
        del tensor
    yield held


def load_folder(path: str | Path) -> tuple[Config, Mapping[str, Tensor]]:
    """A folder's config.json, and its tensors by our names, in the order of our model's parameters (see `Imported`).

    Raises an InputError for a model that ours is not, and a CheckpointError for a file that is missing or cannot be
    read, and for tensors that are not those of the config.
    """
    path = Path(path)
    config = from_huggingface(_read_json(path / CONFIG))
    return config, Imported(config, _Files(path))


def from_pretrained(path: str | Path, *, dtype: torch.dtype | None = None, checkpoint: bool = False) -> LanguageModel:
    """Our model with the weights of a Hugging Face folder, on the CPU, in a dtype or that of the files; see
    `load_folder`. Nothing is downloaded, and loading holds one model and one tensor."""
    config, tensors = load_folder(path)
    return assemble(config, ((name, tensor.to(dtype=dtype)) for name, tensor in tensors.items()), checkpoint)


def assemble(config: Config, tensors: Iterable[tuple[str, Tensor]], checkpoint: bool = False) -> LanguageModel:
    """Our model of tensors by our names, a tied head left out."""
    with torch.device("meta"):
        model = build_model(config, checkpoint=checkpoint)
    parameters = {name: nn.Parameter(tensor) for name, tensor in tensors}
    if config.tied_head:
        parameters["head.lm_head.weight"] = parameters[next(name for name, _ in model.named_parameters())]
    model.load_state_dict(parameters, assign=True)
    return model


class _Files(Mapping[str, Tensor]):
    """A folder's tensors by their names, each read from its file when it is asked for."""

    def __init__(self, folder: Path) -> None:
        if (folder / WHOLE).exists():
            shards = {WHOLE}
        elif (folder / INDEX).exists():
            # Names alone, so that no file outside of the folder is opened.
            shards = {Path(str(shard)).name for shard in _read_json(folder / INDEX).get("weight_map", {}).values()}
        else:
            raise CheckpointError(
                f"{folder} has neither {WHOLE} nor {INDEX}; a pickle (pytorch_model.bin) may run any code and is not "
                "opened, so where you trust one, let transformers write the others: "
                "AutoModelForCausalLM.from_pretrained(old).save_pretrained(new)"
            )
        self._places: dict[str, Path] = {}
        for shard in sorted(shards):
            with _opened(folder / shard) as file:
                self._places |= dict.fromkeys(file.keys(), folder / shard)

    def __getitem__(self, name: str) -> Tensor:
        path = self._places[name]
        with _opened(path) as file:
            return file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); take the whole checkpoint anew") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(said, dict):
            raise ValueError("it holds no JSON object")
        return said
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); name the folder of a whole checkpoint") from error
