"""Our tensors and Hugging Face's, one by one: names, shapes, and which of them lie transposed.

Each of theirs is one of ours, so a model is translated with one tensor in memory. In LLaMA only names differ. In GPT-2
their matrices are [in, out] (Conv1D) and ours [out, in] (Linear), but for the two tables; and their model has biases
in all of its layers and norms: without `bias` in our config, zeros are written there, and only zeros are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from zerolab.errors import CheckpointError
from zerolab.models import Config, GPT2Config, LlamaConfig


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


def rows(config: Config) -> list[NameRow]:
    """One row for each of their tensors, in the order of our model's parameters, so unit after unit.

    A tied head has no row: its matrix is the embedding's in both models.
    """
    return _gpt2_rows(config) if isinstance(config, GPT2Config) else _llama_rows(config)


def _llama_rows(config: LlamaConfig) -> list[NameRow]:
    dim, kv_dim, table = config.dim, config.kv_heads * config.head_dim, (config.vocab_size, config.dim)
    found = [NameRow("embedding.weight", "model.embed_tokens.weight", table)]
    for layer in range(config.layers):
        found += [
            NameRow(f"blocks.{layer}.{ours}.weight", f"model.layers.{layer}.{theirs}.weight", shape)
            for ours, theirs, shape in (
                ("attention_norm", "input_layernorm", (dim,)),
                ("attention.q_proj", "self_attn.q_proj", (dim, dim)),
                ("attention.k_proj", "self_attn.k_proj", (kv_dim, dim)),
                ("attention.v_proj", "self_attn.v_proj", (kv_dim, dim)),
                ("attention.o_proj", "self_attn.o_proj", (dim, dim)),
                ("ffn_norm", "post_attention_layernorm", (dim,)),
                ("ffn.gate_proj", "mlp.gate_proj", (config.ffn_dim, dim)),
                ("ffn.up_proj", "mlp.up_proj", (config.ffn_dim, dim)),
                ("ffn.down_proj", "mlp.down_proj", (dim, config.ffn_dim)),
            )
        ]
    head = [] if config.tied_head else [NameRow("head.lm_head.weight", "lm_head.weight", table)]
    return [*found, NameRow("head.norm.weight", "model.norm.weight", (dim,)), *head]


def _gpt2_rows(config: GPT2Config) -> list[NameRow]:
    dim, table = config.dim, (config.vocab_size, config.dim)

    def layer_rows(ours: str, theirs: str, *shape: int) -> list[NameRow]:
        bias = f"{ours}.bias" if config.bias else None
        weight = NameRow(f"{ours}.weight", f"{theirs}.weight", shape, transposed=len(shape) == 2)
        return [weight, NameRow(bias, f"{theirs}.bias", shape[:1])]

    found = [
        NameRow("embedding.tokens.weight", "transformer.wte.weight", table),
        NameRow("embedding.positions.weight", "transformer.wpe.weight", (config.max_seq_len, dim)),
    ]
    for layer in range(config.layers):
        ours, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        found += [
            *layer_rows(f"{ours}.attention_norm", f"{theirs}.ln_1", dim),
            *layer_rows(f"{ours}.attention.qkv_proj", f"{theirs}.attn.c_attn", 3 * dim, dim),
            *layer_rows(f"{ours}.attention.o_proj", f"{theirs}.attn.c_proj", dim, dim),
            *layer_rows(f"{ours}.ffn_norm", f"{theirs}.ln_2", dim),
            *layer_rows(f"{ours}.ffn.up_proj", f"{theirs}.mlp.c_fc", 4 * dim, dim),
            *layer_rows(f"{ours}.ffn.down_proj", f"{theirs}.mlp.c_proj", dim, 4 * dim),
        ]
    head = [] if config.tied_head else [NameRow("head.lm_head.weight", "lm_head.weight", table)]
    return [*found, *layer_rows("head.norm", "transformer.ln_f", dim), *head]


def export(config: Config, ours: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield (their name, tensor) for every tensor of theirs, unit after unit.

    Args:
        config: of the model that the tensors belong to.
        ours: gives our parameter of a name, of any float dtype on any device. It is asked for one at a time, in the
            order of the model's parameters.

    What is yielded is a view of what `ours` gave, transposed where theirs is; read it before taking the next. Biases
    that our GPT-2 lacks are zeros in the dtype of the weight before them.

    Raises:
        CheckpointError: a tensor has another shape than the config says, or is not of floats; names it.
    """
    tensor = torch.empty(0)
    for row in rows(config):
        if row.ours is None:
            tensor = tensor.new_zeros(row.shape)
        else:
            tensor = checked(row.ours, ours(row.ours).detach(), row.shape)
        yield row.theirs, tensor.t() if row.transposed else tensor


def import_(config: Config, theirs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield (our name, tensor) for every parameter of our model, unit after unit.

    Args:
        config: of our model, as `from_huggingface` read it.
        theirs: their tensors by name, of any float dtype; each is asked for when it is its turn. Names may lack
            "model." or "transformer.", as those of their models without a head do. Masks and frequencies, which old
            checkpoints hold, are passed over.

    What is yielded has memory of its own. A tied head is not yielded: it is the embedding.

    Raises:
        CheckpointError: a tensor is missing, is one that our model has no place for, has another shape than the config
            says, or is not of floats; names it.
    """
    yield from Imported(config, theirs).items()


class Imported(Mapping[str, Tensor]):
    """Their tensors by our names, each read and turned when it is asked for; see `import_`."""

    def __init__(self, config: Config, theirs: Mapping[str, Tensor]) -> None:
        self._theirs = theirs
        self._rows: dict[str, NameRow] = {}
        there, table = set(theirs), rows(config)
        for row in table:
            name = row.theirs if row.theirs in there else row.theirs.removeprefix(_prefix(config))
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
                "take one of a LlamaForCausalLM or GPT2LMHeadModel"
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


_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def _prefix(config: Config) -> str:
    return "transformer." if isinstance(config, GPT2Config) else "model."


def checked(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor, of floats and of this shape.

    Raises:
        CheckpointError: it is not; names it.
    """
    if tuple(tensor.shape) != shape or not tensor.is_floating_point():
        raise CheckpointError(
            f"the tensor {name} is {tensor.dtype} of shape {list(tensor.shape)}, but the config calls for floats of "
            f"shape {list(shape)}; give the config and the tensors of one model"
        )
    return tensor
