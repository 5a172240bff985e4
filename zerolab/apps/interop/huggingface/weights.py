"""Our models in Hugging Face's folders and theirs in our models: names, layouts, safetensors files.

    save_folder("out", model.config, export(model.config, model.state_dict().__getitem__))
    model = from_pretrained("out")          # and LlamaForCausalLM.from_pretrained("out")
    config, tensors = load_folder("out")    # a tensor is read when it is asked for, by our name

    out/config.json                           what `config.py` translates
    out/model-00001-of-00002.safetensors      or one model.safetensors
    out/model-00002-of-00002.safetensors
    out/model.safetensors.index.json          {"weight_map": {a tensor's name: its file}}

Each of their tensors is one of ours, so a model is translated with one tensor in memory. In LLaMA only names differ. In
GPT-2 their matrices are [in, out] (Conv1D) and ours [out, in] (Linear), but for the two tables; and their layers have
biases: without `bias` in our config, zeros are written there, and only zeros are taken.
"""

from __future__ import annotations

import json
import re
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from zerolab.apps.interop.drafts import new_folder
from zerolab.apps.interop.huggingface.config import from_huggingface, to_huggingface
from zerolab.errors import CheckpointError, InputError
from zerolab.models import Config, GPT2Config, LanguageModel, build_model
from zerolab.run import RunSpec

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MOST_SHARD = 5 * 10**9
"""Bytes of a file, as transformers cuts them."""


# Names.

_LLAMA = {
    "embedding": "model.embed_tokens",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "attention": "self_attn",
    "ffn_norm": "post_attention_layernorm",
    "ffn": "mlp",
    "head.norm": "model.norm",
    "head.lm_head": "lm_head",
}
_GPT2 = {
    "embedding.tokens": "transformer.wte",
    "embedding.positions": "transformer.wpe",
    "blocks": "transformer.h",
    "attention_norm": "ln_1",
    "attention.qkv_proj": "attn.c_attn",
    "attention.o_proj": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn.up_proj": "mlp.c_fc",
    "ffn.down_proj": "mlp.c_proj",
    "head.norm": "transformer.ln_f",
    "head.lm_head": "lm_head",
}
"""What the parts of a name are called there; a part that is not here has the same name."""
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


class NameRow(NamedTuple):
    """One tensor of theirs; `ours` is None where our model has no such bias."""

    ours: str | None
    theirs: str
    shape: tuple[int, ...]
    transposed: bool = False

    @property
    def their_shape(self) -> tuple[int, ...]:
        return self.shape[::-1] if self.transposed else self.shape


@lru_cache(maxsize=16)
def rows(config: Config) -> tuple[NameRow, ...]:
    """One row for each of their tensors, in the order of our model's parameters. A tied head has none."""
    gpt2 = isinstance(config, GPT2Config)
    bare = isinstance(config, GPT2Config) and not config.bias
    with torch.device("meta"):
        model = build_model(replace(config, bias=True) if isinstance(config, GPT2Config) else config)
    found = []
    for ours, parameter in model.named_parameters():
        theirs = ours
        for part, its in (_GPT2 if gpt2 else _LLAMA).items():
            theirs = re.sub(rf"(?<![^.]){re.escape(part)}(?=\.)", its, theirs)
        turned = gpt2 and ours.startswith("blocks.") and parameter.dim() == 2
        name = None if bare and ours.endswith(".bias") else ours
        found.append(NameRow(name, theirs, tuple(parameter.shape), turned))
    return tuple(found)


