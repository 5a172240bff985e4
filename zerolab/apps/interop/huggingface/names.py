"""Our tensors and Hugging Face's, one by one: names, shapes, and which of them lie transposed.

Each of theirs is one of ours, so a model is translated with one tensor in memory. In LLaMA only names differ. In GPT-2
their matrices are [in, out] (Conv1D) and ours [out, in] (Linear), but for the two tables; and their model has biases
in all of its layers and norms: without `bias` in our config, zeros are written there, and only zeros are taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from zerolab.errors import CheckpointError
from zerolab.models import Config, GPT2Config, build_model

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
    """One tensor of theirs: the name in our model (None: ours has no such bias), in theirs, our shape, and whether
    theirs is its transpose."""

    ours: str | None
    theirs: str
    shape: tuple[int, ...]
    transposed: bool = False

    @property
    def their_shape(self) -> tuple[int, ...]:
        return self.shape[::-1] if self.transposed else self.shape


@lru_cache(maxsize=16)
def rows(config: Config) -> tuple[NameRow, ...]:
    """One row for each of their tensors, in the order of our model's parameters, so unit after unit.

    A tied head has no row: its matrix is the embedding's in both models.
    """
    gpt2, bare = isinstance(config, GPT2Config), isinstance(config, GPT2Config) and not config.bias
    with torch.device("meta"):
        model = build_model(replace(config, bias=True) if isinstance(config, GPT2Config) else config)
    found = []
    for ours, parameter in model.named_parameters():
        theirs = ours
        for part, name in (_GPT2 if gpt2 else _LLAMA).items():
            theirs = re.sub(rf"(?<![^.]){re.escape(part)}(?=\.)", name, theirs)
        turned = gpt2 and ours.startswith("blocks.") and parameter.dim() == 2
        found.append(NameRow(None if bare and ours.endswith(".bias") else ours, theirs, tuple(parameter.shape), turned))
    return tuple(found)


def export(config: Config, ours: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield (their name, tensor) for every tensor of theirs, unit after unit.

    `ours` gives our parameter of a name; it is asked for one at a time, in the order of the model's parameters. What is
    yielded is a view of it; read it before taking the next. Biases that our GPT-2 lacks are zeros in the dtype of the
    weight before them.
    """
    tensor = torch.empty(0)
    for row in rows(config):
        if row.ours is None:
            tensor = tensor.new_zeros(row.shape)
        else:
            tensor = checked(row.ours, ours(row.ours).detach(), row.shape)
        yield row.theirs, tensor.t() if row.transposed else tensor


class Imported(Mapping[str, Tensor]):
    """Their tensors by our names, unit after unit, each read and turned when it is asked for, to memory of its own. A
    tied head is not among them: it is the embedding.

    Their names may lack "model." or "transformer.", as those of their models without a head do. Masks and frequencies,
    which old checkpoints hold, are passed over. Raises a CheckpointError for a tensor that is missing, that our model
    has no place for, or that is of another model.
    """

    def __init__(self, config: Config, theirs: Mapping[str, Tensor]) -> None:
        self._theirs = theirs
        self._rows: dict[str, NameRow] = {}
        there, table = set(theirs), rows(config)
        for row in table:
            name = row.theirs if row.theirs in there else re.sub(r"^(model|transformer)\.", "", row.theirs)
            found = row._replace(theirs=name)
            if row.ours is not None:
                self._rows[row.ours] = found
                if name not in there:
                    raise CheckpointError(
                        f"the checkpoint has no tensor {row.theirs}, which its config.json calls for; "
                        "mend config.json, or take the whole checkpoint"
                    )
            elif name in there and self._take(found).float().any():
                raise CheckpointError(
                    f"the tensor {name} is not zero, but config.json says that biases are; "
                    "set zerolab_bias to true in config.json"
                )
            there.discard(name)
        if config.tied_head and "lm_head.weight" in there:
            there.remove("lm_head.weight")
            if not torch.equal(self._take(table[0]._replace(theirs="lm_head.weight")), next(iter(self.values()))):
                raise CheckpointError(
                    "the tensor lm_head.weight differs from the embedding, but config.json says that they are tied; "
                    "set tie_word_embeddings to false in config.json"
                )
        if unknown := sorted(name for name in there if not name.endswith(_BUFFERS)):
            raise CheckpointError(
                f"the checkpoint has a tensor {unknown[0]}, for which our model has no place; "
                "take one of a model that ours is"
            )

    def __getitem__(self, name: str) -> Tensor:
        return self._take(self._rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _take(self, row: NameRow) -> Tensor:
        tensor = checked(row.theirs, self._theirs[row.theirs].detach(), row.their_shape)
        return tensor.new_empty(row.shape).copy_(tensor.t() if row.transposed else tensor)


def checked(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor. Raises a CheckpointError if it has another shape, or is not of floats."""
    if tuple(tensor.shape) != shape or not tensor.is_floating_point():
        raise CheckpointError(
            f"the tensor {name} is {tensor.dtype} of shape {list(tensor.shape)}, but the config calls for floats of "
            f"shape {list(shape)}; give the config and the tensors of one model"
        )
    return tensor
