"""What a run trains, and on which tokens: a named model, or one of given sizes, with the vocabulary of its data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field

from zerolab.apps.interop.huggingface import load_folder
from zerolab.data import EMBEDDED, Corpus, load_corpus, load_dataset
from zerolab.errors import InputError
from zerolab.models import BYTE_VOCABULARY, Config, GPT2Config, LanguageModel, LlamaConfig, config_of

SIZES = ("layers", "heads", "dim", "kv_heads", "ffn_dim", "bias", "tied_head")
KINDS: dict[str, type[LlamaConfig] | type[GPT2Config]] = {"llama": LlamaConfig, "gpt2": GPT2Config}
ROUND = 64
CONFIG = "config.json"


class ModelSettings(BaseModel):
    """The model's shape, what it is trained on, and how its layers are run."""

    model: Literal["llama", "gpt2"] = Field("llama", description="architecture")
    model_size: str = Field(
        "tiny", description="nano, tiny, small, medium (llama); nano, tiny, 124m ... gpt3-175b (gpt2)"
    )
    layers: int | None = Field(
        None, ge=1, le=10_000, description="blocks, in the place of the named size's; so are those below"
    )
    heads: int | None = Field(None, ge=1, lt=1 << 31, description="attention heads")
    dim: int | None = Field(None, ge=1, lt=1 << 31, description="width of the hidden states, a multiple of the heads")
    kv_heads: int | None = Field(
        None, ge=1, lt=1 << 31, description="llama: heads of keys and values; none: the size's, or heads"
    )
    ffn_dim: int | None = Field(
        None, ge=1, lt=1 << 31, description="llama: width of the feed-forward; none: the size's, or 8/3 dim"
    )
    bias: bool | None = Field(None, description="gpt2: linear layers and norms have biases; none: no")
    tied_head: bool | None = Field(None, description="the head's weight is the embedding's; none: yes")
    context: int | None = Field(
        None, ge=1, lt=1 << 31, description="longest sequence that the model can read; none: seq-len"
    )
    vocab_size: int | None = Field(
        None, ge=1, lt=1 << 31, description="tokens that the model knows; none: those of the data"
    )
    init_from: Path | None = Field(
        None,
        description="begin with the weights of a Hugging Face folder of a llama or gpt2, whose shape the model has",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="gpt2: share of activations that training leaves out")
    data_mode: str = Field(EMBEDDED, description="embedded, synthetic, fineweb-edu, or the path of a text file")
    dataset: str | None = Field(
        None,
        description="prepared tokens instead (zerolab prepare, or nanoGPT's .bin files): a folder, or a name in data/",
    )
    compile: bool = Field(False, description="compile the model's blocks (torch.compile)")
    compile_backend: Literal["inductor", "aot_eager", "eager"] = Field(
        "inductor", description="what torch.compile makes of them"
    )

    @property
    def own_sizes(self) -> dict[str, Any]:
        """The sizes that are given, in the place of a named one's."""
        return {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}

    @property
    def model_name(self) -> str:
        """What titles and errors call the model."""
        if self.init_from is not None:
            return f"{'gpt2' if isinstance(self.shape_for(1), GPT2Config) else 'llama'} of {self.init_from}"
        if not self.own_sizes:
            return f"{self.model} {self.model_size}"
        return f"{self.model} {', '.join(f'{name} {value}' for name, value in self.own_sizes.items())}"

    def shape_for(self, seq_len: int) -> Config:
        """The model's shape; its vocabulary is the 256 bytes where nobody has said another."""
        if self.init_from is not None:
            return shape_in(self.init_from.expanduser())
        given = self.own_sizes
        config = config_of(
            self.model,
            self.model_size,
            vocab_size=self.vocab_size or BYTE_VOCABULARY,
            max_seq_len=self.context or seq_len,
        )
        for name in given:
            if name not in {field.name for field in fields(config)}:
                raise InputError(f"{name} is {given[name]}, which {self.model} does not have; leave it out")
        if isinstance(config, LlamaConfig):
            if "heads" in given:
                given.setdefault("kv_heads", given["heads"])
            if "dim" in given:
                given.setdefault("ffn_dim", -(-8 * given["dim"] // (3 * ROUND)) * ROUND)
        return replace(config, **given)

    def check_model(self) -> None:
        """Raise an InputError for settings that no model has."""
        if self.dataset is not None and self.data_mode != EMBEDDED:
            raise InputError(
                f"data_mode is {self.data_mode!r} and dataset {self.dataset!r}; a run has one, so choose one"
            )
        shaped = ("model", "model_size", "context", *self.own_sizes)
        given = [name for name in shaped if getattr(self, name) != ModelSettings.model_fields[name].default]
        if self.init_from is not None and given:
            raise InputError(
                f"init_from is {str(self.init_from)!r}, whose model has its own shape, and {given[0]} is "
                f"{getattr(self, given[0])}; leave one of the two out"
            )
        if self.dropout and not isinstance(self.shape_for(1), GPT2Config):
            raise InputError(f"dropout is {self.dropout} and a llama has none; leave it out, or choose --model gpt2")
        if self.compile_backend != "inductor" and not self.compile:
            raise InputError(f"compile_backend is {self.compile_backend} but nothing is compiled; give compile, too")
        if self.compile and self.compile_backend == "inductor" and not _compiler():
            raise InputError(
                "compile is on, but torch.compile finds no C++ compiler (g++) here; install one, or leave it out"
            )


def _compiler() -> str | None:
    wanted = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    return next(filter(None, map(shutil.which, wanted)), None)


def shape_in(folder: Path) -> Config:
    """The shape of the model of a Hugging Face folder. Raises InputError if it has none of ours."""
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"init_from is {str(folder)!r}, which has no {CONFIG}; name a folder that transformers' save_pretrained "
            "or zerolab checkpoint consolidate --huggingface has written"
        )
    return load_folder(folder)[0]


@torch.no_grad()
def take_weights(model: LanguageModel, folder: Path) -> None:
    """Overwrite the parameters of a model of that shape by those in a Hugging Face folder."""
    for name, tensor in load_folder(folder.expanduser())[1].items():
        model.get_parameter(name).copy_(tensor)


def load_data(settings: ModelSettings, seq_len: int) -> Corpus:
    """The tokens of a run. Raises InputError for text or tokens that cannot be used."""
    if settings.dataset is not None:
        return load_dataset(settings.dataset, seq_len=seq_len)
    return load_corpus(settings.data_mode, seq_len=seq_len)


def vocabulary(settings: ModelSettings, corpus: Corpus) -> int:
    """How many tokens the model of a run knows. Raises InputError if its data has more."""
    known = settings.vocab_size
    if settings.init_from is not None:
        known = settings.shape_for(1).vocab_size
        if known < corpus.vocab_size:
            raise InputError(
                f"init_from is a model that knows {known} tokens and {corpus.text.source} has {corpus.vocab_size}; "
                "take data that was prepared for it"
            )
    if known is not None and known < corpus.vocab_size:
        raise InputError(
            f"vocab_size is {known} and {corpus.text.source} has {corpus.vocab_size} tokens; give at least as many, or "
            "leave it out"
        )
    return known or corpus.vocab_size


def shape_to_save(shape: Config) -> dict[str, Any]:
    """A model's shape as JSON; `saved_shape` reads it."""
    name = next(name for name, kind in KINDS.items() if isinstance(shape, kind))
    return {"architecture": name, **asdict(shape)}


def saved_shape(data: Mapping[str, Any]) -> Config | None:
    """The shape of the model of a checkpoint that `zerolab train` has saved, by the manifest's `data`; None if it says
    nothing of one that we know."""
    said = data.get("shape")
    if isinstance(said, dict) and said.get("architecture") in KINDS:
        try:
            return KINDS[said["architecture"]](
                **{name: value for name, value in said.items() if name != "architecture"}
            )
        except TypeError:
            # Of another version, which knows other sizes.
            return None
    if {"model", "model_size", "seq_len"} <= data.keys():
        return config_of(data["model"], data["model_size"], max_seq_len=data["seq_len"])
    return None