def export(config: Config, ours: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield (their name, tensor) for every tensor of theirs: a view of what `ours` gives of a name, in the order of the
    model's parameters. Biases that our GPT-2 lacks are zeros."""
    tensor = torch.empty(0)
    for row in rows(config):
        if row.ours is None:
            tensor = tensor.new_zeros(row.shape)
        else:
            tensor = check_tensor(row.ours, ours(row.ours).detach(), row.shape)
        yield row.theirs, tensor.t() if row.transposed else tensor


class LazyTensors(UserDict[str, Any]):
    """Tensors by name, each read when it is asked for."""

    def __getitem__(self, name: str) -> Tensor:
        return self.data[name]()


def import_tensors(config: Config, theirs: Mapping[str, Tensor]) -> LazyTensors:
    """Their tensors by our names, unit after unit, each turned when it is asked for, to memory of its own; a tied head
    is not among them. Their names may lack "model." or "transformer.", as those of their models without a head do.
    Raises a CheckpointError for a tensor that is missing, that our model has no place for, or that is of another model.
    """
    ours, there, table = LazyTensors(), set(theirs), rows(config)

    def take(name: str, row: NameRow) -> Tensor:
        tensor = check_tensor(name, theirs[name].detach(), row.their_shape)
        return tensor.new_empty(row.shape).copy_(tensor.t() if row.transposed else tensor)

    for row in table:
        name = row.theirs if row.theirs in there else re.sub(r"^(model|transformer)\.", "", row.theirs)
        if row.ours is not None:
            ours[row.ours] = partial(take, name, row)
            if name not in there:
                raise CheckpointError(
                    f"the checkpoint has no tensor {row.theirs}, which its config.json calls for; "
                    "mend config.json, or take the whole checkpoint"
                )
        elif name in there and take(name, row).float().any():
            raise CheckpointError(
                f"the tensor {name} is not zero, but config.json says that biases are; "
                "set zerolab_bias to true in config.json"
            )
        there.discard(name)
    if config.tied_head and "lm_head.weight" in there:
        there.remove("lm_head.weight")
        if not torch.equal(take("lm_head.weight", table[0]), next(iter(ours.values()))):
            raise CheckpointError(
                "the tensor lm_head.weight differs from the embedding, but config.json says that they are tied; "
                "set tie_word_embeddings to false in config.json"
            )
    if unknown := sorted(name for name in there if not name.endswith(_BUFFERS)):
        raise CheckpointError(
            f"the checkpoint has a tensor {unknown[0]}, for which our model has no place; "
            "take one of a model that ours is"
        )
    return ours


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor. Raises a CheckpointError if it has another shape, or is not of floats."""
    if tuple(tensor.shape) != shape or not tensor.is_floating_point():
        raise CheckpointError(
            f"the tensor {name} is {tensor.dtype} of shape {list(tensor.shape)}, but the config calls for floats of "
            f"shape {list(shape)}; give the config and the tensors of one model"
        )
    return tensor


# Files.


def save_folder(
    path: str | Path,
    config: Config | None,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = MOST_SHARD,
) -> None:
    """Write tensors to files with their index, and config.json, as `from_pretrained` of transformers reads them.

    path             a folder that is new or empty; it is there whole or not at all
    config           None writes no config.json
    tensors          (their name, tensor) of all tensors, in any order. Each is copied before the next is taken
    dtype            with a config, that in which tensors are written (None: fp32); else they keep theirs
    max_shard_bytes  a file's tensors take at most so many bytes, unless a single tensor takes more
    """
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"dtype is {dtype}, but weights are floats; name a dtype such as torch.bfloat16.")
    texts: dict[str, Any] = {}
    kind = None
    if config is not None:
        kind = dtype or torch.float32
        texts[CONFIG] = to_huggingface(config, kind)
    places: dict[str, int] = {}
    count = total = 0
    with new_folder(Path(path), InputError) as draft:
        for count, held in enumerate(_fill_shards(tensors, kind, max_shard_bytes), start=1):
            places |= dict.fromkeys(held, count)
            total += sum(tensor.nbytes for tensor in held.values())
            save_file(held, draft / f"{count}.safetensors", metadata={"format": "pt"})
            held.clear()
        files = {at: f"model-{at:05}-of-{count:05}.safetensors" for at in range(1, count + 1)}
        if count == 1:
            files = {1: WHOLE}
        for at, file in files.items():
            (draft / f"{at}.safetensors").rename(draft / file)
        if count > 1:
            weight_map = {name: files[at] for name, at in sorted(places.items())}
            texts[INDEX] = {"metadata": {"total_size": total}, "weight_map": weight_map}
        for file, content in texts.items():
            (draft / file).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _fill_shards(
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


def load_folder(path: str | Path) -> tuple[Config, LazyTensors]:
    """A folder's config.json, and what `import_tensors` makes of its tensors."""
    path = Path(path)
    config = from_huggingface(_read_json(path / CONFIG))
    if (path / WHOLE).exists():
        shards = {WHOLE}
    elif (path / INDEX).exists():
        # Names alone, so that no file outside of the folder is opened.
        shards = {Path(str(shard)).name for shard in _read_json(path / INDEX).get("weight_map", {}).values()}
    else:
        raise CheckpointError(
            f"{path} has neither {WHOLE} nor {INDEX}; a pickle (pytorch_model.bin) may run any code and is not "
            "opened, so where you trust one, let transformers write the others: "
            "AutoModelForCausalLM.from_pretrained(old).save_pretrained(new)"
        )
    theirs = LazyTensors()
    for shard in sorted(shards):
        with _open(path / shard) as file:
            names = file.keys()
        theirs |= {name: partial(_read_tensor, path / shard, name) for name in names}
    return config, import_tensors(config, theirs)


def from_pretrained(path: str | Path, *, dtype: torch.dtype | None = None, checkpoint: bool = False) -> LanguageModel:
    """Our model with the weights of a folder, on the CPU, in a dtype or that of the files."""
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


def _read_tensor(path: Path, name: str) -> Tensor:
    with _open(path) as file:
        return file.get_tensor(name)


def _open(path: Path) -> Any:
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


# Runs that begin with the weights of a folder.


class FolderShape(NamedTuple):
    """The shape of the model in a folder, and what titles and errors call it."""

    name: str
    config: Config


def with_shape(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run, with the shape of the model of its `init_from`."""
    if settings.get("init_from") is None:
        return dict(settings)
    folder = Path(settings["init_from"]).expanduser()
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"init_from is {str(folder)!r}, which has no {CONFIG}; name a folder that transformers' save_pretrained "
            "or zerolab checkpoint consolidate --huggingface has written"
        )
    config = load_folder(folder)[0]
    kind = "gpt2" if isinstance(config, GPT2Config) else "llama"
    return {**settings, "shape": FolderShape(f"{kind} of {settings['init_from']}", config)}


def weights_of(run: RunSpec) -> Callable[[], Mapping[str, Tensor]] | None:
    """What reads the parameters that a run begins with; None if it draws them."""
    if run.init_from is None:
        return None
    folder = run.init_from.expanduser()
    return lambda: load_folder(folder)[1]
